package pipeline

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/prl-project/prl/schemas"
)

// SchemaRegistry knows the ids that a Schema Registry has given to the schemas of records. Once Resolve has returned,
// writing needs the registry no more, and reading only for ids that have not been met.
type SchemaRegistry struct {
	cfg    SchemaRegistryConfig
	client *sr.Client
	log    *slog.Logger
	ids    map[string]int // of the newest version, by record

	mu       sync.Mutex
	versions map[int]schemas.Version // by id
}

// Resolve learns the ids of all records' schemas, and registers those that are missing where it may. It must return
// before anything is written.
func (g *SchemaRegistry) Resolve(ctx context.Context) error {
	for _, t := range Topics {
		if _, ok := g.ids[t.Record]; ok || t.Record == "" {
			continue
		}
		id, err := g.resolve(ctx, schemas.New(t.Record))
		if err != nil {
			return fmt.Errorf("schema registry at %s: %w", strings.Join(g.cfg.URLs, ", "), err)
		}
		g.ids[t.Record] = id
	}
	return nil
}

func (g *SchemaRegistry) resolve(ctx context.Context, r schemas.Record) (id int, err error) {
	text, err := schemas.Schema(r.SchemaName())
	if err != nil {
		return 0, err
	}
	version, err := schemas.FindVersion(text)
	if err != nil {
		return 0, err
	}
	subject, schema := schemas.FullName(r), sr.Schema{Schema: text, Type: sr.TypeAvro}
	err = g.ask(ctx, func(ctx context.Context) error {
		found, err := g.client.LookupSchema(ctx, subject, schema)
		id = found.ID
		return err
	})
	if status(err) == http.StatusNotFound {
		if !g.cfg.AutoRegister {
			return 0, fmt.Errorf("subject %s %w, and schema_registry.auto_register = false: register it there (with this setting true, or from prl's folder schemas)", subject, errNotRegistered)
		}
		id, err = g.register(ctx, subject, schema)
	}
	if err != nil {
		return 0, g.advise(subject, err)
	}
	g.keep(id, version)
	return id, nil
}

var errNotRegistered = errors.New("does not hold the schema that this version of prl writes")

func (g *SchemaRegistry) register(ctx context.Context, subject string, schema sr.Schema) (id int, err error) {
	err = g.ask(ctx, func(ctx context.Context) error {
		return g.client.SetCompatibility(ctx, sr.SetCompatibility{Level: g.cfg.Compatibility}, subject)[0].Err
	})
	if err != nil {
		return 0, fmt.Errorf("set its compatibility to %v: %w", g.cfg.Compatibility, err)
	}
	err = g.ask(ctx, func(ctx context.Context) error {
		id, err = g.client.RegisterSchema(ctx, subject, schema, -1, -1)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("register the schema: %w", err)
	}
	g.log.Info("schema registered", "subject", subject, "id", id, "compatibility", g.cfg.Compatibility.String())
	return id, nil
}

// advise says what to do about what the registry answered at the start.
func (g *SchemaRegistry) advise(subject string, err error) error {
	do := ""
	switch {
	case barred(err):
		do = ": schema_registry.user and its password must be right and give leave to read the subject and, with auto_register, to write it and its compatibility"
	case status(err) == http.StatusConflict:
		do = ": the subject holds schemas that this version's does not follow, those of a newer prl or of something else; use the newest prl, or another registry"
	case errors.Is(err, ErrTransient):
		do = ": does it run? Start it and then this stage, or correct schema_registry.urls; without urls records are in Avro single-object encoding"
	}
	return fmt.Errorf("subject %s: %w%s", subject, err, do)
}

// encode gives the bytes of a record in Confluent's framing.
func (g *SchemaRegistry) encode(r schemas.Record) ([]byte, error) {
	id, ok := g.ids[r.SchemaName()]
	if !ok {
		return nil, fmt.Errorf("the id of schema %s was not resolved", r.SchemaName())
	}
	b, err := new(sr.ConfluentHeader).AppendEncode(nil, id, nil)
	if err != nil {
		return nil, err
	}
	return schemas.AppendBinary(b, r)
}

// version is the schema that an id stands for. An error that is not ErrTransient says that the registry does not know
// the id, or that it stands for a schema this version of prl cannot read.
func (g *SchemaRegistry) version(ctx context.Context, id int) (schemas.Version, error) {
	g.mu.Lock()
	v, ok := g.versions[id]
	g.mu.Unlock()
	if ok {
		return v, nil
	}
	if id > math.MaxInt32 { // registries count in Java's int, and not all of them answer such a question
		return v, fmt.Errorf("%d is no schema id", id)
	}
	var text string
	err := g.ask(ctx, func(ctx context.Context) error {
		schema, err := g.client.SchemaByID(ctx, id)
		text = schema.Schema
		return err
	})
	if err != nil {
		return v, fmt.Errorf("look up schema id %d: %w", id, err)
	}
	if v, err = schemas.FindVersion(text); err != nil {
		return v, fmt.Errorf("schema id %d: %w", id, err)
	}
	g.keep(id, v)
	return v, nil
}

func (g *SchemaRegistry) keep(id int, v schemas.Version) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.versions[id] = v
}

// ask puts a question to the registry, again and again while the registry cannot answer, until the time-out. Then the
// error is ErrTransient: the registry has said nothing about what was asked.
func (g *SchemaRegistry) ask(ctx context.Context, question func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(g.cfg.Timeout))
	defer cancel()
	tries := backoff.NewExponentialBackOff()
	tries.InitialInterval, tries.MaxInterval = 50*time.Millisecond, time.Second
	for {
		err := question(ctx)
		if err == nil || answered(err) {
			return err
		}
		var untrusted *tls.CertificateVerificationError
		if barred(err) || errors.As(err, &untrusted) {
			cancel() // it stays so
		}
		if pause(ctx, tries.NextBackOff()); ctx.Err() != nil {
			return fmt.Errorf("%w: %w", ErrTransient, err)
		}
	}
}

// answered tells an answer about the thing that was asked for from a registry that is down, overloaded, or does not know
// who asks.
func answered(err error) bool {
	s := status(err)
	return s >= 400 && s < 500 && !barred(err) && s != http.StatusTooManyRequests && s != http.StatusRequestTimeout
}

// barred reports whether a registry answers others only, which says nothing about what was asked for.
func barred(err error) bool {
	s := status(err)
	return s == http.StatusUnauthorized || s == http.StatusForbidden
}

// status is the HTTP status of a registry's answer; 0 where there is none.
func status(err error) int {
	var answer *sr.ResponseError
	if errors.As(err, &answer) {
		return answer.StatusCode
	}
	return 0
}
