package scorer

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
)

func newCore(partitions int, partition int32) pipelinetest.New {
	return coreOf(DefaultConfig(), partitions, partition)
}

// coreOf makes cores that try a rollout again twice.
func coreOf(cfg Config, partitions int, partition int32) pipelinetest.New {
	run := pipeline.DefaultRunConfig()
	run.TracePartitions = partitions
	factory := New(run, cfg, 2)
	return func(state []byte) (pipeline.Core, error) { return factory(partition, state) }
}

func feed(t testing.TB, r *pipelinetest.Runner, traces ...*schemas.Trace) []*schemas.SampleGroup {
	t.Helper()
	var groups []*schemas.SampleGroup
	for _, trace := range traces {
		for _, e := range r.Feed(t, pipeline.TopicTraces, trace) {
			if e.Topic == pipeline.TopicSamples {
				groups = append(groups, e.Value.(*schemas.SampleGroup))
			}
		}
	}
	return groups
}

func TestGroupFields(t *testing.T) {
	a, b := trace(3, 2, 0, 0), trace(3, 2, 1, 1)
	for _, t := range []*schemas.Trace{a, b} {
		t.Step, t.Wave, t.WaveFirst, t.WaveLast, t.Attempt, t.Truncated = 5, 2, 1, 9, 1, true
	}
	groups := feed(t, pipelinetest.NewRunner(t, newCore(1, 0)), b, a)
	if len(groups) != 1 {
		t.Fatalf("%d groups", len(groups))
	}
	g := groups[0]
	if g.Env != "catch" || g.GroupID != 3 || g.TaskIndex != 13 || g.Emitted != 2 || g.Step != 5 || g.Wave != 2 || g.WaveFirst != 1 || g.WaveLast != 9 {
		t.Errorf("%+v", g)
	}
	for i, r := range g.Rollouts {
		if r.RolloutIndex != i || r.Fate != "" || *r.Reward != float64(i) || *r.PolicyStart != 4 || r.Tokens != 5 || !r.Truncated || r.Attempt != 1 {
			t.Errorf("rollout %d: %+v", i, r)
		}
		if s := g.Samples[i]; s.RolloutIndex != i || s.Advantages.At(2) != float32(i)-0.5 {
			t.Errorf("sample %d: rollout %d, advantages %v", i, s.RolloutIndex, s.Advantages.Values())
		}
	}
	if err := g.Validate(); err != nil {
		t.Error(err)
	}
}

func TestInvariant_FirstGoodTrace(t *testing.T) {
	r := pipelinetest.NewRunner(t, newCore(1, 0))
	groups := feed(t, r,
		failure(0, 2, 0, "crashed"), trace(0, 2, 0, 3), trace(0, 2, 0, 9), failure(0, 2, 0, "timed_out"), trace(0, 2, 1, 5))
	if len(groups) != 1 || groups[0].Reason != "" || *groups[0].Rollouts[0].Reward != 3 {
		t.Fatalf("%+v", groups)
	}
	if left := r.Unfinished(); len(left) != 0 {
		t.Errorf("%d traces of a decided group are unfinished", len(left))
	}
	feed(t, r, trace(0, 2, 1, 5))
	if counts := r.Core.(*Core).Counts(); counts["second"] != 3 || counts["late"] != 1 {
		t.Errorf("counted %v, want 3 second and 1 late trace", counts)
	}
}

// Of errors, the first stays.
func TestFirstError(t *testing.T) {
	r := pipelinetest.NewRunner(t, coreOf(dropping(), 1, 0))
	groups := feed(t, r, failure(0, 2, 0, "crashed"), failure(0, 2, 0, "model"), trace(0, 2, 1, 5))
	if len(groups) != 1 || groups[0].Reason != "errored" || groups[0].Rollouts[0].Error != "crashed: message" {
		t.Fatalf("%+v", groups)
	}
}

func dropping() Config { return with(func(s *Settings) { s.Partial = Drop }) }

