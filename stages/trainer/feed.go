package trainer

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/schemas"
)

// A feed reads steps and hands them to the learner, one ahead of the one that is trained.
type feed struct {
	ctx  context.Context
	stop context.CancelFunc
	out  chan *prepared // closed when err is set
	err  error
}

// A prepared step can be trained.
type prepared struct {
	step    int64
	train   Step
	offsets []int64                // behind it
	refused []*kgo.Record          // on the way to it
	before  time.Time              // when the step before ended
	waited  time.Duration          // from then until it was there
	samples []schemas.PackedSample // where it is traced
}

// feed reads the steps after from until ctx ends, or work, and hands them over under work.
func (t *Trainer) feed(ctx, work context.Context, from *schemas.PolicyVersion) (*feed, error) {
	b, err := openBatches(t.source, t.as, from.NextOffsets, t.reads)
	if err != nil {
		return nil, err
	}
	f := &feed{out: make(chan *prepared)}
	f.ctx, f.stop = context.WithCancel(ctx)
	context.AfterFunc(work, f.stop)
	learner := t.learner
	go func() {
		defer close(f.out)
		defer b.close()
		for s := from.Version + 1; s <= t.rt.Run.MaxSteps; s++ {
			micro, err := b.step(f.ctx, s)
			if err != nil {
				f.err = err
				return
			}
			train, failed := learner.Prepare(work, s, micro)
			if failed != nil { // the learner is to be thrown away
				train = func(context.Context) (Metrics, error) { return Metrics{}, failed }
			}
			select {
			case f.out <- &prepared{step: s, train: train, offsets: b.offsets(), refused: b.refuse(), samples: t.traced(micro)}:
			case <-f.ctx.Done():
				f.err = f.ctx.Err()
				return
			}
		}
	}()
	return f, nil
}

// next waits for the next step.
func (f *feed) next() (*prepared, error) {
	if f.ctx.Err() != nil {
		return nil, f.ctx.Err()
	}
	in, ok := <-f.out
	if !ok {
		return nil, f.err
	}
	return in, nil
}

// close waits until nothing is read and handed over any more.
func (f *feed) close() {
	f.stop()
	for range f.out { // what is prepared and not trained is read again
	}
}

// traced is what is kept of micro-batches for their spans.
func (t *Trainer) traced(micro []*schemas.MicroBatch) (all []schemas.PackedSample) {
	if t.rt.Tracing == nil {
		return nil
	}
	for _, m := range micro {
		all = append(all, m.Samples...)
	}
	return all
}
