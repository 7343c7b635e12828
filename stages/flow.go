// Package stages joins the stages of prl: one table says what each reads and writes, and everything that needs to know
// the flow (the binary, the topics, the documentation) is derived from it.
package stages

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/board"
	"github.com/prl-project/prl/stages/cleanup"
	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/eval"
	"github.com/prl-project/prl/stages/export"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/packer"
	"github.com/prl-project/prl/stages/scorer"
	"github.com/prl-project/prl/stages/sink"
	"github.com/prl-project/prl/stages/trainer"
	"github.com/prl-project/prl/stages/ui"
)

// A Kind says what shell a stage has.
type Kind string

const (
	// Core is a pure core under pipeline.Processor: everything it writes is in the transaction of its input offsets.
	Core Kind = "core"
	// LongWork is a core under pipeline.Processor that works in the background and writes as it finishes.
	LongWork Kind = "long work"
	// Special is a shell of the stage's own.
	Special Kind = "special"
)

// AllTasks stands for the topics tasks.<env> of all environments.
var AllTasks = pipeline.TopicTasks("<env>")

// A Stage is one row of the flow.
type Stage struct {
	Name   string
	Does   string   // in a few words
	Kind   Kind     //
	Reads  []string // topics it consumes, each record once
	Tables []string // topics every instance reads whole
	Writes []string // topics it writes; every stage with a Processor also writes state and dlq
	// Deletes are topics of which it deletes records, having read what is left of them.
	Deletes []string
	// Proof are topics that hold records only after it has worked: then there must be state of it.
	Proof []string
	Key   string // what its work is divided by
	// TransactionTimeout is the broker's patience with one transaction; 0 for the shell's default.
	TransactionTimeout time.Duration
	// Named says that a special stage writes under the name of its own that each process of it has.
	Named bool
	// Aside says that the flow does without it: the page's picture leaves it out.
	Aside bool
	// Optional says whether the stage is part of --stage all; nil for always.
	Optional func(c *Config) bool
	// New makes the stage; Run starts it.
	New func(a *App, s Stage) (Runner, error)
}

// A Runner is a stage that is ready to run: Run blocks until ctx ends or it fails, and owns what it starts.
type Runner interface {
	Run(ctx context.Context) error
}

