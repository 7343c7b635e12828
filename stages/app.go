package stages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"

	"github.com/pelletier/go-toml/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/logs"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/envs"
	"github.com/prl-project/prl/stages/eval"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/ui"
	"github.com/prl-project/prl/stages/ui/flow"
)

// App is what the stages of one process share.
type App struct {
	Config   *Config
	Runtime  *pipeline.Runtime
	Registry *prometheus.Registry
	// Serve are the environments of this process's environment server; empty for all that are configured.
	Serve []string
	// Model generates in this process; nil where the policy is served elsewhere.
	Model inference.Host
	// measures is the eval by hand beside which nothing else of the run is done; nil for none.
	measures *eval.ByHand
	// member is the run of a fleet that this is; nil where the process serves one run.
	member *member
	// closers are the environments that hold something.
	closers []io.Closer
	// readers are, by the name in pipeline.Topics, the stages that keep state on what they have read of a topic.
	readers map[string][]string
	// picture is the flow, as the page draws it.
	picture []flow.Stage
	// shown is the page where it listens already.
	shown *ui.UI
	// says is where long waits say what they wait for; nil for nowhere.
	says io.Writer
}

// NewApp joins a configuration to brokers that run. It makes no connection.
func NewApp(cfg *Config, brokers []string, instance string, log *slog.Logger) (*App, error) {
	dir, err := filepath.Abs(cfg.RunDir())
	if err != nil {
		return nil, fmt.Errorf("the run's folder: %w", err)
	}
	blobs, err := pipeline.OpenBlobs(filepath.Join(dir, "blobs"))
	if err != nil {
		return nil, err
	}
	log = log.With(logs.Run, cfg.Run.Name, logs.Instance, instance)
	blobs.Configure(cfg.Blobs, log)
	if cfg.Sink.Dir == "" {
		cfg.Sink.Dir = filepath.Join(dir, "parquet")
	}
	cfg.EnvServer.Renderer, cfg.Inference.Renderer = cfg.Model.Renderer, cfg.Model.Renderer
	cfg.EnvServer.Limits = map[string]int{}
	for name, e := range cfg.Envs {
		cfg.EnvServer.Limits[name] = e.Concurrency
	}
	registry, err := pipeline.NewSchemaRegistry(cfg.SchemaRegistry, log)
	if err != nil {
		return nil, errors.Join(err, blobs.Close())
	}
	reg := prometheus.NewRegistry()
	a := &App{Config: cfg, Registry: reg, readers: readers(), picture: picture(), Runtime: &pipeline.Runtime{
		Run: cfg.Run, Brokers: brokers, Kafka: cfg.Kafka, Instance: instance, Blobs: blobs, Scratch: filepath.Join(dir, "scratch"), Schemas: registry, Log: log, Health: &pipeline.Health{},
	}}
	if err := a.instrument(ofRun(cfg.Run.Name, reg)); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// Close releases what the stages shared.
func (a *App) Close() error {
	var errs []error
	for _, c := range a.closers {
		errs = append(errs, c.Close())
	}
	a.Runtime.Tracing.Close()
	return errors.Join(append(errs, a.Runtime.Blobs.Close())...)
}

// Make makes a stage; all its lines say which one it is.
func (a *App) Make(s Stage) (Runner, error) {
	all := a.Runtime
	a.Runtime = all.For(s.Name)
	defer func() { a.Runtime = all }()
	return s.New(a, s)
}

// SetUp makes the run's topics or checks them, and holds the process to the settings the run began with; a run begins when
// its topics are there. stages are those of this process, all if none is named: it asks for no more rights than they need.
func (a *App) SetUp(ctx context.Context, stages ...Stage) error {
	if err := a.Config.asBegun(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if a.Runtime.Schemas != nil {
		if err := a.Runtime.Schemas.Resolve(ctx); err != nil {
			return err
		}
	}
	if err := a.Config.agreeFraming(); err != nil {
		return err
	}
	var needed []pipeline.Right
	for _, s := range stages {
		needed = append(needed, s.Rights(a.Config.Run.Name)...)
	}
	if err := a.Runtime.SetUp(ctx, a.envs(), needed...); err != nil {
		return err
	}
	if err := a.Config.agree(); err != nil {
		return err
	}
	if len(stages) == 0 || slices.ContainsFunc(stages, func(s Stage) bool { return s.Name == "emitter" }) {
		return a.Config.record() // for fleets, and for those who look at the run later
	}
	return nil
}

// envs are the environments this process has to do with.
func (a *App) envs() []string {
	if len(a.Serve) > 0 {
		return a.Serve
	}
	return slices.Sorted(maps.Keys(a.Config.Envs))
}

// openEnvs makes the environments this process serves, with the options of their sections.
func (a *App) openEnvs() (map[string]env.Environment, error) {
	names := a.envs()
	if len(names) == 0 {
		return nil, fmt.Errorf("no environment to serve: --env names one of %v, or the configuration has a section [envs.<name>]", envs.Names())
	}
	open := map[string]env.Environment{}
	for _, name := range names {
		e, err := a.openEnv(name)
		if err != nil {
			return nil, err
		}
		open[name] = e
	}
	return open, nil
}

// strict decodes a table into a struct and refuses what the struct does not have.
func strict(section string, options map[string]any) func(any) error {
	return func(config any) error {
		text, err := toml.Marshal(options)
		if err != nil {
			return fmt.Errorf("%s: %w", section, err)
		}
		err = toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(config)
		if missing, ok := err.(*toml.StrictMissingError); ok {
			return fmt.Errorf("%s has no option %s", section, missing.Errors[0].Key()[0])
		}
		if err != nil {
			return fmt.Errorf("%s: %w", section, err)
		}
		return nil
	}
}
