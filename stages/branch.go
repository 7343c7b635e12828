package stages

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/eval"
	"github.com/prl-project/prl/stages/packer"
	"github.com/prl-project/prl/stages/scorer"
	"github.com/prl-project/prl/stages/trainer"
)

// An Origin is what a new run takes over from a policy version of another one: weights and optimizer state, so that its
// versions go on from there, where the emitter stood (its generator, ids and each environment's tasks), and the moving
// averages of rewards. All records are the new run's own, so no run ever holds two truths about one step.
type Origin struct {
	Run     string
	Version int64

	policy  *schemas.PolicyVersion
	emitter []byte // its state when the step of the version was packed
	scorer  []byte // the same; nil where no algorithm keeps anything
	blobs   string // folder
}

// ParseOrigin reads RUN@VERSION.
func ParseOrigin(text string) (*Origin, error) {
	run, version, ok := strings.Cut(text, "@")
	n, err := strconv.ParseInt(version, 10, 64)
	if !ok || run == "" || err != nil || n < 0 {
		return nil, fmt.Errorf("--from %q: a run and one of its policy versions, such as demo@40", text)
	}
	return &Origin{Run: run, Version: n}, nil
}

// Read looks up what there is to take over. The app is of the origin's run; nothing is written to it.
func (o *Origin) Read(ctx context.Context, a *App) (err error) {
	if o.policy, err = trainer.Origin(ctx, a.Runtime, o.Version); err != nil {
		return err
	}
	o.blobs = filepath.Join(a.Config.RunDir(), "blobs")
	cfg := a.Config
	var before bool
	if o.emitter, before, err = a.stateBefore(ctx, "emitter", func(state []byte) (bool, error) {
		return emitter.Before(cfg.Run, cfg.Emitter, cfg.Envs, state, o.Version)
	}); err != nil {
		return err
	}
	const gone = "its states from the time of the version are gone: the new run goes on where the oldest that is left stood"
	if !before {
		a.Runtime.Log.Warn(gone, "stage", "emitter", "run", o.Run, "version", o.Version)
	}
	if cfg.Run.TracePartitions != 1 {
		return nil // no averages
	}
	_, next, err := emitter.Begin(cfg.Run, cfg.Emitter, cfg.Envs, o.emitter, o.Version)
	if err != nil {
		return err
	}
	o.scorer, before, err = a.stateBefore(ctx, "scorer", func(state []byte) (bool, error) { return scorer.Before(state, next) })
	if err == nil && !before {
		a.Runtime.Log.Warn(gone, "stage", "scorer", "run", o.Run, "version", o.Version)
	}
	return err
}

// stateBefore is the last state of a stage's first partition of which before is true, or, where compaction has taken those,
// the first that is left; nil where there is none.
func (a *App) stateBefore(ctx context.Context, stage string, before func(state []byte) (bool, error)) (state []byte, found bool, err error) {
	err = a.Runtime.States(ctx, stage, func(s *schemas.StageState) (more bool, err error) {
		if s.Partition != 0 || len(s.Core) == 0 {
			return true, nil
		}
		earlier, err := before(s.Core)
		if err != nil || !earlier && state != nil {
			return false, err
		}
		state, found = s.Core, earlier
		return true, nil
	})
	return state, found || state == nil, err
}

// Begun reports whether the app's run has begun at the origin. That it has begun otherwise is an error.
func (a *App) Begun(ctx context.Context, o *Origin) (bool, error) {
	return trainer.Begun(ctx, a.Runtime, o.Run, o.Version)
}

// Begin makes the app's run begin at the origin. The run's topics are there; a run that has begun so already stays as it
// is, and any other that has begun is refused.
func (a *App) Begin(ctx context.Context, o *Origin) (err error) {
	if o.Version >= a.Config.Run.MaxSteps {
		return fmt.Errorf("--from %s@%d with run.max_steps = %d: the run would have ended; raise it above the version", o.Run, o.Version, a.Config.Run.MaxSteps)
	}
	blobs, err := pipeline.OpenBlobs(o.blobs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, blobs.Close()) }()
	core, next, err := emitter.Begin(a.Config.Run, a.Config.Emitter, a.Config.Envs, o.emitter, o.Version)
	if err != nil {
		return fmt.Errorf("begin from %s@%d: %w", o.Run, o.Version, err)
	}
	var states []*schemas.StageState
	for _, s := range []struct {
		stage, topic string
		core         func() ([]byte, error)
	}{
		{"emitter", pipeline.TopicOutcomes, func() ([]byte, error) { return core, nil }},
		{"packer", pipeline.TopicSamples, func() ([]byte, error) { return packer.Begin(o.Version, next) }},
		{"scorer", pipeline.TopicTraces, func() ([]byte, error) { return scorer.Begin(o.scorer) }},
		{"eval", pipeline.TopicEvalTraces, func() ([]byte, error) { return eval.Begin(o.Version) }},
	} {
		core, err := s.core()
		if err != nil {
			return fmt.Errorf("begin from %s@%d: state of the %s: %w", o.Run, o.Version, s.stage, err)
		}
		if len(core) == 0 {
			continue
		}
		states = append(states, &schemas.StageState{Stage: s.stage, Topic: s.topic, Instance: "from-" + o.Run, Core: core})
	}
	return trainer.Begin(ctx, a.Runtime, o.Run, blobs, o.policy, states)
}
