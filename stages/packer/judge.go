package packer

import (
	"cmp"
	"slices"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// A verdict is what a group is to the step it would be packed into.
type verdict struct {
	fate    string // empty where it can be packed
	filter  string
	samples []*schemas.Sample // to pack, by rollout and branch
}

// packs reports whether a sample of a rollout is to be packed.
func (v *verdict) packs(rollout int) bool {
	_, found := slices.BinarySearchFunc(v.samples, rollout, func(s *schemas.Sample, r int) int { return cmp.Compare(s.RolloutIndex, r) })
	return found
}

// judge says whether a group can be packed into a step. That of the next step is final: no later step suits a group
// better, so the stale are swept as they come and nothing held turns stale before its step is cut.
func (c *Core) judge(g *schemas.SampleGroup, step int64) (verdict, error) {
	if len(g.Samples) == 0 {
		return verdict{fate: cmp.Or(g.Reason, schemas.FateErrored), filter: g.Filter}, nil
	}
	longest := 0
	for i := range g.Samples {
		s := &g.Samples[i]
		longest = max(longest, s.TokenIDs.Len())
		if !sound(s) {
			return verdict{fate: schemas.FateErrored}, nil
		}
		if s.PolicyStart == nil {
			continue
		}
		switch steps := step - 1 - *s.PolicyStart; {
		case steps < 0: // sampled from weights that do not exist yet
			return verdict{fate: schemas.FateErrored}, nil
		case steps > int64(c.run.MaxOffPolicySteps):
			return verdict{fate: schemas.FateStale}, nil
		}
	}
	v := verdict{samples: make([]*schemas.Sample, len(g.Samples))}
	for i := range g.Samples {
		v.samples[i] = &g.Samples[i]
	}
	if longest > c.run.SeqLen {
		switch c.cfg.Overlong {
		case OverlongError:
			return verdict{}, pipeline.Fatal("group %d of %s has a sample of %d tokens, and run.seq_len is %d: raise it, lower "+
				"the environment's limits on tokens, or set packer.overlong to drop or cut", g.GroupID, g.Env, longest, c.run.SeqLen)
		case OverlongDrop:
			return verdict{fate: schemas.FateOverlong}, nil
		}
		v.samples = cutTo(v.samples, c.run.SeqLen)
		if len(v.samples) == 0 {
			return verdict{fate: schemas.FateOverlong}, nil
		}
	}
	slices.SortStableFunc(v.samples, func(a, b *schemas.Sample) int {
		return cmp.Or(cmp.Compare(a.RolloutIndex, b.RolloutIndex), cmp.Compare(a.Branch, b.Branch))
	})
	return v, nil
}

// cutTo cuts all tensors of each sample to n tokens together, and leaves out a sample that then has nothing to train on.
// The samples themselves stay as they are.
func cutTo(samples []*schemas.Sample, n int) []*schemas.Sample {
	cut := func(t schemas.Float32s) schemas.Float32s { return t.Slice(0, min(n, t.Len())) }
	kept := samples[:0]
	for _, s := range samples {
		if s.TokenIDs.Len() > n {
			short := *s
			s = &short
			s.TokenIDs, s.Mask, s.Logprobs = s.TokenIDs.Slice(0, n), s.Mask[:n], cut(s.Logprobs)
			s.Advantages, s.Temperatures = cut(s.Advantages), cut(s.Temperatures)
			s.CeWeights, s.RefKlWeights, s.RefLogprobs = cut(s.CeWeights), cut(s.RefKlWeights), cut(s.RefLogprobs)
			if lossTokensOf(s).any == 0 {
				continue
			}
		}
		kept = append(kept, s)
	}
	return kept
}
