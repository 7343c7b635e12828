package scorer

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/scorer/advantage"
	"github.com/prl-project/prl/stages/scorer/filter"
)

// A tree: a prompt, an answer that two branches share, and after it a leaf without sampled tokens, one whose tokens come
// from a newer policy, and a branch of its own from the prompt.
func tree() *schemas.Trace {
	t := trace(0, 1, 0, 1)
	t.Nodes = []schemas.Node{
		prompt(-1, 1, 2),
		answer(0, 10, 3, run(0, 7)),
		prompt(1, 20, 1),
		answer(1, 30, 3, run(0, 9), run(1, 8), run(2, 3)), // token 2 is scaffolding
		answer(0, 40, 2),
		prompt(0, 50, 1),
	}
	for i := range t.Nodes { // a teacher's log-probability is that of the policy less 100
		ref := t.Nodes[i].Logprobs.Values()
		for k := range ref {
			ref[k] -= 100
		}
		t.Nodes[i].RefLogprobs = schemas.PackFloat32s(ref)
	}
	return t
}

// samplesOf are the samples of a trace, each of whose members gets the credit.
func samplesOf(t *schemas.Trace, roles []string, credits ...advantage.Credit) (samples []schemas.Sample) {
	r := newRollout(t)
	for b := range r.branches {
		if s, _ := r.sample(b, credits[r.branches[b].member], roles, new(memory)); s != nil {
			samples = append(samples, *s)
		}
	}
	return samples
}

func TestInvariant_TokenExactness(t *testing.T) {
	samples := samplesOf(tree(), nil, advantage.Credit{RL: true, Tokens: []float32{1, 2, 3, 4, 5}, CE: 0.5, RefKL: 2})
	if len(samples) != 3 {
		t.Fatalf("%d samples, want one for each branch with tokens to train on", len(samples))
	}
	for i, want := range []struct {
		branch     int
		ids        []int32
		mask       []byte
		sampled    []byte
		logprobs   []float32
		advantages []float32
		start      *int64
	}{
		{0, []int32{1, 2, 10, 11, 12, 20}, []byte{0, 0, 1, 1, 0, 0}, []byte{0, 0, 1, 1, 0, 0}, []float32{0, 0, -10, -11, 0, 0}, []float32{0, 0, 1, 2, 0, 0}, version(7)},
		{1, []int32{1, 2, 10, 11, 12, 30, 31, 32}, []byte{0, 0, 0, 0, 0, 1, 1, 0}, []byte{0, 0, 1, 1, 0, 1, 1, 0}, []float32{0, 0, -10, -11, 0, -30, -31, 0},
			[]float32{0, 0, 0, 0, 0, 3, 4, 0}, version(7)},
		{2, []int32{1, 2, 40, 41}, []byte{0, 0, 1, 0}, []byte{0, 0, 1, 0}, []float32{0, 0, -40, 0}, []float32{0, 0, 5, 0}, nil},
	} {
		s := samples[i]
		if s.Branch != want.branch || !reflect.DeepEqual(s.TokenIDs.Values(), want.ids) || !bytes.Equal(s.Mask, want.mask) ||
			!reflect.DeepEqual(s.Logprobs.Values(), want.logprobs) || !reflect.DeepEqual(s.Advantages.Values(), want.advantages) {
			t.Errorf("sample %d: branch %d, %v, mask %v, %v, %v", i, s.Branch, s.TokenIDs.Values(), s.Mask, s.Logprobs.Values(), s.Advantages.Values())
		}
		if !reflect.DeepEqual(s.PolicyStart, want.start) {
			t.Errorf("sample %d: policy_start is not %v", i, want.start)
		}
		for k, m := range s.Mask {
			if temperature := float32(1 - 0.5*float32(want.sampled[k])); s.Temperatures.At(k) != temperature {
				t.Errorf("sample %d: token %d has temperature %v", i, k, s.Temperatures.At(k))
			}
			ref := float32(0)
			if m == 1 {
				ref = want.logprobs[k] - 100
			}
			if s.CeWeights.At(k) != 0.5*float32(m) || s.RefKlWeights.At(k) != 2*float32(m) || s.RefLogprobs.At(k) != ref {
				t.Errorf("sample %d: token %d weighs %v and %v, the teacher says %v", i, k, s.CeWeights.At(k), s.RefKlWeights.At(k), s.RefLogprobs.At(k))
			}
		}
	}
}

