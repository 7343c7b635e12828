package packer

import (
	"bytes"
	"encoding/binary"
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
	samples []*schemas.Sample
	groups  []*schemas.SampleGroup // of each sample
	lengths []int
	loss    lossTokens
	record  []schemas.LossTokens // of loss: the same in every micro-batch
	pieces  [][]byte             // scratch of join
	zeros   []byte               // what join puts in place of a tensor that a sample leaves out
}

func (b *batch) add(g *schemas.SampleGroup, samples []*schemas.Sample) {
	for _, s := range samples {
		b.samples, b.groups, b.lengths = append(b.samples, s), append(b.groups, g), append(b.lengths, s.TokenIDs.Len())
		b.loss.add(lossTokensOf(s))
	}
}

// emit packs the samples into micro-batches of at most seqLen tokens.
func (b *batch) emit(seqLen int, f flops, out *pipeline.Out) stepFigures {
	planned := plan(b.lengths, f.of(b.lengths), seqLen, b.ranks)
	figures := stepFigures{step: b.step, tokens: sumOf(b.lengths, upTo(len(b.lengths))), trained: b.loss.any}
	figures.room = b.ranks * len(planned[0]) * seqLen
	for _, s := range b.samples {
		if s.PolicyStart != nil {
			steps := b.step - 1 - *s.PolicyStart
			figures.offPolicyMost = max(figures.offPolicyMost, steps)
			figures.offPolicySum += steps
			figures.versioned++
		}
	}
	b.record = b.loss.record()
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
	mb := &schemas.MicroBatch{Step: b.step, Ranks: b.ranks, LossTokens: b.record}
	if len(bin) == 0 {
		zero := schemas.PackFloat32s([]float32{0})
		mb.TokenIDs, mb.Mask = schemas.PackInt32s([]int32{0}), schemas.Uint8s{0}
		mb.Logprobs, mb.Advantages, mb.Temperatures = zero, zero, schemas.PackFloat32s([]float32{1})
		return mb
	}
	mb.Samples = make([]schemas.PackedSample, len(bin))
	mb.SeqLens = make(schemas.Int32s, 0, 4*len(bin))
	for k, i := range bin {
		g, s := b.groups[i], b.samples[i]
		mb.Samples[k] = schemas.PackedSample{
			Env: g.Env, GroupID: g.GroupID, RolloutIndex: s.RolloutIndex, Branch: s.Branch, PolicyStart: s.PolicyStart,
		}
		mb.SeqLens = binary.LittleEndian.AppendUint32(mb.SeqLens, uint32(b.lengths[i]))
	}
	mb.TokenIDs = b.join(bin, 4, func(s *schemas.Sample) []byte { return s.TokenIDs })
	mb.Mask = b.join(bin, 1, func(s *schemas.Sample) []byte { return s.Mask })
	mb.Logprobs = b.join(bin, 4, func(s *schemas.Sample) []byte { return s.Logprobs })
	mb.Advantages = b.join(bin, 4, func(s *schemas.Sample) []byte { return s.Advantages })
	mb.Temperatures = b.join(bin, 4, func(s *schemas.Sample) []byte { return s.Temperatures })
	mb.CeWeights = b.join(bin, 4, func(s *schemas.Sample) []byte { return s.CeWeights })
	mb.RefKlWeights = b.join(bin, 4, func(s *schemas.Sample) []byte { return s.RefKlWeights })
	mb.RefLogprobs = b.join(bin, 4, func(s *schemas.Sample) []byte { return s.RefLogprobs })
	return mb
}

// join joins a tensor of the samples of a bin, of so many bytes a token: zeros where a sample leaves it out, and nothing
// where all do. Every byte is written once: bytes.Join does not clear what it allocates.
func (b *batch) join(bin []int, width int, of func(*schemas.Sample) []byte) []byte {
	if !slices.ContainsFunc(bin, func(i int) bool { return len(of(b.samples[i])) > 0 }) {
		return nil
	}
	b.pieces = b.pieces[:0]
	for _, i := range bin {
		piece := of(b.samples[i])
		if len(piece) == 0 {
			piece = b.zero(width * b.lengths[i])
		}
		b.pieces = append(b.pieces, piece)
	}
	return bytes.Join(b.pieces, nil)
}

func (b *batch) zero(n int) []byte {
	if len(b.zeros) < n {
		b.zeros = make([]byte, n)
	}
	return b.zeros[:n]
}
