package progress

import (
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/schemas"
)

func TestInterval(t *testing.T) {
	for want, got := range map[string]string{"0.500 ± 0.196": Interval(0.5, 0.1), "0.500": Interval(0.5, 0)} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestTable(t *testing.T) {
	table := Table(&schemas.EvalResult{Eval: "by-hand/x", K: 2, Examples: 3, Episodes: 5, Errored: 1, AvgAtK: 0.5, AvgStderr: 0.1, PassAtK: 0.75,
		PassStderr: 0.2, Rewards: map[string]float64{"b": 1, "a": 0.25}, Baselines: map[string]float64{"random": 0.125}}, 0.8)
	for _, want := range []string{
		"  avg@2        0.500 ± 0.196\n", "  pass@2       0.750 ± 0.392   (a reward of at least 0.8)\n", "  rewards      a 0.250, b 1.000\n",
		"  baselines    random 0.125\n", "  rollouts     6 of 3 examples, 1 failed\n",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("%q is not in\n%s", want, table)
		}
	}
	if strings.Contains(table, "metrics") {
		t.Errorf("a line for metrics that are not there:\n%s", table)
	}
}

// TestEvalByHandIsNoPartOfTheRun: nothing waits for it to measure the final version.
func TestEvalByHandIsNoPartOfTheRun(t *testing.T) {
	v := &View{MaxSteps: 1}
	feed(v, version(0, false), packed(1, 0, 1, 0), version(1, true), &schemas.EvalResult{Eval: "by-hand/x", AvgAtK: 1})
	if line := v.Line(time.Now()); strings.Contains(line, "waits for") || strings.Contains(v.Summary(0), "by-hand") {
		t.Errorf("%s\n%s", line, v.Summary(0))
	}
}

// TestBar prints a line now and then, and the last one once.
func TestBar(t *testing.T) {
	var out strings.Builder
	p, now := NewPrinter(&out), time.Unix(1000, 0)
	for _, c := range []struct {
		after time.Duration
		done  int
		want  int
	}{{0, 0, 1}, {time.Second, 1, 1}, {10 * time.Second, 2, 2}, {time.Second, 4, 3}, {time.Second, 4, 3}} {
		now = now.Add(c.after)
		p.ShowBar(Bar{Done: c.done, Total: 4, Note: "examples"}, now)
		if n := strings.Count(out.String(), "\n"); n != c.want {
			t.Errorf("%d lines at %d of 4, want %d:\n%s", n, c.done, c.want, out.String())
		}
	}
	if !strings.HasSuffix(out.String(), "4 of 4 examples\n") {
		t.Error(out.String())
	}
	if bar := (Bar{Done: 2, Total: 4}).String(); strings.Count(bar, "█") != 15 || strings.Count(bar, "░") != 15 {
		t.Error(bar)
	}
}
