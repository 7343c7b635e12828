package inference

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/inference/render"
)

// Directory is a Model that sends each request to where its policy is served: frozen policies with a url there, all others
// to the server of the one that is trained. From Verify on no frozen policy is asked before its server has been looked at:
// those of Uses at once, others (of an eval that somebody runs by hand) with their first request.
type Directory struct {
	// Renderer is the name of the run's, as render.New takes it.
	Renderer string

	home   Host
	frozen map[string]FrozenConfig
	away   map[string]*Client // of the frozen policies with a url, by name
	uses   []Use
	log    *slog.Logger

	mu       sync.Mutex
	renderer string            // ID of the run's; empty before Verify
	recorded map[string]string // how traces name the frozen policies that were looked at, by name
}

// Use says what a run asks a frozen policy for.
type Use struct {
	Policy string
	// Key is what names the policy, such as envs.catch.teacher.
	Key string
	// Teaches says that it scores what was sampled. Otherwise it plays.
	Teaches bool
	// Tokens is the longest rollout; 0 where nobody knows.
	Tokens int
	// Temperature is that of sampling.
	Temperature float64
}

// NewDirectory joins the server of the policy that is trained with the frozen policies.
func NewDirectory(home Host, frozen map[string]FrozenConfig, uses []Use, log *slog.Logger) *Directory {
	d := &Directory{home: home, frozen: frozen, away: map[string]*Client{}, uses: uses, log: log, recorded: map[string]string{}}
	for name, c := range frozen {
		if c.URL != "" {
			d.away[name] = NewClient(c.URL)
			d.away[name].Token = c.Token.Reveal()
		}
	}
	return d
}

// Close drops the idle connections to the servers.
func (d *Directory) Close() {
	if home, ok := d.home.(*Client); ok {
		home.Close()
	}
	for _, c := range d.away {
		c.Close()
	}
}

// at is where a policy is served, and its name there.
func (d *Directory) at(policy string) (Host, string) {
	if c := d.away[policy]; c != nil {
		return c, d.frozen[policy].Model
	}
	return d.home, policy
}

// Server is where a policy is served, for people; empty is the one that is trained.
func (d *Directory) Server(policy string) string {
	host, _ := d.at(policy)
	return host.String()
}

// Recorded is how traces name a frozen policy, see schemas.FrozenPolicy. Which weights it has is what its server said when it
// was looked at; a server of another make does not say.
func (d *Directory) Recorded(policy string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if name, ok := d.recorded[policy]; ok {
		return name
	}
	return policy
}

// Generate implements Generator.
func (d *Directory) Generate(ctx context.Context, r Request) (Completion, error) {
	if err := d.known(ctx, r.Policy); err != nil {
		return Completion{}, err
	}
	host, name := d.at(r.Policy)
	r.Policy = name
	return host.Generate(ctx, r)
}

// Probe implements Prober.
func (d *Directory) Probe(ctx context.Context, p Probe) ([]float32, error) {
	if err := d.known(ctx, p.Policy); err != nil {
		return nil, err
	}
	host, name := d.at(p.Policy)
	p.Policy = name
	return host.Probe(ctx, p)
}

// known looks at the server of a policy that nothing asked for when the others were.
func (d *Directory) known(ctx context.Context, policy string) error {
	d.mu.Lock()
	_, done := d.recorded[policy]
	done = done || policy == "" || d.renderer == ""
	d.mu.Unlock()
	if done {
		return nil
	}
	return d.look(ctx, policy)
}

// Verify is given the tokenizer.json of the run and looks at the server of every frozen policy that is used: whether it has
// the policy, with the run's tokenizer, and can answer all it will be asked. What will not pass is fatal. Where a server does
// not say which tokenizer it has, which only prl's own does, that is logged.
func (d *Directory) Verify(ctx context.Context, tokenizer []byte) error {
	own, err := render.New(d.Renderer, tokenizer)
	if err != nil {
		return pipeline.Fatal("tokenizer of the run: %w", err)
	}
	d.mu.Lock()
	d.renderer = own.ID()
	d.mu.Unlock()
	for _, u := range d.uses {
		err := d.known(ctx, u.Policy)
		var refused *Error
		if errors.As(err, &refused) && !Retryable(err) {
			return pipeline.Fatal("%w", err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
