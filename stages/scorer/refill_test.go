package scorer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
)

// tried is the failure of an attempt.
func tried(attempt int, t *schemas.Trace) *schemas.Trace {
	t.Attempt = attempt
	return t
}

func ofRun(name string, t *schemas.Trace) *schemas.Trace {
	t.GroupRun = name
	return t
}

// play feeds traces and writes down what comes of it.
func play(t testing.TB, r *pipelinetest.Runner, traces ...*schemas.Trace) string {
	t.Helper()
	before := len(r.Emitted)
	for _, trace := range traces {
		r.Feed(t, pipeline.TopicTraces, trace)
	}
	if len(r.Poison) > 0 {
		t.Fatal(r.Poison)
	}
	var lines []string
	for _, e := range r.Emitted[before:] {
		switch v := e.Value.(type) {
		case *schemas.Request:
			if err := v.Validate(); err != nil || e.Topic != pipeline.TopicRequests {
				t.Fatalf("%s: %v", e.Topic, err)
			}
			lines = append(lines, fmt.Sprintf("%s %d/%d attempt %d for %d", v.Kind, v.GroupID, v.RolloutIndex, v.Attempt, v.Rollouts))
		case *schemas.SampleGroup:
			if err := v.Validate(); err != nil {
				t.Fatal(err)
			}
			line := fmt.Sprintf("group %d %q %d samples:", v.GroupID, v.Reason, len(v.Samples))
			for _, f := range v.Rollouts {
				line += fmt.Sprintf(" %s.%d", f.Fate, f.Attempt)
			}
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

// TestPartial plays groups of three of which rollouts fail.
func TestPartial(t *testing.T) {
	fine := func(i int) *schemas.Trace { return trace(0, 3, i, float64(i)) }
	fails := func(i, attempt int, kind string) *schemas.Trace { return tried(attempt, failure(0, 3, i, kind)) }
	// At the deadline, every rollout has its newest attempt ended.
	over := func(kind string, attempts ...int) (all []*schemas.Trace) {
		for i, a := range attempts {
			all = append(all, fails(i, a, kind))
		}
		return all
	}
	join := func(a []*schemas.Trace, b ...*schemas.Trace) []*schemas.Trace { return slices.Concat(b, a) }
	for _, tt := range []struct {
		name    string
		partial Partial
		least   int
		traces  []*schemas.Trace
		want    string
	}{
		{"a refill that succeeds", Refill, 2, []*schemas.Trace{fine(0), fails(1, 0, "model"), fine(2), tried(1, fine(1))},
			`refill 0/1 attempt 1 for 1; group 0 "" 2 samples: .0 filtered.1 .0`},
		{"two rollouts, two attempts", Refill, 2, []*schemas.Trace{fails(0, 0, "model"), fine(2), fails(1, 0, "crashed"), fails(1, 1, "model"), tried(1, fine(0)), tried(2, fine(1))},
			`refill 0/0 attempt 1 for 1; refill 0/1 attempt 1 for 1; refill 0/1 attempt 2 for 1; group 0 "" 2 samples: .1 filtered.2 .0`},
		{"attempts are used up", Refill, 2, []*schemas.Trace{fine(0), fails(1, 0, "model"), fine(2), fails(1, 1, "model"), fails(1, 2, "model")},
			`refill 0/1 attempt 1 for 1; refill 0/1 attempt 2 for 1; group 0 "errored" 0 samples: errored.0 errored.2 errored.0`},
		{"the same failure twice", Refill, 2, []*schemas.Trace{fails(1, 0, "model"), fails(1, 0, "model"), fails(1, 1, "model"), fails(1, 0, "model")},
			`refill 0/1 attempt 1 for 1; refill 0/1 attempt 2 for 1`},
		{"a second run succeeds", Refill, 2, []*schemas.Trace{fine(0), fails(1, 0, "model"), fine(2), fine(1)},
			`refill 0/1 attempt 1 for 1; group 0 "" 2 samples: .0 filtered.0 .0`},
		{"a second run fails", Refill, 2, []*schemas.Trace{fine(0), fine(1), fails(1, 0, "model"), fine(2)},
			`group 0 "" 2 samples: .0 filtered.0 .0`},
		{"the deadline", Refill, 2, join(over("timed_out", 0, 1, 0), fine(0), fails(1, 0, "model"), fine(2)),
			`refill 0/1 attempt 1 for 1; group 0 "timed_out" 0 samples: timed_out.0 errored.0 timed_out.0`},
		{"the deadline of a missing one", Refill, 2, join(over("timed_out", 0, 1, 0), fails(1, 0, "model"), fine(2)),
			`refill 0/1 attempt 1 for 1; group 0 "timed_out" 0 samples: timed_out.0 errored.0 timed_out.0`},
		{"stale", Refill, 2, []*schemas.Trace{fails(0, 0, "stale"), fails(1, 0, "model"), fine(2)},
			`group 0 "stale" 0 samples: stale.0 errored.0 stale.0`},
		{"stale beside a trace without error", Refill, 2, []*schemas.Trace{fine(0), fails(0, 0, "stale"), fails(1, 0, "model"), fine(2), tried(1, fine(1))},
			`refill 0/1 attempt 1 for 1; group 0 "" 2 samples: .0 filtered.1 .0`},
		{"a deadline beside a trace without error", Refill, 2, []*schemas.Trace{fine(0), fails(1, 0, "model"), fails(0, 0, "timed_out"), fine(2)},
			`refill 0/1 attempt 1 for 1; group 0 "timed_out" 0 samples: timed_out.0 errored.0 timed_out.0`},
		{"an attempt that is refused", Refill, 2, []*schemas.Trace{fine(0), fails(1, 0, "model"), fine(2), fails(1, 1, "attempts"), fails(1, 2, "attempts")},
			`refill 0/1 attempt 1 for 1; refill 0/1 attempt 2 for 1; group 0 "errored" 0 samples: errored.0 errored.2 errored.0`},
		{"cancelled", Refill, 2, join(over("cancelled", 0, 0, 0), fine(0)),
			`group 0 "cancelled" 0 samples: cancelled.0 cancelled.0 cancelled.0`},

		{"with those it has", Train, 2, []*schemas.Trace{fine(0), fails(1, 0, "model"), fine(2)},
			`group 0 "" 2 samples: .0 errored.0 .0`},
		{"with those it has at the deadline", Train, 2, join(over("timed_out", 0, 0, 0), fine(0), fine(2)),
			`group 0 "" 2 samples: .0 timed_out.0 .0`},
		{"too few", Train, 3, []*schemas.Trace{fine(0), fails(1, 0, "model"), fine(2)},
			`group 0 "errored" 0 samples: errored.0 errored.0 errored.0`},
		{"with those it has, all equal", Train, 2, []*schemas.Trace{trace(0, 3, 0, 1), fails(1, 0, "model"), trace(0, 3, 2, 1)},
			`group 0 "filtered" 0 samples: filtered.0 errored.0 filtered.0`},
		{"the end of the run", Train, 2, join(over("cancelled", 0, 0, 0), fine(0), fine(2)),
			`group 0 "cancelled" 0 samples: cancelled.0 cancelled.0 cancelled.0`},

		{"without any", Drop, 2, []*schemas.Trace{fine(0), fails(1, 0, "model"), fine(2)},
			`group 0 "errored" 0 samples: errored.0 errored.0 errored.0`},
	} {
		t.Run(fmt.Sprint(tt.partial, " ", tt.name), func(t *testing.T) {
			cfg := with(func(s *Settings) { s.Partial, s.MinGroupSize = tt.partial, tt.least })
			r := pipelinetest.NewRunner(t, coreOf(cfg, 1, 0))
			if got := play(t, r, tt.traces...); got != tt.want {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
		})
	}
}

// A failed rollout is no zero reward: the others are compared with each other alone.
func TestFailedIsNoZero(t *testing.T) {
	r := pipelinetest.NewRunner(t, coreOf(with(func(s *Settings) { s.Partial = Train }), 1, 0))
	groups := feed(t, r, trace(0, 3, 0, 2), failure(0, 3, 1, "model"), trace(0, 3, 2, 4))
	if len(groups) != 1 || groups[0].Samples[0].Advantages.At(2) != -1 || groups[0].Samples[1].Advantages.At(2) != 1 {
		t.Fatalf("%+v", groups)
	}
	if groups[0].Monitored["errored"] != 2 {
		t.Errorf("monitored %v", groups[0].Monitored)
	}
}

// A group that is scored as a whole is asked for again as a whole.
func TestRefillOfRuns(t *testing.T) {
	fine := func(run string, i int) *schemas.Trace { return ofRun(run, trace(0, 2, i, float64(i))) }
	fails := func(run string, i, attempt int) *schemas.Trace {
		return ofRun(run, tried(attempt, failure(0, 2, i, "model")))
	}
	for _, tt := range []struct {
		name   string
		traces []*schemas.Trace
		want   string
	}{
		{"once", []*schemas.Trace{fails("a", 0, 0), fails("a", 1, 0), tried(1, fine("b", 0)), tried(1, fine("b", 1))},
			`refill 0/-1 attempt 1 for 2; group 0 "" 2 samples: .1 .1`},
		{"two runs of one attempt", []*schemas.Trace{fails("a", 0, 0), fine("b", 1), fails("a", 1, 0), fine("b", 0)},
			`refill 0/-1 attempt 1 for 2; group 0 "" 2 samples: .0 .0`},
		{"used up", []*schemas.Trace{fails("a", 0, 0), fails("a", 1, 0), fails("b", 1, 1), fails("b", 0, 1), fails("c", 0, 2), fails("c", 1, 2)},
			`refill 0/-1 attempt 1 for 2; refill 0/-1 attempt 2 for 2; group 0 "errored" 0 samples: errored.2 errored.2`},
		{"a late failure of a run that delivered the rollout", []*schemas.Trace{fine("a", 0), fails("a", 0, 0), fine("a", 1)},
			`group 0 "" 2 samples: .0 .0`},
		{"refused", []*schemas.Trace{fails("a", 0, 0), fails("a", 1, 0), fails("emitter", 0, 1), fails("emitter", 1, 1), fails("emitter", 0, 2), fails("emitter", 1, 2)},
			`refill 0/-1 attempt 1 for 2; refill 0/-1 attempt 2 for 2; group 0 "errored" 0 samples: errored.2 errored.2`},
		{"the deadline", []*schemas.Trace{fails("a", 0, 0), fails("a", 1, 0), tried(1, failure(0, 2, 0, "timed_out"))},
			`refill 0/-1 attempt 1 for 2; group 0 "timed_out" 0 samples: errored.0 errored.0`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := play(t, pipelinetest.NewRunner(t, newCore(1, 0)), tt.traces...); got != tt.want {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
		})
	}
}

// failing is traffic with attempts: what is asked for comes, and may fail.
func failing(rng *rand.Rand, groups int) []*schemas.Trace {
	var traces []*schemas.Trace
	for g := range int64(groups) {
		size := 1 + rng.IntN(3)
		whole := rng.IntN(3) == 0
		for attempt := range 1 + rng.IntN(4) {
			for i := range size {
				t := trace(g, size, i, float64(rng.IntN(3)))
				if rng.IntN(2) == 0 {
					t = failure(g, size, i, []string{"crashed", "model", "model", "timed_out"}[rng.IntN(4)])
				}
				if whole {
					t.GroupRun = fmt.Sprint("run", attempt)
				}
				for range 1 + rng.IntN(2) {
					traces = append(traces, tried(attempt, t))
				}
			}
		}
		for i := range size { // the deadline
			traces = append(traces, tried(3, failure(g, size, i, "timed_out")))
		}
	}
	for range traces { // attempts mostly come one after the other
		i := rng.IntN(len(traces) - 1)
		traces[i], traces[i+1] = traces[i+1], traces[i]
	}
	return traces
}

// TestInvariant_OneRequest: an attempt is asked for once, before its group is decided, whatever arrives twice and whenever
// the core is built again.
func TestInvariant_OneRequest(t *testing.T) {
	requests := 0
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 5))
		r := pipelinetest.NewRunner(t, newCore(1, 0))
		asked, decided := map[schemas.Request]bool{}, map[int64]bool{}
		const groups = 8
		for _, trace := range failing(rng, groups) {
			if rng.IntN(5) == 0 {
				r.Restart(t)
			}
			for _, e := range r.Feed(t, pipeline.TopicTraces, trace) {
				switch v := e.Value.(type) {
				case *schemas.Request:
					if asked[*v] || decided[v.GroupID] || v.Attempt < 1 || v.Attempt > 2 {
						t.Fatalf("seed %d: %+v, asked before: %v, decided: %v", seed, v, asked[*v], decided[v.GroupID])
					}
					asked[*v] = true
				case *schemas.SampleGroup:
					if decided[v.GroupID] {
						t.Fatalf("seed %d: group %d is decided twice", seed, v.GroupID)
					}
					decided[v.GroupID] = true
				}
			}
		}
		if len(decided) != groups || len(r.Unfinished()) > 0 || len(r.Poison) > 0 {
			t.Fatalf("seed %d: %d groups, %d unfinished, %v", seed, len(decided), len(r.Unfinished()), r.Poison)
		}
		requests += len(asked)
	}
	if requests < 100 {
		t.Errorf("%d requests", requests)
	}
}

func TestConformanceOfRefills(t *testing.T) {
	for seed := range uint64(5) {
		for _, partial := range []Partial{Refill, Train} {
			var steps []pipelinetest.Step
			for i, trace := range failing(rand.New(rand.NewPCG(seed, 6)), 4) {
				steps = append(steps, pipelinetest.Step{Record: &pipeline.Record{
					Ref: pipeline.Ref{Topic: pipeline.TopicTraces, Offset: int64(i)}, Value: trace}})
			}
			pipelinetest.Check(t, coreOf(with(func(s *Settings) { s.Partial = partial }), 1, 0), steps)
		}
	}
}

func TestNoAttempts(t *testing.T) {
	run := pipeline.DefaultRunConfig()
	run.TracePartitions = 1
	factory := New(run, DefaultConfig(), 0)
	r := pipelinetest.NewRunner(t, func(state []byte) (pipeline.Core, error) { return factory(0, state) })
	if got, want := play(t, r, failure(0, 1, 0, "model")), `group 0 "errored" 0 samples: errored.0`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if r.Core.(*Core).Counts()["refills"] != 0 {
		t.Error("a refill was counted")
	}
}

// Requests that other settings would have made for an open group are not made: the group ends at its deadline.
func TestOtherSettingsOfAnOpenGroup(t *testing.T) {
	partial := Train
	r := pipelinetest.NewRunner(t, func(state []byte) (pipeline.Core, error) {
		return coreOf(with(func(s *Settings) { s.Partial = partial }), 1, 0)(state)
	})
	play(t, r, trace(0, 3, 0, 0), failure(0, 3, 1, "model"))
	partial = Refill
	r.Restart(t)
	if got := play(t, r, trace(0, 3, 2, 2)); got != "" {
		t.Errorf("%s, want nothing: rollout 1 is waited for", got)
	}
	got := play(t, r, failure(0, 3, 0, "timed_out"))
	if want := `group 0 "timed_out" 0 samples: timed_out.0 errored.0 timed_out.0`; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
