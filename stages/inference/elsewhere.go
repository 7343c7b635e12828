package inference

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/internal/lm"
)

// Directory is a Model that sends each request to where its policy is served: frozen policies with a url there, all others
// to the server of the one that is trained.
type Directory struct {
	home      Model
	elsewhere map[string]*remote
	log       *slog.Logger
}

type remote struct {
	*Client
	model string
}

// NewDirectory joins the server of the policy that is trained with the frozen policies.
func NewDirectory(home Model, frozen map[string]FrozenConfig, log *slog.Logger) *Directory {
	d := &Directory{home: home, elsewhere: map[string]*remote{}, log: log}
	for name, c := range frozen {
		if c.URL != "" {
			client := NewClient(c.URL)
			client.Token = c.Token.Reveal()
			d.elsewhere[name] = &remote{client, c.Model}
		}
	}
	return d
}

// Generate implements Generator.
func (d *Directory) Generate(ctx context.Context, r Request) (Completion, error) {
	if there := d.elsewhere[r.Policy]; there != nil {
		r.Policy = there.model
		return there.Client.Generate(ctx, r)
	}
	return d.home.Generate(ctx, r)
}

// Probe implements Prober.
func (d *Directory) Probe(ctx context.Context, p Probe) ([]float32, error) {
	if there := d.elsewhere[p.Policy]; there != nil {
		p.Policy = there.model
		return there.Client.Probe(ctx, p)
	}
	return d.home.Probe(ctx, p)
}

// Verify asks the servers elsewhere whether they have the policies, and with the tokenizer of the run, whose tokenizer.json
// is given. That a policy is not there, or has another tokenizer, is fatal; other errors may pass. Where a server does not
// say which tokenizer it has, which only prl's own does, that is logged.
func (d *Directory) Verify(ctx context.Context, tokenizer []byte) error {
	for _, name := range slices.Sorted(maps.Keys(d.elsewhere)) {
		if err := d.elsewhere[name].verify(ctx, name, tokenizer, d.log); err != nil {
			return err
		}
	}
	return nil
}

func (r *remote) verify(ctx context.Context, name string, tokenizer []byte, log *slog.Logger) error {
	var list modelList
	err := r.call(ctx, http.MethodGet, pathModels, nil, &list)
	var refused *Error
	switch {
	case errors.As(err, &refused) && !Retryable(err):
		return pipeline.Fatal("frozen.%s.url: list the models of %s: %w", name, r.base, err)
	case err != nil:
		return fmt.Errorf("frozen.%s.url: list the models of %s: %w", name, r.base, err)
	}
	at := slices.IndexFunc(list.Data, func(c modelCard) bool { return c.ID == r.model })
	if at < 0 {
		var ids []string
		for _, c := range list.Data {
			ids = append(ids, c.ID)
		}
		return pipeline.Fatal("frozen.%s.model = %q: %s serves %s", name, r.model, r.base, strings.Join(ids, ", "))
	}
	if list.Data[at].Tokenizer == "" {
		log.Warn("a frozen policy's tokenizer cannot be compared with the run's: its server does not say which it is", "frozen", name, "url", r.base)
		return nil
	}
	own, err := lm.ParseTokenizer(tokenizer)
	if err != nil {
		return pipeline.Fatal("tokenizer of the run: %w", err)
	}
	id, err := tokenizerID(own)
	if err != nil {
		return err
	}
	if id != list.Data[at].Tokenizer {
		return pipeline.Fatal("frozen.%s: %w", name, errTokenizer)
	}
	return nil
}
