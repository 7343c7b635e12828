package packer

import (
	"maps"
	"slices"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// cut makes a step of all groups held that can be packed, and ends every group held.
func (c *Core) cut(out *pipeline.Out) {
	c.state.Step++
	step := c.state.Step
	b := batch{step: step, ranks: c.run.Ranks}
	ids := slices.Sorted(maps.Keys(c.held))
	for _, id := range ids {
		if h := c.held[id]; h.fate == "" {
			b.add(h.group, h.samples)
		}
	}
	figures := b.emit(c.run.SeqLen, newFlops(c.cfg), out)
	for _, id := range ids {
		h := c.held[id]
		packedIn := (*int64)(nil)
		if h.fate == "" {
			h.fate, packedIn = schemas.FatePacked, &step
			figures.countRollouts(h.samples)
		}
		c.end(h.group, h.verdict, packedIn, out)
		out.Finish(h.ref)
	}
	c.emitMetrics(figures, out)
	clear(c.held)
	c.rollouts, c.tokens = 0, 0
	c.state.Since = tally{}
}

// A batch is the samples of one step, by group, rollout and branch.
type batch struct {
	step    int64
	ranks   int
	samples []schemas.Sample
	origins []schemas.PackedSample
	lengths []int
	loss    lossTokens
}

func (b *batch) add(g *schemas.SampleGroup, samples []schemas.Sample) {
	for _, s := range samples {
		b.samples = append(b.samples, s)
		b.origins = append(b.origins, schemas.PackedSample{
			Env: g.Env, GroupID: g.GroupID, RolloutIndex: s.RolloutIndex, Branch: s.Branch, PolicyStart: s.PolicyStart,
		})
		b.lengths = append(b.lengths, s.TokenIDs.Len())
		b.loss.add(lossTokensOf(&s))
	}
}

// emit packs the samples into micro-batches of at most seqLen tokens.
func (b *batch) emit(seqLen int, f flops, out *pipeline.Out) stepFigures {
	planned := plan(b.lengths, f.of(b.lengths), seqLen, b.ranks)
	figures := stepFigures{step: b.step, tokens: sumOf(b.lengths, upTo(len(b.lengths))), trained: b.loss.any}
	figures.room = b.ranks * len(planned[0]) * seqLen
	for i := range b.samples {
		if start := b.samples[i].PolicyStart; start != nil {
			steps := b.step - 1 - *start
			figures.offPolicyMost = max(figures.offPolicyMost, steps)
			figures.offPolicySum += steps
			figures.versioned++
		}
	}
	for rank, bins := range planned {
		for index, bin := range bins {
			mb := b.microBatch(bin)
			mb.Rank, mb.Index, mb.Count = rank, index, len(bins)
			out.Emit(pipeline.TopicBatches, mb)
		}
	}
	return figures
}

// microBatch joins the tensors of the samples of a bin. A dummy, which has none, is one token that is not trained on: a
// rank has a forward pass to do, and the others wait for it.
func (b *batch) microBatch(bin []int) *schemas.MicroBatch {
	n := sumOf(b.lengths, bin)
	mb := &schemas.MicroBatch{Step: b.step, Ranks: b.ranks, LossTokens: b.loss.record()}
	if len(bin) == 0 {
		zero := schemas.PackFloat32s([]float32{0})
		mb.TokenIDs, mb.Mask = schemas.PackInt32s([]int32{0}), schemas.Uint8s{0}
		mb.Logprobs, mb.Advantages, mb.Temperatures = zero, zero, schemas.PackFloat32s([]float32{1})
		return mb
	}
	mb.TokenIDs, mb.Mask = make([]byte, 0, 4*n), make([]byte, 0, n)
	mb.Logprobs, mb.Advantages, mb.Temperatures = make([]byte, 0, 4*n), make([]byte, 0, 4*n), make([]byte, 0, 4*n)
	lengths := make([]int32, 0, len(bin))
	for _, i := range bin {
		s := &b.samples[i]
		mb.TokenIDs = append(mb.TokenIDs, s.TokenIDs...)
		mb.Mask = append(mb.Mask, s.Mask...)
		mb.Logprobs = append(mb.Logprobs, s.Logprobs...)
		mb.Advantages = append(mb.Advantages, s.Advantages...)
		mb.Temperatures = append(mb.Temperatures, s.Temperatures...)
		mb.Samples = append(mb.Samples, b.origins[i])
		lengths = append(lengths, int32(b.lengths[i]))
	}
	mb.SeqLens = schemas.PackInt32s(lengths)
	mb.CeWeights = b.join(bin, n, func(s *schemas.Sample) schemas.Float32s { return s.CeWeights })
	mb.RefKlWeights = b.join(bin, n, func(s *schemas.Sample) schemas.Float32s { return s.RefKlWeights })
	mb.RefLogprobs = b.join(bin, n, func(s *schemas.Sample) schemas.Float32s { return s.RefLogprobs })
	return mb
}

// join joins a tensor that samples may leave out: zeros where one has none, and nothing where none has any. n is the
// tokens of the bin.
func (b *batch) join(bin []int, n int, of func(*schemas.Sample) schemas.Float32s) schemas.Float32s {
	if !slices.ContainsFunc(bin, func(i int) bool { return of(&b.samples[i]).Len() > 0 }) {
		return nil
	}
	joined := make(schemas.Float32s, 0, 4*n)
	for _, i := range bin {
		if t := of(&b.samples[i]); t.Len() > 0 {
			joined = append(joined, t...)
		} else {
			joined = append(joined, make([]byte, 4*b.lengths[i])...)
		}
	}
	return joined
}
