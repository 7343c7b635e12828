package main

import (
	"math"
	"strings"
	"testing"
)

// measured are rows of all figures that there are.
func measured(t *testing.T, value func(f figure) float64) (all []row) {
	t.Helper()
	for _, s := range []section{flow, scale} {
		for _, r := range s.runs {
			for _, f := range r.figures {
				all = append(all, row{Section: s.name, Name: f.name, Unit: f.unit, Value: value(f)})
			}
		}
	}
	return all
}

// plausible are values of the size that they have.
func plausible(f figure) float64 {
	switch {
	case strings.HasPrefix(f.unit, "outcomes"):
		return 30
	case strings.HasSuffix(f.unit, "ms/rollout"):
		return 0.5
	case strings.HasSuffix(f.unit, "B/rollout"):
		return 10_000
	case f.unit == "MB/s":
		return 300
	case f.unit == "cpu-µs/request":
		return 50
	}
	return 10
}

// Every figure that the model takes is one of those that are measured.
func TestFleetHasItsFigures(t *testing.T) {
	rows := foretell(measured(t, plausible))
	simulated := 0
	for _, r := range rows {
		if strings.HasSuffix(r.Name, "the trainer waits") {
			simulated++
		}
		if r.Why != "" || math.IsNaN(r.Value) || math.IsInf(r.Value, 0) {
			t.Errorf("%+v", r)
		}
	}
	if simulated != len(shapes) {
		t.Errorf("%d of %d fleets were simulated", simulated, len(shapes))
	}
}

// What was not measured is said, and nothing is made of it.
func TestFleetSaysWhatIsMissing(t *testing.T) {
	var rows []row
	for _, r := range measured(t, plausible) {
		if r.Name != "scorer of 12x256" {
			rows = append(rows, r)
		}
	}
	var why string
	for _, r := range foretell(rows) {
		if strings.Contains(r.Name, "12x256") || strings.Contains(r.Name, "this machine") {
			t.Errorf("%+v was made of nothing", r)
		}
		why += r.Why
	}
	if !strings.Contains(why, "scorer of 12x256") {
		t.Errorf("it says %q", why)
	}
}

// A stage that costs more needs more processes, and this machine does less: the figures reach the model.
func TestFleetTakesTheFigures(t *testing.T) {
	find := func(rows []row, name string) float64 {
		for _, r := range rows {
			if strings.HasPrefix(r.Name, name) && r.Why == "" {
				return r.Value
			}
		}
		t.Fatalf("no row %q in %+v", name, rows)
		return 0
	}
	dear := func(f figure) float64 {
		if strings.HasPrefix(f.name, "sink of") || strings.HasPrefix(f.name, "packer of") {
			return 100 * plausible(f)
		}
		return plausible(f)
	}
	was, is := foretell(measured(t, plausible)), foretell(measured(t, dear))
	for _, name := range []string{"12x256: sink that are needed", "12x256: packer that are needed"} {
		if a, b := find(was, name), find(is, name); b < 10*a {
			t.Errorf("%s: %v, and at a hundred times the cost %v", name, a, b)
		}
	}
	const here = "this machine, all stages, by the utilisation law"
	if a, b := find(was, here), find(is, here); b > 0.1*a {
		t.Errorf("%s: %v, and with a packer of a hundred times the cost %v", here, a, b)
	}
}

// What a section derives comes of the rows before it, and what is only computed with stays out of the table.
func TestDerived(t *testing.T) {
	r := report{Rows: []row{{Name: "kept back", Value: 7, detail: true}}}
	r.derive(section{})
	r.derive(section{name: "d", title: "D", derive: func(sofar []row) []row {
		twice := row{Name: "twice", Unit: "rollouts/s", Over: "measured"}
		twice.judge(figure{over: "measured", goal: goal{ratio: true, least: 0.5, most: 2}}, 2*sofar[0].Value, 1)
		return []row{twice}
	}})
	var out strings.Builder
	r.print(&out)
	if got := r.Rows[len(r.Rows)-1]; len(r.Rows) != 2 || got.Section != "d" || got.Value != 14 || !got.Missed {
		t.Errorf("%+v", r.Rows)
	}
	if text := out.String(); !strings.Contains(text, "14 rollouts/s") || !strings.Contains(text, "0.5× to 2× MISSED") || strings.Contains(text, "kept back") {
		t.Error(text)
	}
}
