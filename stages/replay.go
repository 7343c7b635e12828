package stages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/envserver"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/envs"
	"github.com/prl-project/prl/stages/internal/progress"
	"github.com/prl-project/prl/stages/packer"
	"github.com/prl-project/prl/stages/replay"
	"github.com/prl-project/prl/stages/scorer"
	"github.com/prl-project/prl/stages/sink"
)

// ReplayName is the name under which --stage replays a run.
const ReplayName = "replay"

// Modes of a replay.
const (
	ReplayRecompute  = "recompute"
	ReplayRescore    = "rescore"
	ReplayRegenerate = "regenerate"
	ReplayTrain      = "train"
)

// A Replay says how a recorded run is looked at again, and where what is made goes.
type Replay struct {
	Mode string
	// Parquet reads the sink's files instead of the topics.
	Parquet bool
	Topic   string
	Select  replay.Selection
	// NewRewards lets the environments give the rewards anew before groups are recomputed.
	NewRewards bool
	// Eval says how recorded tasks are played again: the environment and the policy, rollouts, temperature, and the eval
	// that goes on.
	Eval EvalByHand
	// DryRun says what would be read and written, and does neither.
	DryRun bool
	// Into is the app of the run that is written to; nil for none.
	Into *App
	// Bar is where the progress is shown.
	Bar io.Writer
}

// Recorded is the section [run] with which the run began.
func (c *Config) Recorded() (pipeline.RunConfig, error) {
	began := struct {
		Run pipeline.RunConfig `toml:"run"`
	}{pipeline.DefaultRunConfig()}
	text, err := os.ReadFile(filepath.Join(c.RunDir(), "run.toml"))
	if err == nil {
		err = toml.Unmarshal(text, &began)
	}
	if err != nil {
		return began.Run, fmt.Errorf("read how the run %q began: %w", c.Run.Name, err)
	}
	return began.Run, nil
}

// Replay looks at the run again under the app's configuration and prints how what it makes compares with what was
// recorded. The run is only read.
func (a *App) Replay(ctx context.Context, out io.Writer, r Replay) error {
	src, recorded, err := a.source(ctx, r)
	if err != nil {
		return err
	}
	for _, line := range changed(recorded, a.Config.Run) {
		fmt.Fprintln(out, line)
	}
	switch r.Mode {
	case ReplayRescore:
		return a.rescore(ctx, out, src, r)
	case ReplayRegenerate:
		return a.regenerate(ctx, out, src, r)
	case ReplayTrain:
		return a.train(ctx, out, src, recorded, r)
	}
	return a.recompute(ctx, out, src, recorded, r)
}

// recomputing is what the replay asks of package replay.
func (a *App) recomputing(ctx context.Context, src replay.Source, recorded pipeline.RunConfig, r Replay) (cfg replay.Config, err error) {
	c := a.Config
	cfg = replay.Config{
		Recorded: recorded, Run: c.Run, Topic: r.Topic, Select: r.Select, Begin: packer.Begin,
		Scorer: scorer.New(c.Run, c.Scorer, c.Emitter.MaxAttempts), Packer: packer.New(c.Run, c.Packer),
	}
	if r.NewRewards {
		cfg.Rescorer, err = a.rescorers(ctx, src)
	}
	return cfg, err
}

// recomputed are the topics that a recompute writes: all that the cores do but requests, which no emitter is to hear.
var recomputed = []string{pipeline.TopicSamples, pipeline.TopicBatches, pipeline.TopicOutcomes, pipeline.TopicMetrics}

func (a *App) recompute(ctx context.Context, out io.Writer, src replay.Source, recorded pipeline.RunConfig, r Replay) error {
	cfg, err := a.recomputing(ctx, src, recorded, r)
	if err != nil {
		return err
	}
	if r.DryRun {
		plan, err := replay.Plan(ctx, src, cfg)
		fmt.Fprint(out, plan, r.Into.plan(recomputed))
		return err
	}
	return r.Into.take(ctx, out, recomputed, func(write writeFunc) error {
		show, end := r.progress()
		cfg.Write, cfg.Progress = write, show
		compared, err := replay.Recompute(ctx, src, cfg)
		end()
		if err == nil {
			fmt.Fprint(out, compared)
		}
		return err
	})
}

func (a *App) rescore(ctx context.Context, out io.Writer, src replay.Source, r Replay) error {
	rescorer, err := a.rescorers(ctx, src)
	if err != nil {
		return err
	}
	cfg := replay.RescoreConfig{Topic: r.Topic, Select: r.Select, Rescorer: rescorer}
	topics := []string{r.Topic}
	if r.DryRun {
		plan, err := replay.PlanRescore(src, cfg)
		if err == nil {
			fmt.Fprint(out, plan, r.Into.plan(topics))
		}
		return err
	}
	return r.Into.take(ctx, out, topics, func(write writeFunc) error {
		show, end := r.progress()
		cfg.Write, cfg.Progress = write, show
		compared, err := replay.Rescore(ctx, src, cfg)
		end()
		if err == nil {
			fmt.Fprint(out, compared)
		}
		return err
	})
}

