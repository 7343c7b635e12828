package audit

import (
	"math"
	"slices"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// scored is what is kept of a SampleGroup.
type scored struct {
	ref            pipeline.Ref
	reason, filter string
	rollouts       []schemas.RolloutFate
	samples        map[sampleKey]*sample
}

// A sample is what is kept of a Sample.
type sample struct {
	sum        sum // of what its trace says of the tokens
	rl, refKL  sum // of which tokens are in these losses
	packed     sum // of everything, of what fits into a micro-batch
	tokens     int
	trained    int64 // tokens of what fits that are in a loss
	start      *int64
	low, high  float32 // advantages of the tokens in rl; low above high where there are none
	fromTraces *branch // the branch it was made of
}

// sampleGroup notes what the scorer made of a group.
func (a *auditor) sampleGroup(r record, v *schemas.SampleGroup) {
	if r.Injected || a.refused(r.Ref, "packer") {
		return
	}
	g := a.group(groupKey{"", v.GroupID})
	if g.scored != nil {
		g.rescored++
		return
	}
	s := &scored{ref: r.Ref, reason: v.Reason, filter: v.Filter, rollouts: v.Rollouts, samples: map[sampleKey]*sample{}}
	g.scored = s
	if g.size > 0 && (v.Env != g.task.Env || v.TaskIndex != g.task.TaskIndex || v.Emitted != g.size || v.Step != g.task.Step ||
		v.Wave != g.task.Wave || v.WaveFirst != g.task.WaveFirst || v.WaveLast != g.task.WaveLast) && !g.disagree {
		a.violate(Determinism, "%v is not of the task of %v", r.Ref, g.key)
	}
	for i := range v.Samples {
		p := &v.Samples[i]
		key := sampleKey{p.RolloutIndex, p.Branch}
		if s.samples[key] != nil {
			a.violate(TrainedOnce, "%v: %v has the sample of rollout %d, branch %d twice", r.Ref, g.key, key.rollout, key.branch)
			continue
		}
		n, ok := a.sample(p)
		if !ok {
			a.violate(TokenExactness, "%v: rollout %d, branch %d: tensors of unequal length, or advantages where nothing is trained, or none that are finite",
				r.Ref, key.rollout, key.branch)
		}
		s.samples[key] = n
	}
}

// sample is false where the tensors do not fit together.
func (a *auditor) sample(p *schemas.Sample) (*sample, bool) {
	n := p.TokenIDs.Len()
	if len(p.Mask) != n || p.Logprobs.Len() != n || p.Advantages.Len() != n || p.Temperatures.Len() != n ||
		!imitates(n, p.CeWeights, p.RefKlWeights, p.RefLogprobs) {
		return &sample{}, false
	}
	fits := min(n, a.run.SeqLen)
	s := &sample{
		sum: sumOf(p.TokenIDs, p.Logprobs, p.Temperatures), rl: marked(p.Mask), refKL: positions(p.RefKlWeights), tokens: n, start: p.PolicyStart,
		packed: sumOf(p.TokenIDs.Slice(0, fits), p.Mask[:fits], p.Logprobs.Slice(0, fits), p.Temperatures.Slice(0, fits), p.Advantages.Slice(0, fits),
			present(p.CeWeights, 0, fits), present(p.RefKlWeights, 0, fits), present(p.RefLogprobs, 0, fits)),
		low: float32(math.Inf(1)), high: float32(math.Inf(-1)),
	}
	ok := true
	for k, m := range p.Mask {
		v := p.Advantages.At(k)
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) || m != 1 && v != 0 {
			ok = false
		}
		if m == 1 {
			s.low, s.high = min(s.low, v), max(s.high, v)
		}
	}
	var trained lossTokens
	trained.add(p.Mask[:fits], present(p.CeWeights, 0, fits), present(p.RefKlWeights, 0, fits))
	s.trained = trained.any
	return s, ok
}

// checkScored holds a SampleGroup against the traces it was made of.
func (a *auditor) checkScored(g *group) {
	s := g.scored
	if s == nil {
		return
	}
	if len(s.rollouts) != g.size && !g.disagree {
		a.violate(OneOutcome, "%v speaks of %d of the %d rollouts of %v", s.ref, len(s.rollouts), g.size, g.key)
	}
	seen := map[int]bool{}
	for i := range s.rollouts {
		f := &s.rollouts[i]
		if seen[f.RolloutIndex] {
			a.violate(OneOutcome, "%v speaks of rollout %d of %v twice", s.ref, f.RolloutIndex, g.key)
		}
		seen[f.RolloutIndex] = true
		if !g.disagree {
			a.checkFate(g, f)
		}
	}
	a.checkOrigin(g)
	a.checkAdvantages(g)
}

