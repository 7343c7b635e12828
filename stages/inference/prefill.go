package inference

import (
	"context"
	"math"
	"net/http"
	"slices"

	"github.com/prl-project/prl/stages/internal/lm"
)

// probing is a probe on its way.
type probing struct {
	ctx   context.Context
	probe Probe
	model *served
	done  chan probed // capacity 1
}

type probed struct {
	logprobs []float32
	err      error
}

func (p *probing) end(logprobs []float32, err error) { p.done <- probed{logprobs, err} }

// Probe implements Backend.
func (n *native) Probe(ctx context.Context, p Probe) ([]float32, error) {
	length := len(p.Tokens)
	if p = p.trimmed(); len(p.Tokens) == 0 {
		return make([]float32, length), nil
	}
	p.Tokens, p.Mask = slices.Clone(p.Tokens), slices.Clone(p.Mask) // the caller may leave before the loop does
	q, err := n.enqueueProbe(ctx, p)
	if err != nil {
		return nil, err
	}
	select {
	case r := <-q.done:
		if r.err != nil {
			return nil, r.err
		}
		return append(r.logprobs, make([]float32, length-len(r.logprobs))...), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (n *native) enqueueProbe(ctx context.Context, p Probe) (*probing, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	model, err := n.chosen(p.Policy, p.PinVersion)
	if err != nil {
		return nil, err
	}
	if most := model.model.Config().MaxPositionEmbeddings; len(p.Tokens) > most {
		return nil, refuse(http.StatusBadRequest, CodeTooLong, "the sequence has %d tokens, %s has %d positions", len(p.Tokens), policyName(p.Policy, model.version), most)
	}
	if err := model.known(p.Tokens); err != nil {
		return nil, err
	}
	q := &probing{ctx: ctx, probe: p, model: model, done: make(chan probed, 1)}
	n.probes.push(q)
	wake(n.probed)
	return q, nil
}

// answerProbes is the loop that answers probes until ctx ends.
func (e *engine) answerProbes(ctx context.Context) {
	for ctx.Err() == nil {
		batch := e.takeProbes()
		if len(batch) == 0 {
			select {
			case <-e.probed:
			case <-ctx.Done():
			}
			continue
		}
		prefill(batch)
	}
}

// takeProbes takes the oldest probe of the run whose turn it is and others of the same model, StepTokens tokens in all if the
// first has no more.
func (e *engine) takeProbes() (batch []*probing) {
	e.mu.Lock()
	defer e.mu.Unlock()
	first := e.probes.take()
	if first == nil {
		return nil
	}
	batch, tokens := []*probing{first}, len(first.probe.Tokens)
	e.probes.drop(func(p *probing) bool {
		if p.ctx.Err() != nil {
			return true
		}
		size := len(p.probe.Tokens)
		if p.model != first.model || tokens+size > e.cfg.StepTokens {
			return false
		}
		batch, tokens = append(batch, p), tokens+size
		return true
	})
	e.probes.charge(first.model.of, tokens)
	return batch
}

// prefill answers probes of one model.
func prefill(batch []*probing) {
	m := batch[0].model
	if m.learner == nil {
		m.learner = lm.NewLearner(m.model)
	}
	var b lm.Batch
	for _, p := range batch {
		b.Tokens, b.Mask = append(b.Tokens, p.probe.Tokens...), append(b.Mask, p.probe.Mask...)
		b.SeqLens = append(b.SeqLens, int32(len(p.probe.Tokens)))
		b.Temperatures = append(b.Temperatures, slices.Repeat([]float32{float32(p.probe.Temperature)}, len(p.probe.Tokens))...)
	}
	logprobs, _, err := m.learner.Score(&b)
	for _, p := range batch {
		if err != nil {
			p.end(nil, &Error{Status: http.StatusInternalServerError, Code: CodeInternal, Message: "prefill of the model", Cause: err})
			continue
		}
		own := logprobs[:len(p.probe.Tokens):len(p.probe.Tokens)]
		logprobs = logprobs[len(own):]
		if slices.ContainsFunc(own, func(l float32) bool { return math.IsNaN(float64(l)) || math.IsInf(float64(l), 0) }) {
			p.end(nil, refuse(http.StatusInternalServerError, CodeUnusable, "%s gives log-probabilities that are not finite", policyName(p.probe.Policy, m.version)))
			continue
		}
		p.end(own, nil)
	}
}
