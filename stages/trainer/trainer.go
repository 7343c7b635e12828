// Package trainer makes exactly one policy version of every step of a run, in order, whatever crashes: a step is trained
// once or made again to the same bytes, and a version is published once.
//
//	Reads   batches: rank r's partition by assignment, from the offsets of the version it resumes at; policies, to their end
//	Writes  policies: one PolicyVersion per step, the commit of the step; metrics: the step's figures, with it
//	Key     one constant (policies), the metric's name (metrics)
//	State   none of its own: the PolicyVersion holds the offsets, the blob store the weights and optimizer states
//	On replay  the last version with a checkpoint is loaded and the batches after it are trained again; what is published
//	           already is compared with what comes out, not published again
//
// Order of work: optimizer step, weights (and every checkpoint_interval steps the optimizer's state) to the blob store,
// then PolicyVersion and metrics in one transaction under the id <run>.trainer. A start claims that id first, which
// aborts what a predecessor left open and fences one that still lives; only then policies are read, so that nothing can
// be added to them behind its back. Version 0 is published before anything else; a run that begins from a version of another
// one has that instead (Begin).
//
// The loss is the sum of up to three components (loss.go), each over its own tokens and divided by their number in the
// whole step, over all ranks and micro-batches: rl (policy gradient, with one of five ways to bound it), ce (cross-entropy)
// and ref_kl (divergence from a teacher). What the batch says of its tokens decides which components a step has.
//
// What trains is a [Learner]: plain Go ([Native]), or PyTorch in a worker process ([Torch]), which is not exact: there a
// replay makes the same weights up to rounding, and those that were published count.
//
// Hard guarantees, each with a test of its name: TrainedOnce (I2: the versions are a chain without gaps and their
// offsets do not overlap), Staleness (I3: asserted for every sample), Crash (I4: SIGKILL at any place gives the same
// weights), Determinism (I6: on a learner that is Exact).
package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/twmb/franz-go/pkg/kgo"

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
	newLearner func() (Learner, error)
	metrics    *stageMetrics

	learner Learner // nil, or it holds the version held
	held    held
}

// held names the version a learner holds.
type held struct {
	version int64
	sha256  string
}

// New checks the configuration; Run starts the work.
func New(rt *pipeline.Runtime, cfg Config, model ModelConfig) (*Trainer, error) {
	if err := errors.Join(rt.Run.Validate(), cfg.Validate(), cfg.check(rt.Run), model.Validate()); err != nil {
		return nil, err
	}
	if model.MaxPosition > rt.Run.SeqLen {
		return nil, fmt.Errorf("model.max_position = %d: at most run.seq_len = %d, or a sample could be longer than a micro-batch", model.MaxPosition, rt.Run.SeqLen)
	}
	metrics, err := newStageMetrics(rt.Registry)
	if err != nil {
		return nil, err
	}
	rt.Health.Set(stage, false)
	return &Trainer{rt: rt, cfg: cfg, newLearner: learners(rt.Run, cfg, model), metrics: metrics}, nil
}

// learners makes the learners of a trainer, one after the other.
func learners(run pipeline.RunConfig, cfg Config, model ModelConfig) func() (Learner, error) {
	switch cfg.Learner {
	case LearnerNull:
		return func() (Learner, error) { return NewNull(run, model) }
	case LearnerTorch:
		deaths := new(deaths)
		return func() (Learner, error) { return NewTorch(run, cfg, model, deaths) }
	}
	return func() (Learner, error) { return NewNative(run, cfg, model) }
}

// Run trains until the final version is published, or until ctx ends: then it finishes the step at hand, for a while, and
// returns nil. It returns an error that is ErrFenced or ErrFatal; after all others it starts over from what is published.
func (t *Trainer) Run(ctx context.Context) error {
	defer t.discard()
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 200*time.Millisecond, 5*time.Second
	for {
		start := time.Now()
		err := t.session(ctx)
		switch {
		case err == nil, ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
			return nil
		case errors.Is(err, pipeline.ErrFatal), errors.Is(err, pipeline.ErrFenced):
			return fmt.Errorf("%s: %w", stage, err)
		}
		if time.Since(start) > time.Minute {
			pause.Reset()
		}
		t.rt.Log.Warn("stage starts over", "stage", stage, "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// session claims the name, finds where the run stands and trains from there. It returns nil after the final version.
func (t *Trainer) session(ctx context.Context) error {
	p, err := claim(ctx, t.rt)
	if err != nil {
		return err
	}
	defer p.close()
	published, err := versions(ctx, t.rt)
	if err != nil {
		return err
	}
	if len(published) == 0 {
		first, err := t.versionZero(ctx, p)
		if err != nil {
			return err
		}
		published = append(published, first)
	}
	newest := published.newest()
	if newest.Final {
		return nil
	}
	if newest.Version >= t.rt.Run.MaxSteps {
		return pipeline.Fatal("version %d is published and not final, run.max_steps = %d: raise it above what is trained", newest.Version, t.rt.Run.MaxSteps)
	}
	from, err := t.resume(ctx, published)
	if err != nil {
		return err
	}
	b, err := openBatches(t.rt, from.NextOffsets)
	if err != nil {
		return err
	}
	defer b.close()
	if from.Version == newest.Version {
		t.ready(true)
	}
	defer t.ready(false)
	for s := from.Version + 1; s <= t.rt.Run.MaxSteps; s++ {
		micro, err := b.step(ctx, s)
		if err != nil {
			return err
		}
		if s <= newest.Version {
			b.refuse() // it is in dlq, with the version
			err = t.replay(ctx, micro, b.offsets(), published.at(s))
		} else {
			err = t.advance(ctx, micro, b.offsets(), b.refuse(), p)
		}
		if err != nil {
			return err
		}
		if s == newest.Version {
			t.rt.Log.Info("training resumes", "version", s, "checkpoint", from.Version)
			t.ready(true)
		}
	}
	return nil
}

func (t *Trainer) ready(ok bool) { t.rt.Health.Set(stage, ok) }

// advance trains a new step and publishes its version. A stop lets it finish, for a while.
func (t *Trainer) advance(ctx context.Context, micro []*schemas.MicroBatch, offsets []int64, refused []*kgo.Record, p *publisher) error {
	ctx, cancel := outlive(ctx, stopGrace)
	defer cancel()
	start := time.Now()
	v, weights, err := t.train(ctx, micro, offsets)
	if err != nil {
		return err
	}
	v.Final = v.Step == t.rt.Run.MaxSteps
	withCheckpoint := v.Final || v.Step%t.cfg.CheckpointInterval == 0
	if err := t.publish(ctx, p, v, weights, withCheckpoint, refused); err != nil {
		return err
	}
	t.metrics.trained(v, time.Since(start))
	if v.Skipped {
		t.rt.Log.Warn("the gradient was not finite: no update", "step", v.Step)
	}
	return nil
}

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