// checkFate holds a rollout's line in a SampleGroup against its traces.
func (a *auditor) checkFate(g *group, f *schemas.RolloutFate) {
	s := g.scored
	samples := 0
	for key := range s.samples {
		if key.rollout == f.RolloutIndex {
			samples++
		}
	}
	if (f.Fate == "") != (samples > 0) {
		a.violate(OneOutcome, "%v: rollout %d of %v has %d samples and fate %q", s.ref, f.RolloutIndex, g.key, samples, f.Fate)
	}
	if slices.ContainsFunc(g.traces[f.RolloutIndex], func(t *trace) bool { return t.is(f) }) {
		return
	}
	a.violate(TrainedOnce, "%v: rollout %d of %v (attempt %d, reward %s, %d tokens, error %q) is none of its %d traces",
		s.ref, f.RolloutIndex, g.key, f.Attempt, reward(f.Reward), f.Tokens, f.Error, len(g.traces[f.RolloutIndex]))
}

// checkOrigin holds every sample to being a branch of a trace: the first trace of its rollout without error, or one of a
// single run of the group where the environment scores groups.
func (a *auditor) checkOrigin(g *group) {
	s := g.scored
	if len(s.samples) == 0 {
		return
	}
	var runs []string
	for i := range g.size {
		for _, t := range g.traces[i] {
			if t.err == "" {
				runs = append(runs, t.run)
			}
		}
	}
	best, most := "", -1
	for _, run := range runs {
		if n := g.ofRun(run, nil); n > most {
			best, most = run, n
		}
	}
	g.ofRun(best, s.samples)
	for _, key := range sortedSamples(s.samples) {
		p := s.samples[key]
		switch {
		case p.fromTraces != nil:
			if !p.trains(p.fromTraces) {
				a.violate(TokenExactness, "%v: rollout %d, branch %d of %v trains other tokens than were sampled, in it and in no branch before", s.ref, key.rollout, key.branch, g.key)
			}
			if !same(p.start, p.fromTraces.start) {
				a.violate(Staleness, "%v: rollout %d, branch %d says policy_start %s, its tokens were sampled from %s on", s.ref, key.rollout, key.branch, show(p.start), show(p.fromTraces.start))
			}
		case g.anyTrace(key, p.sum):
			a.violate(Determinism, "%v: rollout %d of %v was not taken from its first trace without error, or its group from several runs", s.ref, key.rollout, g.key)
		default:
			a.violate(TokenExactness, "%v: rollout %d, branch %d of %v: tokens, log-probabilities or temperatures are those of none of its traces", s.ref, key.rollout, key.branch, g.key)
		}
	}
	a.checkWhole(g, best)
}

// ofRun counts the samples that are branches of a run's traces, and notes the branches in those given.
func (g *group) ofRun(run string, note map[sampleKey]*sample) (n int) {
	for i := range g.size {
		t := g.decisive(i, run)
		if t == nil {
			continue
		}
		for k := range t.branches {
			b := &t.branches[k]
			if p := g.scored.samples[sampleKey{i, b.index}]; p != nil && b.is(p.sum) {
				n++
				if note != nil {
					p.fromTraces = b
				}
			}
		}
	}
	return n
}

// decisive is the first trace without error of a rollout in a run.
func (g *group) decisive(rollout int, run string) *trace {
	for _, t := range g.traces[rollout] {
		if t.err == "" && t.run == run {
			return t
		}
	}
	return nil
}

func (g *group) anyTrace(key sampleKey, want sum) bool {
	for _, t := range g.traces[key.rollout] {
		for _, b := range t.branches {
			if b.index == key.branch && b.is(want) {
				return true
			}
		}
	}
	return false
}

// checkWhole holds a rollout that is trained to being trained on all its branches. Where tokens or agents have rewards of
// their own a branch may have nothing to tell, and filters may drop one.
func (a *auditor) checkWhole(g *group, run string) {
	if g.finer || a.cfg.Branchwise[g.task.Env] {
		return
	}
	for i := range g.scored.rollouts {
		f := &g.scored.rollouts[i]
		t := g.decisive(f.RolloutIndex, run)
		if f.Fate != "" || t == nil {
			continue
		}
		for _, b := range t.branches {
			if b.sampled != (sum{}) && g.scored.samples[sampleKey{f.RolloutIndex, b.index}] == nil {
				a.violate(TrainedOnce, "%v: branch %d of rollout %d of %v is left out", g.scored.ref, b.index, f.RolloutIndex, g.key)
			}
		}
	}
}
