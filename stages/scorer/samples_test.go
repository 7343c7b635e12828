package scorer

import (
	"bytes"
	"reflect"
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
	return t
}

func TestInvariant_TokenExactness(t *testing.T) {
	samples := samplesOf(tree(), advantage.Advantage{Tokens: []float32{1, 2, 3, 4, 5}})
	if len(samples) != 3 {
		t.Fatalf("%d samples, want one for each branch with tokens to train on", len(samples))
	}
	for i, want := range []struct {
		branch     int
		ids        []int32
		mask       []byte
		logprobs   []float32
		advantages []float32
		start      *int64
	}{
		{0, []int32{1, 2, 10, 11, 12, 20}, []byte{0, 0, 1, 1, 0, 0}, []float32{0, 0, -10, -11, 0, 0}, []float32{0, 0, 1, 2, 0, 0}, version(7)},
		{1, []int32{1, 2, 10, 11, 12, 30, 31, 32}, []byte{0, 0, 0, 0, 0, 1, 1, 0}, []float32{0, 0, -10, -11, 0, -30, -31, 0},
			[]float32{0, 0, 0, 0, 0, 3, 4, 0}, version(7)},
		{2, []int32{1, 2, 40, 41}, []byte{0, 0, 1, 0}, []float32{0, 0, -40, 0}, []float32{0, 0, 5, 0}, nil},
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
			if temperature := float32(1 - 0.5*float32(m)); s.Temperatures.At(k) != temperature {
				t.Errorf("sample %d: token %d has temperature %v", i, k, s.Temperatures.At(k))
			}
		}
	}
}

// A version counts only where one of its own tokens was sampled.
func TestPolicyStart(t *testing.T) {
	n := schemas.Node{Mask: schemas.Uint8s{0, 1, 0}, Versions: []schemas.VersionRun{run(0, 1), run(1, 5), run(2, 2)}}
	if got := policyStart([]schemas.Node{{}, n}); got == nil || *got != 5 {
		t.Errorf("%v", got)
	}
}

func version(v int64) *int64 { return &v }

func score(t testing.TB, cfg Config, traces ...*schemas.Trace) (*schemas.SampleGroup, Stats) {
	t.Helper()
	r, err := newRules(cfg)
	if err != nil {
		t.Fatal(err)
	}
	sg := &schemas.SampleGroup{Rollouts: make([]schemas.RolloutFate, len(traces))}
	var stats Stats
	r.score(traces, sg, &stats)
	return sg, stats
}

func TestZeroAdvantage(t *testing.T) {
	monitor := DefaultConfig()
	monitor.ZeroAdvantage = filter.Monitor
	equal := []*schemas.Trace{trace(0, 2, 0, 1), trace(0, 2, 1, 1)}
	middle := []*schemas.Trace{trace(0, 3, 0, 0), trace(0, 3, 1, 0.5), trace(0, 3, 2, 1)}
	null := []*schemas.Trace{trace(0, 2, 0, 0), trace(0, 2, 1, 0)}
	null[0].Reward, null[1].Reward = nil, nil
	for _, tt := range []struct {
		name      string
		cfg       Config
		traces    []*schemas.Trace
		samples   int
		filter    string
		monitored int64
	}{
		{"drop a group", DefaultConfig(), equal, 0, filter.ZeroAdvantage, 0},
		{"monitor a group", monitor, equal, 2, "", 2},
		{"drop one of three", DefaultConfig(), middle, 2, "", 0},
		{"monitor one of three", monitor, middle, 3, "", 1},
		{"drop nulls", DefaultConfig(), null, 0, filter.NothingToTrain, 0},
		{"nulls are not monitored", monitor, null, 0, filter.NothingToTrain, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sg, stats := score(t, tt.cfg, tt.traces...)
			if len(sg.Samples) != tt.samples || sg.Filter != tt.filter || (sg.Reason == "filtered") != (tt.samples == 0) || stats.Monitored != tt.monitored {
				t.Errorf("%d samples, reason %q, filter %q, %d monitored", len(sg.Samples), sg.Reason, sg.Filter, stats.Monitored)
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
