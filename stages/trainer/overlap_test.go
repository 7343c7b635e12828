package trainer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// overlapping is a learner whose step 1 does not end before step 2 is handed over, and whose version 1 is not written before
// step 2 is trained.
type overlapping struct {
	Learner
	t                 *testing.T
	handed2, trained2 chan struct{}
	holds             *int64 // the version that was copied last, while it is not published
	published         func() int64
}

func (o overlapping) await(what string, done chan struct{}) {
	select {
	case <-done:
	case <-time.After(deadline):
		o.t.Errorf("%s does not come", what)
	}
}

func (o overlapping) Prepare(ctx context.Context, step int64, micro []*schemas.MicroBatch) (Step, error) {
	train, err := o.Learner.Prepare(ctx, step, micro)
	if step == 2 {
		close(o.handed2)
	}
	return func(ctx context.Context) (Metrics, error) {
		if step == 1 {
			o.await("the batch of step 2, while step 1 is trained,", o.handed2)
		}
		m, err := train(ctx)
		if step == 2 {
			close(o.trained2)
		}
		*o.holds = step
		return m, err
	}, err
}

func (o overlapping) Snapshot(ctx context.Context, checkpoint bool) (Snapshot, error) {
	s, err := o.Learner.Snapshot(ctx, checkpoint)
	if last := o.published(); last != *o.holds-1 {
		o.t.Errorf("version %d is copied while the newest that is published is %d", *o.holds, last)
	}
	if *o.holds == 1 {
		return slow{s, func() { o.await("the end of step 2, while version 1 is written,", o.trained2) }}, err
	}
	return s, err
}

// slow is a Snapshot that waits before it writes.
type slow struct {
	Snapshot
	wait func()
}

func (s slow) Weights(ctx context.Context, path string) error {
	s.wait()
	return s.Snapshot.Weights(ctx, path)
}

// The next batch is read and handed over, and the version before is written and published, while a step is trained; and
// never is more than one version on its way.
func TestStepsOverlap(t *testing.T) {
	cluster := testCluster(t)
	want := reference(t, cluster)
	rt := testRuntime(t, cluster, testRun("overlap"))
	packSteps(t, rt, 1, rt.Run.MaxSteps)
	tr := testTrainer(t, rt)
	inner := tr.newLearner
	newest := func() int64 {
		history, err := versions(t.Context(), rt)
		if err != nil {
			t.Error(err)
			return -1
		}
		return int64(len(history)) - 1
	}
	tr.newLearner = func(ctx context.Context, base string) (Learner, error) {
		l, err := inner(ctx, base)
		return overlapping{l, t, make(chan struct{}), make(chan struct{}), new(int64), newest}, err
	}
	runToEnd(t, tr)
	if got := hashes(checkChain(t, rt, rt.Run.MaxSteps)); got[5] != want[5] {
		t.Errorf("weights %v, want %v", got, want)
	}
}

// A trainer that was superseded while it published does not come back, whatever became of the next step meanwhile: it would
// fence the one that took its place.
func TestFencedBesideAFailedStep(t *testing.T) {
	rt := testRuntime(t, testCluster(t), testRun("fenced-beside"))
	packSteps(t, rt, 1, 2)
	tr := testTrainer(t, rt)
	failed, inner := make(chan struct{}), tr.newLearner
	tr.newLearner = func(ctx context.Context, base string) (Learner, error) {
		l, err := inner(ctx, base)
		return failing{l, failed, func() {
			if err := claimed(t, rt); err != nil {
				t.Error(err)
			}
		}}, err
	}
	_, wait := start(t, tr)
	if err := wait(); !errors.Is(err, pipeline.ErrFenced) {
		t.Errorf("error %v", err)
	}
	checkChain(t, rt, 0)
}

// failing is a learner whose step 2 fails while version 1 is written, before which another trainer claims the name.
type failing struct {
	Learner
	failed chan struct{}
	claim  func()
}

func (f failing) Prepare(ctx context.Context, step int64, micro []*schemas.MicroBatch) (Step, error) {
	train, err := f.Learner.Prepare(ctx, step, micro)
	if step != 2 {
		return train, err
	}
	return func(context.Context) (Metrics, error) {
		defer close(f.failed)
		return Metrics{}, pipeline.ErrTransient
	}, err
}

func (f failing) Snapshot(ctx context.Context, checkpoint bool) (Snapshot, error) {
	s, err := f.Learner.Snapshot(ctx, checkpoint)
	if checkpoint { // of version 0
		return s, err
	}
	return slow{s, func() { f.claim(); <-f.failed }}, err
}