func TestReasons(t *testing.T) {
	for _, tt := range []struct {
		kinds  []string // errors of the rollouts; empty for none
		reason string
		fates  []string
	}{
		{[]string{"", "model", ""}, "errored", []string{"errored", "errored", "errored"}},
		{[]string{"crashed", "", "timed_out"}, "timed_out", []string{"errored", "timed_out", "timed_out"}},
		{[]string{"cancelled", "stale", "model"}, "cancelled", []string{"cancelled", "stale", "errored"}},
		{[]string{"", "stale", "crashed"}, "stale", []string{"stale", "stale", "errored"}},
	} {
		r := pipelinetest.NewRunner(t, coreOf(dropping(), 1, 0))
		var groups []*schemas.SampleGroup
		for i, kind := range tt.kinds {
			if kind == "" {
				groups = append(groups, feed(t, r, trace(0, 3, i, 1))...)
			} else {
				groups = append(groups, feed(t, r, failure(0, 3, i, kind))...)
			}
		}
		if len(groups) != 1 || groups[0].Reason != tt.reason || len(groups[0].Samples) != 0 {
			t.Fatalf("%v: %+v", tt.kinds, groups)
		}
		for i, f := range groups[0].Rollouts {
			if f.Fate != tt.fates[i] || (f.Error == "") != (tt.kinds[i] == "") || (f.Reward == nil) != (tt.kinds[i] != "") {
				t.Errorf("%v: rollout %d: %+v", tt.kinds, i, f)
			}
		}
	}
}

// Of an environment that scores groups, the first run that is complete counts, and runs are not mixed.
func TestGroupRuns(t *testing.T) {
	of := func(run string, t *schemas.Trace) *schemas.Trace {
		t.GroupRun = run
		return t
	}
	r := pipelinetest.NewRunner(t, newCore(1, 0))
	groups := feed(t, r, of("a", trace(0, 2, 0, 1)), of("b", trace(0, 2, 1, 2)), of("b", trace(0, 2, 0, 3)))
	if len(groups) != 1 || groups[0].Reason != "" || *groups[0].Rollouts[0].Reward != 3 {
		t.Errorf("two runs: %+v", groups)
	}
	groups = feed(t, r, of("a", trace(1, 2, 0, 1)), failure(1, 2, 0, "timed_out"), failure(1, 2, 1, "timed_out"))
	if len(groups) != 1 || groups[0].Reason != "timed_out" || *groups[0].Rollouts[0].Reward != 1 {
		t.Errorf("a run that ended half way: %+v", groups)
	}
}

func TestDisagreement(t *testing.T) {
	r := pipelinetest.NewRunner(t, newCore(1, 0))
	groups := feed(t, r, trace(0, 3, 0, 1), trace(0, 4, 3, 1))
	if len(groups) != 1 || groups[0].Reason != "errored" || groups[0].Emitted != 3 || len(groups[0].Rollouts) != 2 {
		t.Fatalf("%+v", groups)
	}
}

func TestPoison(t *testing.T) {
	for name, spoil := range map[string]func(*schemas.Trace){
		"eval":          func(t *schemas.Trace) { t.Eval = "held-out" },
		"partition":     func(t *schemas.Trace) { t.GroupID = 2 },
		"mask":          func(t *schemas.Trace) { t.Nodes[1].Mask[0] = 2 },
		"token":         func(t *schemas.Trace) { t.Nodes[0].TokenIDs[3] = 0x80 },
		"temperature":   func(t *schemas.Trace) { t.Nodes[1].Temperature = 0 },
		"too small":     func(t *schemas.Trace) { t.Nodes[1].Temperature = 1e-60 },
		"logprobs":      func(t *schemas.Trace) { t.Nodes[1].Logprobs = nil },
		"no versions":   func(t *schemas.Trace) { t.Nodes[1].Versions = nil },
		"late versions": func(t *schemas.Trace) { t.Nodes[1].Versions = []schemas.VersionRun{run(1, 4)} },
		"token rewards": func(t *schemas.Trace) {
			t.Nodes[1].TokenRewards = schemas.Float32s{0, 0, 0, 0, 0, 0, 0xc0, 0x7f, 0, 0, 0, 0}
		},
		"nothing before":  func(t *schemas.Trace) { t.Nodes[0] = prompt(-1, 0, 0) },
		"endless samples": fan,
	} {
		t.Run(name, func(t *testing.T) {
			bad := trace(1, 1, 0, 1)
			spoil(bad)
			r := pipelinetest.NewRunner(t, newCore(2, 1))
			if groups := feed(t, r, bad); len(groups) != 0 || len(r.Poison) != 1 {
				t.Fatalf("%d groups, errors %v", len(groups), r.Poison)
			}
			if groups := feed(t, r, trace(1, 1, 0, 1)); len(groups) != 1 {
				t.Error("the group cannot end any more")
			}
		})
	}
}