// rescorers opens environments, with the options of their sections, as they are asked for.
func (a *App) rescorers(ctx context.Context, src replay.Source) (func(name string) (replay.Rescorer, error), error) {
	policies, err := replay.Policies(ctx, src)
	if err != nil {
		return nil, fmt.Errorf("new rewards: %w", err)
	}
	tokenizer, err := a.Runtime.Blobs.Get(ctx, policies[0].Tokenizer)
	if err != nil {
		return nil, fmt.Errorf("new rewards: the run's tokenizer: %w", err)
	}
	tokenRewards, err := envserver.TokenRewards(a.Config.Model.Renderer, tokenizer)
	if err != nil {
		return nil, fmt.Errorf("new rewards: the run's tokenizer: %w", err)
	}
	open := map[string]replay.Rescorer{}
	return func(name string) (replay.Rescorer, error) {
		if r, ok := open[name]; ok {
			return r, nil
		}
		if source := a.Config.Envs[name].Source; source != "" {
			return replay.Rescorer{}, fmt.Errorf("environment %s cannot score a recorded conversation: %s cannot", name, source)
		}
		options := a.Config.Envs[name].Options
		e, err := envs.Open(name, strict("envs."+name+".options", options))
		if err != nil {
			return replay.Rescorer{}, err
		}
		rescorer, ok := e.(env.Rescorer)
		if _, groups := e.(env.GroupScorer); groups || !ok {
			return replay.Rescorer{}, fmt.Errorf("environment %s cannot score a recorded conversation: it has no Rescore (package env), or scores whole groups", name)
		}
		text, err := json.Marshal(options) // keys in order
		if err != nil {
			return replay.Rescorer{}, fmt.Errorf("envs.%s.options: %w", name, err)
		}
		open[name] = replay.Rescorer{
			Env: rescorer, TokenRewards: tokenRewards, Timeout: time.Duration(a.Config.EnvServer.EnvTimeout),
			MaxAttempts: a.Config.Emitter.MaxAttempts, Version: fmt.Sprintf("%s+%x", e.Info().Version, env.Hash(string(text))),
		}
		return open[name], nil
	}, nil
}

// progress shows a bar; end leaves it.
func (r Replay) progress() (show replay.Progress, end func()) { return showing(r.Bar) }

// showing shows a bar; end leaves it.
func showing(out io.Writer) (show func(what string, done, total int64), end func()) {
	bar := progress.NewPrinter(out)
	return func(what string, done, total int64) {
		bar.ShowBar(progress.Bar{Done: int(done), Total: int(total), Note: what}, time.Now())
	}, bar.Close
}

// topics are those that the replay reads.
func (r Replay) topics() []string {
	read := []string{r.Topic}
	if r.Mode == ReplayRecompute || r.Mode == ReplayTrain {
		read = append(read, pipeline.TopicSamples, pipeline.TopicOutcomes, pipeline.TopicBatches)
	}
	if r.Mode != ReplayRecompute || r.NewRewards {
		read = append(read, pipeline.TopicPolicies)
	}
	return read
}

// source opens what the app's run has recorded. Whatever the configuration says of the run, its topics are those it began
// with.
func (a *App) source(ctx context.Context, r Replay) (replay.Source, pipeline.RunConfig, error) {
	recorded, err := a.Config.Recorded()
	if err == nil && len(a.Config.SchemaRegistry.URLs) == 0 {
		err = a.Config.agreeFraming()
	}
	if err != nil {
		return nil, recorded, fmt.Errorf("replay: %w", err)
	}
	rt := *a.Runtime
	rt.Run = recorded
	if r.Parquet {
		src, err := replay.FromParquet(&rt, a.Config.Sink.Dir, r.topics()...)
		return src, recorded, err
	}
	src, err := replay.FromTopics(ctx, &rt, r.topics()...)
	return src, recorded, err
}

type writeFunc = func(ctx context.Context, made []pipeline.Emission) error

// plan says what take would do; a is nil where nothing is written.
func (a *App) plan(topics []string) string {
	if a == nil {
		return ""
	}
	return fmt.Sprintf("would write %s to the topics of run %s, and its Parquet files to %s\n", strings.Join(topics, ", "), a.Config.Run.Name, a.Config.Sink.Dir)
}

// take lets make write to topics of the app's run, whose Parquet files follow. Without an app nothing is written.
func (a *App) take(ctx context.Context, out io.Writer, topics []string, make func(writeFunc) error) error {
	if a == nil {
		return make(nil)
	}
	if err := a.SetUp(ctx); err != nil {
		return err
	}
	if err := a.write(ctx, out, topics, make); err != nil {
		return err
	}
	if err := a.WriteFiles(ctx); err != nil {
		return err
	}
	fmt.Fprint(out, a.query())
	return nil
}

// WriteFiles writes what there is in the topics to the Parquet files of the run.
func (a *App) WriteFiles(ctx context.Context) error {
	s, err := sink.New(a.Runtime, a.Config.Sink)
	if err != nil {
		return err
	}
	written, stop := context.WithCancel(ctx)
	stop() // the sink writes what there is before it stops
	if err := s.Run(written); err != nil {
		return fmt.Errorf("write the Parquet files of run %s: %w", a.Config.Run.Name, err)
	}
	return nil
}

// write lets make write to topics of the app's run, which exist.
func (a *App) write(ctx context.Context, out io.Writer, topics []string, make func(writeFunc) error) error {
	w, err := replay.OpenWriter(ctx, a.Runtime, topics...)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := make(w.Write); err != nil {
		return err
	}
	if err := w.End(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "Run %s: %d records written, %d were there.\n", a.Config.Run.Name, w.Written, w.Found)
	return nil
}

// changed lists the settings of [run] that are not those the run began with.
func changed(was, is pipeline.RunConfig) (lines []string) {
	a, err := toml.Marshal(was)
	b, err2 := toml.Marshal(is)
	if errors.Join(err, err2) != nil {
		return nil // they were read from TOML
	}
	before, after := strings.Split(string(a), "\n"), strings.Split(string(b), "\n")
	for i := range min(len(before), len(after)) {
		if before[i] != after[i] {
			lines = append(lines, fmt.Sprintf("run.%s, recorded with %s", after[i], before[i]))
		}
	}
	return lines
}
