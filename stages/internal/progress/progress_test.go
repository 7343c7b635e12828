package progress

import (
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

func feed(v *View, values ...schemas.Record) {
	for _, r := range values {
		v.Feed(pipeline.Record{Value: r})
	}
}

func version(n int64, final bool) *schemas.PolicyVersion {
	return &schemas.PolicyVersion{Version: n, Step: n, Final: final, Weights: schemas.BlobRef{SHA256: "abc"}, Metrics: map[string]float64{"loss": 0.5}}
}

func packed(step, start int64, rewards ...float64) *schemas.GroupOutcome {
	o := &schemas.GroupOutcome{Env: "catch", Fate: schemas.FatePacked, Step: &step}
	for _, r := range rewards {
		o.Rollouts = append(o.Rollouts, schemas.RolloutFate{Fate: o.Fate, Reward: &r, PolicyStart: &start, Tokens: 10})
	}
	return o
}

// TestWaiting goes through a run: at every point it says what is missing, and nothing at the end.
func TestWaiting(t *testing.T) {
	open := 3
	v := &View{MaxSteps: 2, Envs: []string{"catch", "wordle"}, OpenGroups: func([]byte) (int, int, error) { return open, 8 * open, nil }}
	emitter := &schemas.StageState{Stage: "emitter", Core: []byte{1}}
	for _, c := range []struct {
		want  string
		event func()
	}{
		{"policy version 0, which the trainer makes", func() {}},
		{"a server of the environments catch, wordle (prl-stage --stage envserver --env catch)", func() { feed(v, version(0, false), emitter) }},
		{"a server of the environment wordle (prl-stage --stage envserver --env wordle)", func() { feed(v, &schemas.EnvInfo{Env: "catch"}) }},
		{"wordle to announce itself: its server starts here", func() { v.Here = true }},
		{"the first rollouts", func() { feed(v, &schemas.EnvInfo{Env: "wordle"}) }},
		{"step 1", func() { feed(v, packed(1, 0, 1, 0)) }},
		{"step 2", func() { feed(v, version(1, false)) }},
		{"3 open groups", func() { feed(v, version(2, true)) }},
		{"eval catch", func() { open = 0; feed(v, emitter) }},
		{"eval catch", func() { feed(v, &schemas.EvalResult{Eval: "catch", Version: 0}) }},
		{"", func() { feed(v, &schemas.EvalResult{Eval: "catch", Version: 2, AvgAtK: 1}) }},
	} {
		settled := v.Settled()
		c.event()
		if got := v.Waiting([]string{"catch"}); got != c.want {
			t.Errorf("waits for %q, want %q", got, c.want)
		}
		if v.Settled() < settled {
			t.Error("what is settled became less")
		}
	}
}

func TestLineAndSummary(t *testing.T) {
	v := &View{MaxSteps: 2}
	start := time.Unix(0, 0)
	v.Restart(start)
	feed(v, version(0, false), packed(1, 0, 1, 0), version(1, false), packed(2, 0, 1, 1), version(2, true),
		&schemas.EvalResult{Eval: "catch", Version: 0, AvgAtK: 0.25, Episodes: 4},
		&schemas.EvalResult{Eval: "catch", Version: 2, AvgAtK: 0.75, Episodes: 4, Baselines: map[string]float64{"random": 0.333}, Rewards: map[string]float64{"caught": 0.75}})
	line := v.Line(start.Add(10 * time.Second))
	for _, want := range []string{"step 2/2", "catch 0.750", "4 tok/s", "off-policy 1.0 (max 1)", "packed 4"} {
		if !strings.Contains(line, want) {
			t.Errorf("%q is not in %q", want, line)
		}
	}
	summary := v.Summary(time.Minute)
	for _, want := range []string{"policy version 2 after 1m0s", "abc", "0.250", "0.750", "random 0.333", "caught 0.750", "4 packed"} {
		if !strings.Contains(summary, want) {
			t.Errorf("%q is not in %q", want, summary)
		}
	}
	for _, l := range v.Screen(start.Add(10*time.Second), 40) {
		if n := len([]rune(l)); n > 40 {
			t.Errorf("a line of %d characters on a terminal of 40: %q", n, l)
		}
	}
}

// A run that began with a version of another one is compared with that.
func TestSummaryOfABranch(t *testing.T) {
	v := &View{MaxSteps: 6}
	feed(v, version(5, false), packed(6, 0, 1, 5), version(6, true),
		&schemas.EvalResult{Eval: "catch", Version: 5, AvgAtK: 0.25}, &schemas.EvalResult{Eval: "catch", Version: 6, AvgAtK: 0.75})
	if s := v.Summary(time.Minute); !strings.Contains(s, "version 5       version 6") || !strings.Contains(s, "0.250") {
		t.Errorf("summary:\n%s", s)
	}
}

// TestPrinterLines prints a line when a step was made, and now and then while none is.
func TestPrinterLines(t *testing.T) {
	var out strings.Builder
	p, v, now := NewPrinter(&out), &View{MaxSteps: 9}, time.Unix(1000, 0)
	lines := func() int { return strings.Count(out.String(), "\n") }
	feed(v, version(0, false))
	for _, c := range []struct {
		after time.Duration
		event schemas.Record
		want  int
	}{
		{0, nil, 1}, {time.Second, version(1, false), 1}, {10 * time.Second, nil, 2}, {10 * time.Second, nil, 2},
		{20 * time.Second, nil, 3}, {time.Second, version(9, true), 4}, {time.Second, nil, 4},
	} {
		if c.event != nil {
			feed(v, c.event)
		}
		now = now.Add(c.after)
		p.Show(v, now)
		if lines() != c.want {
			t.Errorf("%d lines, want %d:\n%s", lines(), c.want, out.String())
		}
	}
}

// TestBarDue says when a bar is drawn: now and then, when something else begins, and when it is full.
func TestBarDue(t *testing.T) {
	var out strings.Builder
	p, now := NewPrinter(&out), time.Unix(1000, 0)
	for i, c := range []struct {
		after time.Duration
		turn  bool
		done  int
		due   bool
		lines int
	}{
		{0, false, 0, true, 1}, {time.Second, false, 1, false, 1}, {9 * time.Second, false, 2, true, 2},
		{time.Second, true, 3, true, 3}, {time.Second, false, 4, false, 4}, {time.Second, false, 4, false, 4},
	} {
		if now = now.Add(c.after); c.turn {
			p.Turn()
		}
		if due := p.BarDue(now); due != c.due {
			t.Errorf("%d: due %v", i, due)
		}
		p.ShowBar(Bar{Done: c.done, Total: 4}, now)
		if n := strings.Count(out.String(), "\n"); n != c.lines {
			t.Errorf("%d: %d lines, want %d", i, n, c.lines)
		}
	}
}