// Only what the live policy sampled has versions: a rollout of it without would never be too old.
func TestVersionsAreThoseOfTheLivePolicy(t *testing.T) {
	frozen, late := trace(0, 1, 0, 1), trace(1, 1, 0, 1)
	frozen.Policy, frozen.Nodes[1].Versions = "teacher", nil
	late.Nodes[1].Mask[0], late.Nodes[1].Versions = 0, []schemas.VersionRun{run(1, 4)} // from the first sampled token on
	r := pipelinetest.NewRunner(t, newCore(1, 0))
	if groups := feed(t, r, frozen, late); len(groups) != 2 || len(r.Poison) != 0 {
		t.Fatalf("%d groups, %v", len(groups), r.Poison)
	}
}

// fan has 10,000 leaves under a path of 10,000 tokens.
func fan(t *schemas.Trace) {
	t.Nodes = []schemas.Node{prompt(-1, 0, 10_000)}
	for range 10_000 {
		t.Nodes = append(t.Nodes, answer(0, 0, 2, run(0, 4)))
	}
}

// traffic is the records of groups 0 to n-1 of a partition, out of order, with duplicates, failures, and what comes late.
func traffic(rng *rand.Rand, n int, partition, partitions int64) []*schemas.Trace {
	var traces []*schemas.Trace
	for g := range int64(n) {
		size := 1 + rng.IntN(3)
		for i := range size {
			group := g*partitions + partition
			for rng.IntN(4) == 0 {
				traces = append(traces, failure(group, size, i, []string{"crashed", "timed_out", "stale"}[rng.IntN(3)]))
			}
			for range 1 + rng.IntN(2) {
				traces = append(traces, trace(group, size, i, float64(rng.IntN(3))))
			}
		}
	}
	rng.Shuffle(len(traces), func(i, j int) { traces[i], traces[j] = traces[j], traces[i] })
	return traces
}

func TestInvariant_OneSampleGroup(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		const groups, partitions, partition = 12, 3, 2
		traces := traffic(rng, groups, partition, partitions)
		r := pipelinetest.NewRunner(t, newCore(partitions, partition))
		seen := map[int64]int{}
		for _, trace := range append(traces, traces...) {
			if rng.IntN(5) == 0 {
				r.Restart(t)
			}
			for _, g := range feed(t, r, trace) {
				seen[g.GroupID]++
				if err := g.Validate(); err != nil {
					t.Fatal(err)
				}
			}
		}
		for g := range int64(groups) {
			if seen[g*partitions+partition] != 1 {
				t.Fatalf("seed %d: sample groups by id: %v", seed, seen)
			}
		}
		if len(seen) != groups || len(r.Poison) > 0 || len(r.Unfinished()) > 0 {
			t.Fatalf("seed %d: %d groups, %v, %d unfinished", seed, len(seen), r.Poison, len(r.Unfinished()))
		}
		if state, _ := r.Core.State(); len(state) > 2 {
			t.Fatalf("%d bytes remember a run without gaps", len(state))
		}
		if r.Core.(*Core).Counts()["late"] == 0 {
			t.Fatal("nothing came late")
		}
	}
}

