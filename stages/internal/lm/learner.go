package lm

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// Learner sums gradients of a model over micro-batches. It is used by one goroutine, and uses all CPUs itself.
type Learner struct {
	model   *Model
	sum     []float32 // as gradients.flat; nil until something is accumulated
	workers []*worker
	shards  []shard // scratch of each
}

// worker is what one goroutine of the learner uses.
type worker struct {
	pass
	shardFrom int // the first token of its shard in the batch
	grads     gradients
	dists     []distribution // of the tokens of seq
	seq       Sequence
	metrics   Metrics
}

// NewLearner makes a learner for m with a gradient of zero. One that only scores never takes the memory of a gradient.
func NewLearner(m *Model) *Learner { return &Learner{model: m} }

// Model is the model that learns.
func (l *Learner) Model() *Model { return l.model }

// gradient is the sum, which is made with its first use.
func (l *Learner) gradient() []float32 {
	if l.sum == nil {
		l.sum = make([]float32, len(l.model.flat))
	}
	return l.sum
}

// Accumulate adds the gradient of the components' loss over b to the sum and returns the metrics of b.
func (l *Learner) Accumulate(b *Batch, components ...Component) (Metrics, error) {
	if err := b.Validate(l.model.cfg); err != nil {
		return Metrics{}, fmt.Errorf("micro-batch: %w", err)
	}
	for _, c := range components {
		if err := c.Validate(b); err != nil {
			return Metrics{}, fmt.Errorf("micro-batch: %w", err)
		}
	}
	var total Metrics
	sum := l.gradient()
	l.each(b, func(w *worker) {
		w.metrics = Metrics{}
		if len(w.want) == 0 {
			return
		}
		w.forward()
		w.grads.flat = grow(w.grads.flat, len(sum))
		clear(w.grads.flat)
		w.lossBackward(b, components)
		w.backward(&w.grads, w.logits)
	}, func(w *worker) {
		total.Add(w.metrics)
		if len(w.want) > 0 {
			axpy(w.grads.flat, sum)
		}
	})
	return total, nil
}

// Score returns the log-probability of every token of b that is in the loss and the entropy of its distribution, after
// temperature; both are 0 elsewhere.
func (l *Learner) Score(b *Batch) (logProbs, entropies []float32, err error) {
	if err := b.Validate(l.model.cfg); err != nil {
		return nil, nil, fmt.Errorf("micro-batch: %w", err)
	}
	logProbs, entropies = make([]float32, len(b.Tokens)), make([]float32, len(b.Tokens))
	l.each(b, func(w *worker) {
		w.forward()
		for _, sp := range w.spans {
			w.score(b, sp)
			for k, i := range w.seq.Tokens {
				logProbs[i], entropies[i] = float32(w.seq.LogProbs[k]), float32(w.seq.Entropies[k])
			}
		}
	}, func(*worker) {})
	return logProbs, entropies, nil
}

// each runs work on every shard of b, on all CPUs, and inOrder one at a time in the order of the shards.
func (l *Learner) each(b *Batch, work, inOrder func(w *worker)) {
	l.shards = b.appendShards(l.shards[:0])
	shards := l.shards
	n := min(runtime.GOMAXPROCS(0), len(shards))
	for len(l.workers) < n {
		l.workers = append(l.workers, &worker{pass: pass{m: l.model, acts: make([]activations, len(l.model.layers))}})
	}
	var (
		next atomic.Int64
		mu   sync.Mutex
		turn int // the shard whose inOrder is next
		wake = sync.NewCond(&mu)
		wg   sync.WaitGroup
	)
	for _, w := range l.workers[:n] {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(shards) {
					return
				}
				w.load(b, shards[i])
				w.shardFrom = shards[i].from
				work(w)
				mu.Lock()
				for turn != i {
					wake.Wait()
				}
				inOrder(w)
				turn++
				wake.Broadcast()
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// score fills w.seq with the tokens of a span that are in the loss, and w.dists with their distributions.
func (w *worker) score(b *Batch, sp span) {
	w.seq.reset(b)
	for r := sp.wantFrom; r < sp.wantTo; r++ {
		k := len(w.seq.Tokens)
		if k == len(w.dists) {
			w.dists = append(w.dists, distribution{})
		}
		i, logits, d := w.shardFrom+int(w.want[r])+1, w.row(r), &w.dists[k]
		d.set(logits, b.temperature(i))
		w.seq.add(i, float64(d.logProb(logits, b.Tokens[i])), d.entropy(logits))
	}
}

// row is the logits of a wanted row.
func (w *worker) row(r int) []float32 {
	v := w.m.cfg.VocabSize
	return w.logits[r*v : (r+1)*v]
}

// lossBackward overwrites the logits with the gradient of the components' loss.
func (w *worker) lossBackward(b *Batch, components []Component) {
	for _, sp := range w.spans {
		if sp.wantFrom == sp.wantTo {
			continue
		}
		w.score(b, sp)
		s := &w.seq
		w.metrics.count(s)
		for _, c := range components {
			c.Loss(s, &w.metrics)
		}
		for k, i := range s.Tokens {
			w.dists[k].backward(w.row(sp.wantFrom+k), b.Tokens[i], s.DLogProbs[k], s.DEntropies[k], s.Entropies[k])
		}
	}
}