// Flow is the table of all stages.
var Flow = []Stage{
	{
		Name: "emitter", Does: "picks environments by weight and writes tasks", Kind: Core, Key: "one active",
		Reads:  []string{pipeline.TopicOutcomes, pipeline.TopicRequests},
		Tables: []string{pipeline.TopicPolicies, pipeline.TopicEnvs, pipeline.TopicState},
		Writes: []string{AllTasks, pipeline.TopicTraces},
		Proof:  []string{pipeline.TopicSamples},
		New: func(a *App, s Stage) (Runner, error) {
			core, err := emitter.New(a.Config.Run, a.Config.Emitter, a.Config.Envs)
			if err != nil {
				return nil, err
			}
			meter, err := emitter.NewMeter(a.Runtime.Registry)
			return a.processor(s, core, meter, err)
		},
	},
	{
		Name: "inference", Does: "serves the newest policy, pinned and frozen ones", Kind: Special, Key: "request",
		Tables: []string{pipeline.TopicPolicies},
		New: func(a *App, s Stage) (Runner, error) {
			server, err := a.newInference()
			if err != nil {
				return nil, err
			}
			a.Model = server.Model()
			return server, nil
		},
	},
	{
		Name: "envserver", Does: "runs rollouts of environments", Kind: LongWork, Key: "partition of tasks",
		Reads:  []string{AllTasks},
		Tables: []string{pipeline.TopicPolicies, pipeline.TopicOutcomes},
		Writes: []string{pipeline.TopicTraces, pipeline.TopicEvalTraces, pipeline.TopicEnvs},
		New: func(a *App, s Stage) (Runner, error) {
			envs, err := a.openEnvs()
			if err != nil {
				return nil, err
			}
			home := a.Model
			if home == nil {
				client := inference.NewClient(a.Config.EnvServer.ModelURL)
				client.Token = a.Config.Inference.Token.Reveal()
				home = client
			}
			directory := inference.NewDirectory(home, a.Config.Frozen, a.uses(), a.Runtime.Log)
			directory.Renderer = a.Config.Model.Renderer
			server, err := a.newEnvServer(envs, directory)
			if err == nil && a.measures != nil {
				server.Only(a.measures.Plays, a.measures.Announce)
			}
			return server, err
		},
	},
	{
		Name: "scorer", Does: "groups traces, asks for failed ones again, filters, computes advantages", Kind: Core, Key: "group",
		Reads:  []string{pipeline.TopicTraces},
		Writes: []string{pipeline.TopicSamples, pipeline.TopicRequests},
		Proof:  []string{pipeline.TopicSamples},
		New: func(a *App, s Stage) (Runner, error) {
			meter, err := scorer.NewMeter(a.Runtime.Registry)
			return a.processor(s, scorer.New(a.Config.Run, a.Config.Scorer, a.Config.Emitter.MaxAttempts), meter, err)
		},
	},
	{
		Name: "packer", Does: "sweeps the stale, cuts steps, packs and balances micro-batches", Kind: Core, Key: "one active",
		TransactionTimeout: time.Minute, // a step is one transaction
		Reads:              []string{pipeline.TopicSamples},
		Writes:             []string{pipeline.TopicBatches, pipeline.TopicOutcomes, pipeline.TopicRequests, pipeline.TopicMetrics},
		Proof:              []string{pipeline.TopicBatches},
		New: func(a *App, s Stage) (Runner, error) {
			meter, err := packer.NewMeter(a.Runtime.Registry, slices.Sorted(maps.Keys(a.Config.Envs)))
			return a.processor(s, packer.New(a.Config.Run, a.Config.Packer), meter, err)
		},
	},
	{
		Name: "trainer", Does: "optimizer steps; publishes policy versions", Kind: Special, Key: "rank",
		Reads:  []string{pipeline.TopicBatches},
		Tables: []string{pipeline.TopicPolicies},
		Writes: []string{pipeline.TopicPolicies, pipeline.TopicMetrics, pipeline.TopicDLQ},
		New: func(a *App, s Stage) (Runner, error) {
			return trainer.New(a.Runtime, a.Config.Trainer, a.Config.Model)
		},
	},
	{
		Name: "eval", Does: "measures policy versions on held-out tasks", Kind: Core, Key: "one active",
		Reads:  []string{pipeline.TopicEvalTraces},
		Tables: []string{pipeline.TopicPolicies, pipeline.TopicEnvs, pipeline.TopicState},
		Writes: []string{AllTasks, pipeline.TopicEvalTraces, pipeline.TopicOutcomes, pipeline.TopicEvals},
		Proof:  []string{pipeline.TopicEvals},
		New: func(a *App, s Stage) (Runner, error) {
			core, err := eval.New(a.Config.Run, a.Config.Emitter, a.Config.Envs, a.Config.Evals)
			if err != nil {
				return nil, err
			}
			meter, err := eval.NewMeter(a.Runtime.Registry)
			return a.processor(s, core, meter, err)
		},
	},
	{
		Name: "sink", Does: "writes every topic to Parquet", Kind: Special, Key: "partition",
		Reads: []string{
			pipeline.TopicEnvs, AllTasks, pipeline.TopicTraces, pipeline.TopicEvalTraces, pipeline.TopicSamples,
			pipeline.TopicOutcomes, pipeline.TopicRequests, pipeline.TopicBatches, pipeline.TopicPolicies,
			pipeline.TopicEvals, pipeline.TopicMetrics, pipeline.TopicState, pipeline.TopicDLQ,
		},
		New: func(a *App, s Stage) (Runner, error) { return sink.New(a.Runtime, a.Config.Sink) },
	},
	{
		Name: "cleanup", Does: "deletes records and blobs that nobody needs any more", Kind: Special, Key: "one is enough",
		Tables:   []string{pipeline.TopicState, pipeline.TopicPolicies, pipeline.TopicEvals},
		Deletes:  []string{AllTasks, pipeline.TopicTraces, pipeline.TopicEvalTraces, pipeline.TopicSamples, pipeline.TopicBatches},
		Optional: func(c *Config) bool { return c.Cleanup.Every > 0 },
		New: func(a *App, s Stage) (Runner, error) {
			return cleanup.New(a.Runtime, a.Config.Cleanup, a.Config.Sink.Dir, a.readers, a.Config.Evals)
		},
	},
	{
		Name: ui.Name, Does: "shows the run to people", Kind: Special, Key: "as many as one likes", Aside: true,
		Tables:   ui.Topics(AllTasks),
		Optional: func(c *Config) bool { return c.UI.Enabled },
		New:      func(a *App, s Stage) (Runner, error) { return a.page(ui.Options{Live: true}) },
	},
	{
		Name: board.Name, Does: "writes the curves as TensorBoard's event files", Kind: Special, Key: "one is enough", Aside: true,
		Tables:   board.Topics,
		Optional: func(c *Config) bool { return c.Board.Enabled },
		New:      func(a *App, s Stage) (Runner, error) { return a.board() },
	},
	{
		Name: export.Name, Does: "makes conversations to train on of the best rollouts", Kind: Special, Key: "folder", Aside: true,
		Tables: []string{
			pipeline.TopicTraces, pipeline.TopicEvalTraces, pipeline.TopicOutcomes, pipeline.TopicEnvs, pipeline.TopicPolicies,
		},
		Optional: func(*Config) bool { return false }, // each export has its own selection
		New:      func(a *App, s Stage) (Runner, error) { return a.exporter() },
	},
	{
		Name: trainer.Shadow, Does: "trains the same batches with settings of its own, and publishes nothing", Kind: Special, Key: "name", Aside: true, Named: true,
		Reads:    []string{pipeline.TopicBatches},
		Tables:   []string{pipeline.TopicPolicies, pipeline.TopicMetrics},
		Writes:   []string{pipeline.TopicMetrics},
		Optional: func(*Config) bool { return false }, // its settings of [trainer] are not the run's
		New:      func(a *App, s Stage) (Runner, error) { return a.shadow() },
	},
}

// readers are, by the name in pipeline.Topics, the stages that keep state on what they have read of a topic.
func readers() map[string][]string {
	by := map[string][]string{}
	for _, s := range Flow {
		if s.Kind == Special {
			continue
		}
		for _, topic := range s.Reads {
			if t, ok := pipeline.TopicOf(topic); ok {
				by[t.Name] = append(by[t.Name], s.Name)
			}
		}
	}
	return by
}

// Find is the stage of a name.
func Find(name string) (Stage, error) {
	var names []string
	for _, s := range Flow {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Stage{}, fmt.Errorf("no stage %q; there are all, broker, setup, audit, top, replay, %s", name, strings.Join(names, ", "))
}

// processor makes the shell of a core from its row; err is that of the making of the meter.
func (a *App) processor(s Stage, core func(int32, []byte) (pipeline.Core, error), meter pipeline.Meter, err error) (Runner, error) {
	if err != nil {
		return nil, err
	}
	return pipeline.NewProcessor(a.Runtime, pipeline.ProcessorConfig{
		Stage: s.Name, Inputs: s.Reads, Tables: s.Tables, Proof: s.Proof, New: core, Meter: meter, TransactionTimeout: s.TransactionTimeout,
	})
}