// Each loss brings its tensors, and no other.
func TestComponents(t *testing.T) {
	for _, tt := range []struct {
		name        string
		credit      advantage.Credit
		samples     int
		rl, ce, ref bool
	}{
		{"nothing", advantage.Credit{}, 0, false, false, false},
		{"zero advantage", advantage.Credit{RL: true}, 3, true, false, false},
		{"imitation", advantage.Credit{CE: 1}, 3, false, true, false},
		{"distillation", advantage.Credit{RefKL: 1}, 3, false, false, true},
		{"answers alone", advantage.Credit{Answers: 1}, 1, false, true, false},
	} {
		samples := samplesOf(tree(), []string{"user"}, tt.credit)
		if len(samples) != tt.samples {
			t.Errorf("%s: %d samples", tt.name, len(samples))
		}
		for _, s := range samples {
			n := s.TokenIDs.Len()
			if bytes.Contains(s.Mask, []byte{1}) != tt.rl || s.CeWeights.Len() != n && tt.ce || len(s.CeWeights) > 0 != tt.ce ||
				len(s.RefKlWeights) > 0 != tt.ref || len(s.RefLogprobs) != len(s.RefKlWeights) {
				t.Errorf("%s: branch %d: mask %v, %d, %d and %d of %d weights", tt.name, s.Branch, s.Mask, s.CeWeights.Len(), s.RefKlWeights.Len(), s.RefLogprobs.Len(), n)
			}
		}
	}
}

// What the environment said is learnt from where it answered the policy, in the first branch that holds it, without
// scaffolding where that is known.
func TestAnswers(t *testing.T) {
	tr := trace(0, 1, 0, 1)
	tr.Nodes = []schemas.Node{
		prompt(-1, 1, 2),                   // 0: nothing was said before
		prompt(0, 10, 2),                   // 1: a tool, before the first reply
		answer(1, 20, 2),                   // 2
		prompt(2, 30, 4),                   // 3: a tool's answer with scaffolding around
		prompt(3, 40, 1),                   // 4: a user
		answer(4, 50, 2),                   // 5
		prompt(3, 60, 3), answer(6, 70, 2), // 6: a tool in another branch, which shares 3
	}
	for _, i := range []int{1, 3, 6} {
		tr.Nodes[i].Role = "tool"
	}
	tr.Nodes[3].BodyFrom, tr.Nodes[3].BodyTo = 1, 3
	samples := samplesOf(tr, []string{"tool"}, advantage.Credit{RL: true, All: 1, Answers: 0.1})
	for i, want := range [][]float32{
		{0, 0, 0, 0, 0, 0, 0, 0.1, 0.1, 0, 0, 0, 0},
		{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.1, 0.1, 0.1, 0, 0},
	} {
		if got := samples[i].CeWeights.Values(); !reflect.DeepEqual(got, want) {
			t.Errorf("branch %d: %v, want %v", i, got, want)
		}
		for k, m := range samples[i].Mask {
			if m == 1 && samples[i].CeWeights.At(k) != 0 {
				t.Errorf("branch %d: token %d is in both losses", i, k)
			}
		}
	}
}

// A version counts only where one of its own tokens was sampled.
func TestPolicyStart(t *testing.T) {
	n := schemas.Node{Mask: schemas.Uint8s{0, 1, 0}, Versions: []schemas.VersionRun{run(0, 1), run(1, 5), run(2, 2)}}
	tr := &schemas.Trace{Nodes: []schemas.Node{{}, n}}
	if got := policyStart(tr); got == nil || *got != 5 {
		t.Errorf("%v", got)
	}
	if tr.Policy = "teacher"; policyStart(tr) != nil {
		t.Error("a frozen policy has a version")
	}
}

func version(v int64) *int64 { return &v }

// A frozen policy has no version, whatever its server says.
func TestFrozen(t *testing.T) {
	tr := tree()
	tr.Policy = "teacher"
	for _, s := range samplesOf(tr, nil, advantage.Credit{CE: 1}) {
		if s.PolicyStart != nil {
			t.Errorf("branch %d starts at version %d", s.Branch, *s.PolicyStart)
		}
	}
}

func score(t testing.TB, cfg Config, traces ...*schemas.Trace) *schemas.SampleGroup {
	t.Helper()
	r, err := newRules(cfg.Settings)
	if err != nil {
		t.Fatal(err)
	}
	sg := &schemas.SampleGroup{Env: "catch", Rollouts: make([]schemas.RolloutFate, len(traces))}
	for i, tr := range traces {
		sg.Rollouts[i].Fate = fate(tr)
	}
	r.score(traces, sg, advantage.Averages{}, new(memory))
	if err := sg.Validate(); err != nil {
		t.Fatal(err)
	}
	return sg
}

func with(change func(*Settings)) Config {
	cfg := DefaultConfig()
	change(&cfg.Settings)
	return cfg
}

