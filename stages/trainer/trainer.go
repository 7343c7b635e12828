// Package trainer makes exactly one policy version of every step of a run, in order, whatever crashes: a step is trained
// once or made again to the same bytes, and a version is published once.
//
//	Reads   batches: by assignment, from the offsets of the version it resumes at; policies, to their end
//	Writes  policies: one PolicyVersion per step, the commit of the step; metrics: the step's figures, with it
//	Key     one constant (policies), the metric's name (metrics)
//	State   none of its own: the PolicyVersion holds the offsets, the blob store the weights and optimizer states
//	On replay  the last version with a checkpoint is loaded and the batches after it are trained again; what is published
//	           already is compared with what comes out, not published again
//
// Order of work: optimizer step, weights (and every checkpoint_interval steps the optimizer's state) to the blob store,
// then PolicyVersion and metrics in one transaction under the id <run>.trainer. While a step is trained the batches of the
// next are read and handed to the learner, and the version before is stored and published: never more than one of either. A start claims that id first, which
// aborts what a predecessor left open and fences one that still lives; only then policies are read, so that nothing can
// be added to them behind its back. Version 0 is published before anything else; a run that begins from a version of another
// one has that instead (Begin).
//
// The loss is the sum of up to three components (loss.go), each over its own tokens and divided by their number in the
// whole step, over all ranks and micro-batches: rl (policy gradient, with one of five ways to bound it), ce (cross-entropy)
// and ref_kl (divergence from a teacher). What the batch says of its tokens decides which components a step has.
//
// What trains is a [Learner]: plain Go ([Native]), or PyTorch in a worker process ([Torch]), which is not exact: there a
// replay makes the same weights up to rounding, and those that were published are loaded after every step of it.
//
// Several processes, each with a worker and a GPU, may train together (ranks.go): rank 0 does what stands here, the others
// read their partitions of batches, write nothing, and start over with it.
//
// Hard guarantees, each with a test of its name: TrainedOnce (I2: the versions are a chain without gaps and their
// offsets do not overlap), Staleness (I3: asserted for every sample), Crash (I4: SIGKILL at any place gives the same
// weights), Determinism (I6: on a learner that is Exact).
package trainer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

const (
	stage = "trainer"
	// loadDeadline bounds claiming the name and reading policies.
	loadDeadline = 30 * time.Second
	// stopGrace is how long a stop waits for the step at hand; then it is given up, and trained again at the next start.
	stopGrace = 10 * time.Second
)

// Trainer is the stage.
type Trainer struct {
	rt         *pipeline.Runtime
	cfg        Config
	model      ModelConfig
	newLearner func(ctx context.Context, base string) (Learner, error) // base: see NewTorch
	metrics    *stageMetrics
	as         string            // the stage's name
	source     *pipeline.Runtime // whose batches are trained
	home       home              // of the versions

	learner Learner // nil, or it holds a version whole, that of number holds
	holds   int64
	stored  stored
	files   modelFiles
	first   *schemas.PolicyVersion // with which the run began
	whole   string                 // a file with the weights stored last, where a delta of them may come
	scratch *scratch
	lead    net.Conn // of another rank: open as long as rank 0's worker is there
}

// stored names the version whose weights this process has stored last.
type stored struct {
	version int64
	sha256  string
}

// New checks the configuration; Run starts the work.
func New(rt *pipeline.Runtime, cfg Config, model ModelConfig) (*Trainer, error) {
	return newTrainer(rt, stage, cfg, model)
}

// newTrainer makes a trainer of the run's batches and versions, under the name of a stage.
func newTrainer(rt *pipeline.Runtime, as string, cfg Config, model ModelConfig) (*Trainer, error) {
	if err := cfg.ValidateFor(rt.Run, model); err != nil {
		return nil, err
	}
	metrics, err := newStageMetrics(rt.Registry, as)
	if err != nil {
		return nil, err
	}
	rt.Health.Set(as, false)
	return &Trainer{
		rt: rt, cfg: cfg, model: model, newLearner: metrics.counted(cfg, learners(rt.Run, cfg, model)), metrics: metrics,
		as: as, source: rt, home: inTopics{rt},
	}, nil
}

// learners makes the learners of a trainer, one after the other.
func learners(run pipeline.RunConfig, cfg Config, model ModelConfig) func(ctx context.Context, base string) (Learner, error) {
	switch cfg.Learner {
	case LearnerNull:
		return func(context.Context, string) (Learner, error) { return NewNull(run, model) }
	case LearnerTorch:
		deaths := new(deaths)
		return func(ctx context.Context, base string) (Learner, error) {
			return NewTorch(ctx, run, cfg, model, base, deaths)
		}
	}
	return func(context.Context, string) (Learner, error) { return NewNative(run, cfg, model) }
}

// Run trains until the final version is published, or until ctx ends: then it finishes the step at hand, for a while, and
// returns nil. It returns an error that is ErrFenced or ErrFatal; after all others it starts over from what is published.
func (t *Trainer) Run(ctx context.Context) error {
	defer t.end()
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 200*time.Millisecond, 5*time.Second
	for {
		start := time.Now()
		err := t.session(ctx)
		switch {
		case err == nil, ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
			return nil
		case errors.Is(err, pipeline.ErrFatal), errors.Is(err, pipeline.ErrFenced):
			return fmt.Errorf("%s: %w", t.as, err)
		}
		if time.Since(start) > time.Minute {
			pause.Reset()
		}
		t.rt.Wrote(t.as, err)
		t.outOfMemory(err)
		t.rt.Metrics.Restarts.WithLabelValues(t.as).Inc()
		t.rt.Log.Warn("stage starts over", "stage", t.as, "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// end gives up what Run has made.
func (t *Trainer) end() {
	t.discard()
	if t.scratch == nil {
		return
	}
	if err := t.scratch.remove(); err != nil {
		t.rt.Log.Warn("files in the making are left", "stage", t.as, "error", err)
	}
	t.scratch = nil
}

func (t *Trainer) ready(ok bool) { t.rt.Health.Set(t.as, ok) }

// outlive is a context that ends wait after ctx does.
func outlive(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-work.Done():
		case <-time.After(wait):
			cancel()
		}
	})
	return work, func() { stop(); cancel() }
}
