package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// A step is what the batches hold of one step.
type step struct {
	ranks      map[int]*rankStep
	lossTokens map[string]int64 // as its micro-batches say
	trained    lossTokens       // as they are
	emitted    int              // rollouts of its groups
}

// A rankStep is the micro-batches of a rank.
type rankStep struct{ count, have int }

// A rankEnd is the newest micro-batch of a partition of batches.
type rankEnd struct {
	step  int64
	index int
	ends  map[int64]int64 // offset behind the last micro-batch of each step
}

// A packed sample stands in a micro-batch.
type packed struct {
	ref   pipeline.Ref
	step  int64
	sum   sum
	start *int64 // as the batch says
}

func (a *auditor) microBatch(r record, v *schemas.MicroBatch) {
	if r.Injected {
		return
	}
	a.inRow(r.Ref, v)
	s := a.steps[v.Step]
	if s == nil {
		s = &step{ranks: map[int]*rankStep{}, lossTokens: map[string]int64{}}
		a.steps[v.Step] = s
		for _, l := range v.LossTokens {
			s.lossTokens[l.Component] = l.Tokens
		}
	}
	for _, l := range v.LossTokens {
		if s.lossTokens[l.Component] != l.Tokens || len(v.LossTokens) != len(s.lossTokens) {
			a.violate(TrainedOnce, "%v: %d loss tokens of %s, other micro-batches of step %d say %d", r.Ref, l.Tokens, l.Component, v.Step, s.lossTokens[l.Component])
		}
	}
	rank := s.ranks[v.Rank]
	if rank == nil {
		rank = &rankStep{count: v.Count}
		s.ranks[v.Rank] = rank
	}
	rank.have++
	if v.Count != rank.count || v.Ranks != a.run.Ranks {
		a.violate(TrainedOnce, "%v: one of %d micro-batches and %d ranks, the rank has %d and the run %d ranks", r.Ref, v.Count, v.Ranks, rank.count, a.run.Ranks)
	}
	if v.TokenIDs.Len() > a.run.SeqLen {
		a.violate(TrainedOnce, "%v: %d tokens, seq_len is %d", r.Ref, v.TokenIDs.Len(), a.run.SeqLen)
	}
	a.unpack(r.Ref, v, s)
}

// inRow holds a micro-batch to coming right after the one before it in its rank's partition.
func (a *auditor) inRow(ref pipeline.Ref, v *schemas.MicroBatch) {
	end := a.ranks[ref.Partition]
	if end == nil {
		end = &rankEnd{step: a.policies.before(), index: -1, ends: map[int64]int64{}}
		a.ranks[ref.Partition] = end
	}
	if int32(v.Rank) != ref.Partition {
		a.violate(TrainedOnce, "%v is of rank %d", ref, v.Rank)
	}
	if !(v.Step == end.step && v.Index == end.index+1 || v.Step == end.step+1 && v.Index == 0) {
		a.violate(TrainedOnce, "%v: micro-batch %d of step %d comes after micro-batch %d of step %d", ref, v.Index, v.Step, end.index, end.step)
	}
	end.step, end.index = v.Step, v.Index
	end.ends[v.Step] = ref.Offset + 1
}

// unpack notes the tokens and the samples of a micro-batch.
func (a *auditor) unpack(ref pipeline.Ref, v *schemas.MicroBatch, s *step) {
	n := v.TokenIDs.Len()
	if len(v.Mask) != n || v.Logprobs.Len() != n || v.Advantages.Len() != n || v.Temperatures.Len() != n || v.SeqLens.Len() != len(v.Samples) ||
		!imitates(n, v.CeWeights, v.RefKlWeights, v.RefLogprobs) {
		a.violate(TokenExactness, "%v: tensors of unequal length", ref)
		return
	}
	others := s.trained.any
	if s.trained.add(v.Mask, v.CeWeights, v.RefKlWeights); len(v.Samples) == 0 && s.trained.any > others {
		a.violate(TrainedOnce, "%v has no samples and trains on tokens", ref)
	}
	at := 0
	for i, p := range v.Samples {
		if i > 0 && before(p, v.Samples[i-1]) {
			a.violate(Determinism, "%v: group %d, rollout %d, branch %d comes after group %d, rollout %d, branch %d",
				ref, p.GroupID, p.RolloutIndex, p.Branch, v.Samples[i-1].GroupID, v.Samples[i-1].RolloutIndex, v.Samples[i-1].Branch)
		}
		end := at + int(v.SeqLens.At(i))
		if end < at || end > n {
			a.violate(TokenExactness, "%v: sample %d ends at token %d of %d", ref, i, end, n)
			return
		}
		a.pack(ref, v.Step, p, sumOf(v.TokenIDs.Slice(at, end), v.Mask[at:end], v.Logprobs.Slice(at, end), v.Temperatures.Slice(at, end), v.Advantages.Slice(at, end),
			present(v.CeWeights, at, end), present(v.RefKlWeights, at, end), present(v.RefLogprobs, at, end)))
		at = end
	}
}

