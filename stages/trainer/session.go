package trainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// session claims the name, on rank 0, finds where the run stands and trains from there. It returns nil after the final
// version.
func (t *Trainer) session(ctx context.Context) error {
	if err := t.open(); err != nil {
		return err
	}
	if !t.alone() {
		defer t.discard() // so that the other ranks notice
	}
	var p writer
	if t.leads() {
		var err error
		if p, err = t.home.claim(ctx); err != nil {
			return err
		}
		defer p.close()
	}
	published, err := t.home.versions(ctx)
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
	t.first = published[0]
	newest := published.newest()
	t.rt.Metrics.Policy(t.as, newest)
	t.metrics.published.WithLabelValues().SetToCurrentTime()
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
	if from.Version == newest.Version {
		t.ready(true)
	}
	defer t.ready(false)
	if err := t.trainFrom(ctx, p, published, from); err != nil {
		return err
	}
	return t.ended(ctx)
}

// open makes what every session needs. Weights that an earlier one kept are no base for a delta: whether their version was
// published is not known.
func (t *Trainer) open() (err error) {
	if t.whole != "" {
		err = os.Remove(t.whole)
		t.whole = ""
	}
	if err != nil {
		return err
	}
	if t.scratch == nil {
		t.scratch, err = openScratch(t.rt.Scratch)
	}
	return err
}

// trainFrom trains every step after a version that the learner holds: those that are published again, the others new. A stop
// lets the step at hand finish, and be published, for a while.
func (t *Trainer) trainFrom(ctx context.Context, p writer, published history, from *schemas.PolicyVersion) (err error) {
	work, cancel := outlive(ctx, stopGrace)
	defer cancel()
	work, fail := context.WithCancelCause(work)
	defer fail(nil)
	f, err := t.feed(ctx, work, from)
	if err != nil {
		return err
	}
	defer f.close()
	t.watch(fail)
	var air errgroup.Group // the version before, while it is published
	defer func() {
		failed, cause := air.Wait(), context.Cause(work)
		switch stopped := errors.Is(err, context.Canceled); {
		case failed != nil && (err == nil || stopped || errors.Is(failed, pipeline.ErrFenced)):
			err = failed
		case stopped && cause != nil:
			err = cause
		}
	}()
	for s, ended := from.Version+1, time.Now(); s <= t.rt.Run.MaxSteps; s++ {
		in, err := f.next()
		if err != nil {
			return err
		}
		in.before, in.waited = ended, time.Since(ended)
		t.rt.Metrics.Waited.WithLabelValues(t.as).Add(in.waited.Seconds())
		if old := published.at(s); old != nil {
			if err := t.replay(work, in, published, old); err != nil {
				return err
			}
			ended = time.Now()
		} else {
			v, err := t.advance(work, in, air.Wait)
			if err != nil {
				return err
			}
			ended = time.Now()
			if !t.leads() {
				t.rt.TraceTrained(t.as, v.training, -1, ended)
				continue
			}
			air.Go(func() error {
				err := t.publish(work, p, v)
				if err != nil {
					fail(err)
				}
				return err
			})
		}
		if s == published.newest().Version {
			t.rt.Log.Info("training resumes", "version", s, "checkpoint", from.Version)
			t.ready(true)
		}
	}
	return nil
}

// made is a version that is trained and not published.
type made struct {
	*schemas.PolicyVersion
	snapshot          Snapshot
	checkpoint        bool // of which there is a checkpoint, too
	config, tokenizer []byte
	refused           []*kgo.Record
	tokens            int64              // of its micro-batches
	began             time.Time          // when the step's batch was there
	figures           map[string]float64 // of the work
	training          pipeline.Training  // for its spans
}

// advance trains a new step. When before has returned it copies what came out: there is one copy at a time.
func (t *Trainer) advance(ctx context.Context, in *prepared, before func() error) (*made, error) {
	began := time.Now()
	m, err := t.train(ctx, in)
	if err != nil {
		return nil, err
	}
	trained := time.Since(began)
	training := pipeline.Training{Step: in.step, Samples: in.samples, Begun: began, Trained: time.Now(), Skipped: m.Skipped}
	if err := before(); err != nil {
		return nil, err
	}
	v := &made{
		PolicyVersion: &schemas.PolicyVersion{
			Version: in.step, Step: in.step, Kind: schemas.KindFull, NextOffsets: in.offsets, Skipped: m.Skipped,
			Metrics: finiteOnly(m.Values), Final: in.step == t.rt.Run.MaxSteps,
		},
		refused: in.refused, tokens: m.Work.Tokens, began: began, training: training,
	}
	v.checkpoint = v.Final || v.Step%t.cfg.CheckpointInterval == 0
	err = t.copyInto(ctx, v)
	v.figures = figuresOf(m.Work, in.waited, trained, time.Since(in.before))
	return v, err
}

// train trains a step. While it works, and after an error, the learner holds no version.
func (t *Trainer) train(ctx context.Context, in *prepared) (Metrics, error) {
	learner := t.learner
	t.learner = nil
	m, err := in.train(ctx)
	if err != nil {
		learner.Close()
		return m, fmt.Errorf("train step %d: %w", in.step, err)
	}
	t.learner, t.holds = learner, in.step
	return m, nil
}

// copyInto copies what the learner holds into v.
func (t *Trainer) copyInto(ctx context.Context, v *made) (err error) {
	v.config, v.tokenizer = t.learner.Files()
	if v.snapshot, err = t.learner.Snapshot(ctx, v.checkpoint); err != nil {
		t.discard()
		return fmt.Errorf("copy version %d: %w", v.Version, err)
	}
	return nil
}