// One rule: what is in no loss is never sent; whether what weighs nothing is, says the filter zero_advantage.
func TestZeroAdvantage(t *testing.T) {
	mode := func(m filter.Mode) Config { return with(func(s *Settings) { s.Filters.ZeroAdvantage.Mode = m }) }
	equal := []*schemas.Trace{trace(0, 2, 0, 1), trace(0, 2, 1, 1)}
	middle := []*schemas.Trace{trace(0, 3, 0, 0), trace(0, 3, 1, 0.5), trace(0, 3, 2, 1)}
	null := []*schemas.Trace{trace(0, 2, 0, 0), trace(0, 2, 1, 0)}
	null[0].Reward, null[1].Reward = nil, nil
	told := []*schemas.Trace{trace(0, 2, 0, 1), trace(0, 2, 1, 1)}
	for _, tr := range told {
		tool := prompt(1, 60, 2)
		tool.Role = "tool"
		tr.Nodes = append(tr.Nodes, tool)
	}
	echo := with(func(s *Settings) { s.Advantage = advantage.Echo })
	sft := with(func(s *Settings) { s.Advantage = advantage.SFT })
	for _, tt := range []struct {
		name      string
		cfg       Config
		traces    []*schemas.Trace
		samples   int
		filter    string
		monitored int64
	}{
		{"drop a group", mode(filter.Drop), equal, 0, "zero_advantage", 0},
		{"monitor a group", mode(filter.Monitor), equal, 2, "", 2},
		{"let a group pass", mode(filter.Off), equal, 2, "", 0},
		{"drop one of three", mode(filter.Drop), middle, 2, "", 1},
		{"monitor one of three", mode(filter.Monitor), middle, 3, "", 1},
		{"drop nulls", mode(filter.Drop), null, 0, filter.NothingToTrain, 0},
		{"nulls are not monitored", mode(filter.Monitor), null, 0, filter.NothingToTrain, 0},
		{"another loss weighs", echo, told, 2, "", 0},
		{"no other loss", echo, equal, 0, "zero_advantage", 0},
		{"imitation of nulls", sft, null, 2, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sg := score(t, tt.cfg, tt.traces...)
			if len(sg.Samples) != tt.samples || sg.Filter != tt.filter || (sg.Reason == "filtered") != (tt.samples == 0) || sg.Monitored["zero_advantage"] != tt.monitored {
				t.Errorf("%d samples, reason %q, filter %q, monitored %v", len(sg.Samples), sg.Reason, sg.Filter, sg.Monitored)
			}
			sent := 0
			for _, r := range sg.Rollouts {
				if r.Fate == "" {
					sent++
				} else if r.Fate != schemas.FateFiltered {
					t.Errorf("fate %q", r.Fate)
				}
			}
			if sent != tt.samples {
				t.Errorf("%d rollouts are undecided, %d samples", sent, tt.samples)
			}
		})
	}
}

// The first filter that drops is the fate of a sample, and is counted where the group is trained; all that monitor are
// counted, whatever others do.
func TestFilters(t *testing.T) {
	cut := trace(0, 3, 0, 0)
	cut.Truncated = true
	traces := []*schemas.Trace{cut, trace(0, 3, 1, 0.5), trace(0, 3, 2, 1)}
	sg := score(t, with(func(s *Settings) {
		s.Filters.ZeroAdvantage.Mode = filter.Monitor
		s.Filters.Length = filter.Length{Mode: filter.Monitor, MaxTokens: 1}
		s.Filters.Truncated.Mode = filter.Drop
		s.Filters.RewardRange = filter.RewardRange{Mode: filter.Drop, Min: 0.1, Max: 0.9}
	}), traces...)
	if len(sg.Samples) != 1 || sg.Samples[0].RolloutIndex != 1 || !reflect.DeepEqual(sg.Monitored, map[string]int64{"length": 3, "zero_advantage": 1, "truncated": 1, "reward_range": 1}) {
		t.Errorf("%d samples, monitored %v", len(sg.Samples), sg.Monitored)
	}
	if sg.Samples[0].Advantages.At(2) != 0 {
		t.Errorf("rewards of filtered rollouts are not in the baseline: advantage %v", sg.Samples[0].Advantages.At(2))
	}
	sg = score(t, with(func(s *Settings) {
		s.Filters.Truncated.Mode = filter.Drop
		s.Filters.RewardRange = filter.RewardRange{Mode: filter.Drop, Min: 9, Max: 10}
	}), traces...)
	if sg.Reason != "filtered" || sg.Filter != "truncated" || sg.Monitored["truncated"] != 0 {
		t.Errorf("reason %q, filter %q, monitored %v: the first sample was truncated", sg.Reason, sg.Filter, sg.Monitored)
	}
}

// Tokens that were not sampled may stand between those that were: advantages are those of the sampled ones, in order.
func TestRuns(t *testing.T) {
	tr := trace(0, 1, 0, 1)
	tr.Nodes[1] = answer(0, 10, 7, run(0, 4))
	tr.Nodes[1].Mask = schemas.Uint8s{1, 1, 0, 0, 1, 0, 1}
	s, _ := newRollout(tr).sample(0, advantage.Credit{RL: true, Tokens: []float32{1, 2, 3, 4}}, nil, new(memory))
	if got, want := s.Advantages.Values(), []float32{0, 0, 1, 2, 0, 0, 3, 0, 4}; !slices.Equal(got, want) {
		t.Errorf("advantages %v, want %v", got, want)
	}
	if got, want := s.Temperatures.Values(), []float32{1, 1, 0.5, 0.5, 1, 1, 0.5, 1, 0.5}; !slices.Equal(got, want) {
		t.Errorf("temperatures %v, want %v", got, want)
	}
	for from, to := range runs(schemas.Uint8s{0, 0}) {
		t.Errorf("tokens %d to %d were not sampled", from, to)
	}
}