func before(p, q schemas.PackedSample) bool {
	return cmp.Or(cmp.Compare(p.GroupID, q.GroupID), cmp.Compare(p.RolloutIndex, q.RolloutIndex), cmp.Compare(p.Branch, q.Branch)) < 0
}

func (a *auditor) pack(ref pipeline.Ref, step int64, p schemas.PackedSample, s sum) {
	g := a.group(groupKey{"", p.GroupID})
	key := sampleKey{p.RolloutIndex, p.Branch}
	if g.packed == nil {
		g.packed = map[sampleKey]packed{}
		a.steps[step].emitted += g.size
	}
	if twice, ok := g.packed[key]; ok {
		a.violate(TrainedOnce, "%v: %v, rollout %d, branch %d is in step %d, and in step %d in %v", ref, g.key, key.rollout, key.branch, step, twice.step, twice.ref)
		return
	}
	a.report.Samples++
	g.packed[key] = packed{ref, step, s, p.PolicyStart}
	if g.size > 0 && p.Env != g.task.Env {
		a.violate(TrainedOnce, "%v: %v is of environment %s, its tasks of %s", ref, g.key, p.Env, g.task.Env)
	}
}

// checkPacked holds the samples of a group in the batches against its SampleGroup, its outcome and the bound of I3.
func (a *auditor) checkPacked(g *group) {
	in := false // a step, says an outcome
	var at *int64
	for _, o := range g.outcomes {
		if o.Fate == schemas.FatePacked {
			in, at = true, o.Step
			a.report.Packed++
		}
	}
	for _, key := range sortedSamples(g.packed) {
		p := g.packed[key]
		name := fmt.Sprintf("%v: %v, rollout %d, branch %d", p.ref, g.key, key.rollout, key.branch)
		if !in || at == nil || *at != p.step {
			a.violate(TrainedOnce, "%s is in step %d, its group's outcome does not say so", name, p.step)
		}
		if a.run.Ordered() && p.step != g.task.Step {
			a.violate(Determinism, "%s is in step %d, its task was for step %d", name, p.step, g.task.Step)
		}
		var made *sample
		if g.scored != nil {
			made = g.scored.samples[key]
		}
		start := p.start
		switch {
		case made == nil:
			a.violate(TrainedOnce, "%s is a sample of no SampleGroup", name)
		case made.packed != p.sum:
			a.violate(TokenExactness, "%s: tokens, mask, log-probabilities, temperatures, advantages or weights are not those of its SampleGroup %v", name, g.scored.ref)
		case made.fromTraces != nil:
			start = made.fromTraces.start
		}
		if !same(start, p.start) {
			a.violate(Staleness, "%s says policy_start %s, its tokens were sampled from %s on", name, show(p.start), show(start))
		}
		if start != nil && (p.step-1-*start < 0 || p.step-1-*start > int64(a.run.MaxOffPolicySteps)) {
			a.violate(Staleness, "%s is %d off-policy steps old in step %d, the most is %d", name, p.step-1-*start, p.step, a.run.MaxOffPolicySteps)
		}
	}
	if !in || g.scored == nil {
		return
	}
	for _, key := range sortedSamples(g.scored.samples) {
		if _, ok := g.packed[key]; !ok && g.scored.samples[key].trained > 0 {
			a.violate(TrainedOnce, "%v, rollout %d, branch %d is in no batch, its group is packed", g.key, key.rollout, key.branch)
		}
	}
}

// checkSteps holds every step to being whole.
func (a *auditor) checkSteps() {
	for i, number := range slices.Sorted(maps.Keys(a.steps)) {
		s := a.steps[number]
		a.report.Steps++
		a.report.Tokens += s.trained.any
		if want := a.policies.before() + int64(i) + 1; number != want {
			a.violate(TrainedOnce, "step %d stands where step %d must be in the batches", number, want)
		}
		if number > a.run.MaxSteps {
			a.violate(TrainedOnce, "step %d was cut, max_steps is %d", number, a.run.MaxSteps)
		}
		for rank := range a.run.Ranks {
			switch r := s.ranks[rank]; {
			case r == nil:
				a.violate(TrainedOnce, "step %d has no micro-batch of rank %d", number, rank)
			case r.have != r.count || r.count != s.ranks[0].countOr(r.count):
				a.violate(TrainedOnce, "step %d has %d of %d micro-batches of rank %d", number, r.have, r.count, rank)
			}
		}
		for i, component := range components {
			if said, has := s.lossTokens[component], s.trained.by[i]; said != has {
				a.violate(TrainedOnce, "step %d says that it has %d tokens of loss %s, and has %d", number, said, component, has)
			}
		}
		if !a.run.Ordered() && a.run.BatchTokens == 0 && s.emitted < a.run.BatchSize {
			a.violate(Determinism, "step %d was cut at %d rollouts, batch_size is %d", number, s.emitted, a.run.BatchSize)
		}
	}
}

// countOr is the rank's number of micro-batches, or n where the rank has none.
func (r *rankStep) countOr(n int) int {
	if r == nil {
		return n
	}
	return r.count
}
