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
	sum     []float32 // as gradients.flat
	workers []*worker
}

// worker is what one goroutine of the learner uses.
type worker struct {
	pass
	shardFrom int // the first token of its shard in the batch
	grads     gradients
	dist      distribution
	metrics   Metrics
}

// NewLearner makes a learner for m with a gradient of zero.
func NewLearner(m *Model) *Learner {
	return &Learner{model: m, sum: make([]float32, len(m.flat))}
}

// Model is the model that learns.
func (l *Learner) Model() *Model { return l.model }

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
	l.each(b, func(w *worker) {
		w.metrics = Metrics{}
		if len(w.want) == 0 {
			return
		}
		w.forward()
		w.grads.flat = grow(w.grads.flat, len(l.sum))
		clear(w.grads.flat)
		w.lossBackward(b, components)
		w.backward(&w.grads, w.logits)
	}, func(w *worker) {
		total.Add(w.metrics)
		if len(w.want) > 0 {
			axpy(w.grads.flat, l.sum)
		}
	})
	return total, nil
}

// Score returns the log-probability of every masked token of b and the entropy of its distribution, after temperature;
// both are 0 elsewhere.
func (l *Learner) Score(b *Batch) (logProbs, entropies []float32, err error) {
	if err := b.Validate(l.model.cfg); err != nil {
		return nil, nil, fmt.Errorf("micro-batch: %w", err)
	}
	logProbs, entropies = make([]float32, len(b.Tokens)), make([]float32, len(b.Tokens))
	l.each(b, func(w *worker) {
		w.forward()
		w.targets(b, func(i int, logits []float32, d *distribution) {
			logProbs[i], entropies[i] = d.logProb(logits, b.Tokens[i]), float32(d.entropy(logits))
		})
	}, func(*worker) {})
	return logProbs, entropies, nil
}

// each runs work on every shard of b, on all CPUs, and inOrder one at a time in the order of the shards.
func (l *Learner) each(b *Batch, work, inOrder func(w *worker)) {
	shards := b.shards()
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

// targets calls f for every masked token of the shard, in order: its index in b, its row of logits, which f may
// overwrite, and their distribution, which is valid until f returns.
func (w *worker) targets(b *Batch, f func(i int, logits []float32, d *distribution)) {
	v := w.m.cfg.VocabSize
	for k, r := range w.want {
		i := w.shardFrom + int(r) + 1
		logits := w.logits[k*v : (k+1)*v]
		w.dist.set(logits, b.temperature(i))
		f(i, logits, &w.dist)
	}
}

// lossBackward overwrites the logits with the gradient of the components' loss.
func (w *worker) lossBackward(b *Batch, components []Component) {
	w.targets(b, func(i int, logits []float32, d *distribution) {
		logProb, entropy := float64(d.logProb(logits, b.Tokens[i])), d.entropy(logits)
		w.metrics.Tokens++
		w.metrics.NLL -= logProb
		w.metrics.Entropy += entropy
		var dLogProb, dEntropy float64
		for _, c := range components {
			dp, de := c.Term(b, i, logProb, entropy, &w.metrics)
			dLogProb += dp
			dEntropy += de
		}
		d.backward(logits, b.Tokens[i], dLogProb, dEntropy, entropy)
	})
}
