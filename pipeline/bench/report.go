package main

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// A report is what one call measured.
type report struct {
	Machine machine   `json:"machine"`
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"`
	Rows    []row     `json:"figures"`
}

// Absolute numbers mean little without the machine they are of.
type machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	OS     string `json:"os"`
	Go     string `json:"go"`
	Commit string `json:"commit"`
}

// A row is one figure as it was measured.
type row struct {
	Section string  `json:"section"`
	Title   string  `json:"-"`
	Name    string  `json:"name"`
	Bench   string  `json:"benchmark"`
	Unit    string  `json:"unit"`
	Value   float64 `json:"value"`
	// Ratio is the value over that of the benchmark Over, in the same run.
	Ratio float64 `json:"ratio,omitempty"`
	Over  string  `json:"over,omitempty"`
	// Peer is what the nearest peer takes, Better how many times better this is.
	Peer   float64 `json:"peer,omitempty"`
	Better float64 `json:"better,omitempty"`
	// Goal is what was asked for, in words; Missed where the figure does not meet it.
	Goal   string `json:"goal,omitempty"`
	Missed bool   `json:"missed,omitempty"`
	// Was is the value of an earlier report.
	Was float64 `json:"was,omitempty"`
	// Why nothing was measured.
	Why string `json:"why,omitempty"`
	// detail keeps it out of the table.
	detail bool
}

// add makes rows of what the benchmarks of a run reported.
func (r *report) add(s section, of run, v values, skips []string, failed error) {
	for _, f := range of.figures {
		row := row{Section: s.name, Title: s.title, Name: f.name, Bench: f.bench, Unit: f.unit, Over: f.over, Peer: f.peer, detail: f.detail}
		value, ok := v.median(f.bench, f.unit)
		over, overOK := v.median(f.over, f.unit)
		switch {
		case failed != nil:
			row.Why = "failed"
		case !ok && len(skips) > 0:
			row.Why = strings.Join(skips, "; ")
		case !ok:
			row.Why = fmt.Sprintf("%s reports no %s", f.bench, f.unit)
		case f.over != "" && !overOK:
			row.Why = fmt.Sprintf("%s reports no %s", f.over, f.unit)
		}
		if row.Why == "" {
			row.judge(f, value, over)
		}
		r.Rows = append(r.Rows, row)
	}
}

// derive adds what a section makes of the rows so far.
func (r *report) derive(s section) {
	if s.derive == nil {
		return
	}
	for _, row := range s.derive(r.Rows) {
		row.Section, row.Title = s.name, s.title
		r.Rows = append(r.Rows, row)
	}
}

func (r *row) judge(f figure, value, over float64) {
	r.Value = value
	if f.over != "" {
		r.Ratio = value / over
	}
	if f.peer != 0 {
		if r.Better = f.peer / value; more(f.unit) {
			r.Better = value / f.peer
		}
	}
	if f.goal.asked() {
		held, unit := value, f.unit
		if f.goal.ratio {
			held, unit = r.Ratio, "×"
		}
		r.Goal, r.Missed = f.goal.words(unit), !f.goal.met(held)
	}
}

func (g goal) words(unit string) string {
	switch {
	case g.least == 0:
		return "≤ " + quantity(g.most, unit)
	case g.most == 0:
		return "≥ " + quantity(g.least, unit)
	}
	return quantity(g.least, unit) + " to " + quantity(g.most, unit)
}

// compare puts the values of an earlier report beside these.
func (r *report) compare(before report) {
	was := map[string]float64{}
	key := func(row row) string { return row.Section + "\x00" + row.Name + "\x00" + row.Unit }
	for _, row := range before.Rows {
		was[key(row)] = row.Value
	}
	for i, row := range r.Rows {
		r.Rows[i].Was = was[key(row)]
	}
}

// print writes the table.
func (r *report) print(out io.Writer) {
	m := r.Machine
	fmt.Fprintf(out, "%s, %d cores, %s, %s, commit %s; %s, %.0f s\n", m.CPU, m.Cores, m.OS, m.Go, m.Commit, r.Began.Format(time.DateTime), r.Seconds)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	title := ""
	for _, row := range r.Rows {
		if row.detail {
			continue
		}
		if row.Title != title {
			title = row.Title
			_ = w.Flush()
			fmt.Fprintf(out, "\n%s\n", title)
			fmt.Fprintln(w, "figure\tvalue\tratio\tof\tpeer\tgoal\tbefore")
		}
		if row.Why != "" {
			fmt.Fprintf(w, "%s\tnot measured: %s\n", row.Name, row.Why)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", row.Name, quantity(row.Value, row.Unit), times(row.Ratio), row.Over, row.against(), row.judged(), row.before())
	}
	_ = w.Flush()
}

func (r row) against() string {
	if r.Peer == 0 {
		return ""
	}
	return fmt.Sprintf("%s, %s", quantity(r.Peer, r.Unit), times(r.Better))
}

func (r row) judged() string {
	if r.Missed {
		return r.Goal + " MISSED"
	}
	return r.Goal
}

func (r row) before() string {
	if r.Was == 0 {
		return ""
	}
	return quantity(r.Was, r.Unit)
}

// times is a ratio with three digits.
func times(x float64) string {
	if x == 0 {
		return ""
	}
	return digits(x) + "×"
}

// quantity is a value with its unit; of times in the unit that fits.
func quantity(x float64, unit string) string {
	if unit == "ns/op" {
		for _, u := range []struct {
			name string
			of   float64
		}{{"s", 1e9}, {"ms", 1e6}, {"µs", 1e3}} {
			if x >= u.of {
				return digits(x/u.of) + " " + u.name
			}
		}
		return digits(x) + " ns"
	}
	if unit == "×" {
		return times(x)
	}
	return digits(x) + " " + unit
}

// digits is a number with three digits, more only where it is whole.
func digits(x float64) string {
	switch abs := math.Abs(x); {
	case x == math.Trunc(x) && abs < 1e6:
		return fmt.Sprintf("%.0f", x)
	case abs >= 1e6:
		return fmt.Sprintf("%.3gM", x/1e6)
	case abs >= 100:
		return fmt.Sprintf("%.0f", x)
	case abs >= 10:
		return fmt.Sprintf("%.1f", x)
	default:
		return fmt.Sprintf("%.3g", x)
	}
}

func thisMachine() machine {
	m := machine{CPU: "unknown processor", Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), Commit: "unknown"}
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range bytes.Lines(data) {
			if name, is := bytes.CutPrefix(line, []byte("model name\t: ")); is {
				m.CPU = string(bytes.TrimSpace(name))
				break
			}
		}
	}
	if out, err := exec.Command("git", "describe", "--always", "--dirty").Output(); err == nil {
		m.Commit = string(bytes.TrimSpace(out))
	}
	return m
}