func TestConformance(t *testing.T) {
	for seed := range uint64(5) {
		var steps []pipelinetest.Step
		for i, trace := range traffic(rand.New(rand.NewPCG(seed, 1)), 6, 0, 1) {
			steps = append(steps, pipelinetest.Step{Record: &pipeline.Record{
				Ref: pipeline.Ref{Topic: pipeline.TopicTraces, Offset: int64(i)}, Value: trace}})
		}
		pipelinetest.Check(t, newCore(1, 0), steps)
	}
}

// The order in which the rollouts of a group end changes nothing.
func TestInvariant_Determinism(t *testing.T) {
	var want []byte
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var traces []*schemas.Trace
		for i := range 6 {
			traces = append(traces, trace(0, 6, i, 1/float64(1+i)))
		}
		rng.Shuffle(6, func(i, j int) { traces[i], traces[j] = traces[j], traces[i] })
		groups := feed(t, pipelinetest.NewRunner(t, newCore(1, 0)), traces...)
		got, err := schemas.Encode(groups[0])
		if err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = got
		}
		if !bytes.Equal(got, want) {
			t.Fatal("another order gave other bytes")
		}
	}
}

// FuzzCore plays any sequence of records under one of the ways with partial groups: two bytes each, group and rollout, and
// what kind of result. Whatever comes, no group ends twice, nothing is asked for twice or of a decided group, all that is
// emitted is valid, and a restart changes nothing.
func FuzzCore(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 1, 1, 2, 0x10, 3, 0, 1})
	f.Add([]byte{1, 0x31, 9, 0x31, 0xff, 0x01, 4})
	f.Add([]byte{0, 0, 0x17, 0, 6, 0, 0x27, 0, 0x37})                // one rollout fails three times
	f.Add([]byte{0, 0x40, 0x08, 0x50, 0x18, 0x40, 0x11, 0x50, 0x11}) // a run fails, another one does not
	f.Add([]byte{1, 0x40, 0x17, 0x50, 0x0f, 2, 0x40, 0x39})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		cfg := with(func(s *Settings) { s.Partial = []Partial{Refill, Train, Drop}[b[0]%3] })
		r := pipelinetest.NewRunner(t, coreOf(cfg, 1, 0))
		seen, asked := map[int64]bool{}, map[schemas.Request]bool{}
		for b = b[1:]; len(b) >= 2; b = b[2:] {
			size := 1 + int(b[0]>>6)
			tr := trace(int64(b[0]&15), size, int(b[0]>>4&3)%size, float64(b[1]>>4))
			switch b[1] & 15 {
			case 0:
				tr.Errors = []schemas.TraceError{{Type: []string{"timed_out", "x", "stale"}[b[1]>>4%3%3]}}
			case 1:
				tr.GroupRun = string('a' + rune(b[1]>>4))
			case 2:
				tr.Reward = nil
			case 3:
				tr.Nodes[1].Mask[b[1]>>4%3] ^= b[1] >> 6
			case 4:
				tr.Nodes[1].Parent = -1
			case 5:
				tr.Env = "wordle"
			case 6:
				r.Restart(t)
			case 7:
				tr.Errors, tr.Attempt = []schemas.TraceError{{Type: "model"}}, int(b[1]>>4)-1
			case 8:
				tr.Errors, tr.GroupRun = []schemas.TraceError{{Type: "model"}}, string('a'+rune(b[1]>>4))
			case 9:
				tr.Nodes[1].Reward, tr.Nodes[1].Agent = new(float64(b[1]>>4)), "solver"
			}
			if tr.Validate() != nil {
				continue
			}
			before := len(r.Emitted)
			groups := feed(t, r, tr)
			for _, e := range r.Emitted[before:] {
				request, ok := e.Value.(*schemas.Request)
				if ok && (asked[*request] || seen[request.GroupID] || cfg.Partial != Refill) {
					t.Fatalf("%+v was asked for before, or of a decided group, or under %s", request, cfg.Partial)
				}
				if ok {
					asked[*request] = true
				}
			}
			for _, g := range groups {
				if seen[g.GroupID] {
					t.Fatalf("group %d ended twice", g.GroupID)
				}
				seen[g.GroupID] = true
				if err := g.Validate(); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
