package faults

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestTable: names are unique and CamelCase, and sentences are whole.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range All {
		if seen[f.Name] || !regexp.MustCompile(`^([A-Z][a-z]+)+$`).MatchString(f.Name) {
			t.Errorf("name %q", f.Name)
		}
		seen[f.Name] = true
		for _, text := range []string{f.Says, f.Do} {
			if len(text) < 20 || !strings.HasSuffix(text, ".") || strings.Contains(text, "\n") {
				t.Errorf("%s: %q is no sentence", f.Name, text)
			}
		}
		if named, ok := Named(f.Name); !ok || named != f {
			t.Errorf("%s is not found by its name", f.Name)
		}
	}
	if _, ok := Named("Gremlins"); ok {
		t.Error("a fault that there is not")
	}
}

// desk is a desk with a clock and a log to look at.
type desk struct {
	*Desk
	at   time.Time
	log  bytes.Buffer
	told []Report
}

func newDesk() *desk {
	d := &desk{at: time.Unix(1000, 0)}
	d.Desk = NewDesk(slog.New(slog.NewJSONHandler(&d.log, nil)), func() time.Time { return d.at }, func(r Report) { d.told = append(d.told, r) })
	return d
}

// lines gives what was logged since the last call.
func (d *desk) lines(t *testing.T) (lines []map[string]any) {
	t.Helper()
	for decoder := json.NewDecoder(&d.log); decoder.More(); {
		var line map[string]any
		if err := decoder.Decode(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	return lines
}

// TestDeskSaysItOnce: a fault is logged when it comes, once a minute while it is raised, and when it is over; it is told at its
// changes alone.
func TestDeskSaysItOnce(t *testing.T) {
	d := newDesk()
	raise := func(times int) {
		for i := range times {
			d.Raise(Report{Fault: DiskFull, Stage: "sink", Why: fmt.Sprint("try ", i)})
			d.at = d.at.Add(time.Second)
		}
	}
	raise(50)
	lines := d.lines(t)
	if len(lines) != 1 || lines[0]["msg"] != DiskFull.Says || lines[0]["fault"] != "DiskFull" || lines[0]["do"] != DiskFull.Do || lines[0]["stage"] != "sink" || lines[0]["error"] != "try 0" || lines[0]["level"] != "ERROR" {
		t.Errorf("%v", lines)
	}
	raise(70)
	if lines = d.lines(t); len(lines) != 1 || lines[0]["times"] != 60.0 {
		t.Errorf("after two minutes: %v", lines)
	}
	if a := d.Active(); len(a) != 1 || !a[0].Since.Equal(time.Unix(1000, 0)) || a[0].Why != "try 69" {
		t.Errorf("active: %+v", a)
	}
	for range 3 {
		d.Clear(DiskFull, "sink", "")
	}
	if lines = d.lines(t); len(lines) != 1 || lines[0]["level"] != "INFO" || lines[0]["fault"] != "DiskFull" || lines[0]["lasted"] != float64(2*time.Minute) {
		t.Errorf("over: %v", lines)
	}
	if len(d.Active()) != 0 || len(d.told) != 2 || d.told[0].Over || !d.told[1].Over {
		t.Errorf("told: %+v", d.told)
	}
}

// TestDeskKeepsThemApart: of stages, of what they are about, and of kinds.
func TestDeskKeepsThemApart(t *testing.T) {
	d := newDesk()
	d.Raise(Report{Fault: ModelSlow, Stage: "envserver", About: "a"})
	d.Hold("emitter", []Fault{EnvServerDead}, []Report{{Fault: EnvServerDead, About: "a"}, {Fault: EnvServerDead, About: "b"}})
	d.Hold("packer", []Fault{NothingTrained, PolicyStale}, nil)
	d.Hold("emitter", []Fault{EnvServerDead}, []Report{{Fault: EnvServerDead, About: "b"}})
	d.Clear(ModelSlow, "envserver", "b")
	var names []string
	for _, r := range d.Active() {
		names = append(names, r.Fault.Name+" "+r.Stage+" "+r.About)
	}
	if want := []string{"EnvServerDead emitter b", "ModelSlow envserver a"}; !slices.Equal(names, want) {
		t.Errorf("active %q, want %q", names, want)
	}
}

// TestDeskForgetsEvents: what only happened is over when it does not happen again.
func TestDeskForgetsEvents(t *testing.T) {
	d := newDesk()
	note := func() {
		d.Note(Report{Fault: PoisonTask, Stage: "envserver", About: "a", Why: "task 7"}, 10*time.Minute)
	}
	note()
	d.at = d.at.Add(9 * time.Minute)
	note()
	d.at = d.at.Add(9 * time.Minute)
	if len(d.Active()) != 1 {
		t.Error("forgotten too early")
	}
	d.at = d.at.Add(2 * time.Minute)
	if len(d.Active()) != 0 || !d.told[len(d.told)-1].Over {
		t.Error("not forgotten")
	}
}

// TestDeskIsBounded: what it does not keep it logs all the same.
func TestDeskIsBounded(t *testing.T) {
	d := newDesk()
	for i := range mostReports + 5 {
		d.Raise(Report{Fault: EnvFails, Stage: "envserver", About: fmt.Sprint(i)})
	}
	if n := len(d.Active()); n != mostReports {
		t.Errorf("%d reports", n)
	}
	if n := len(d.lines(t)); n != mostReports+5 {
		t.Errorf("%d lines", n)
	}
}

// TestNilDesk takes everything.
func TestNilDesk(t *testing.T) {
	var d *Desk
	d.Raise(Report{Fault: DiskFull})
	d.Note(Report{Fault: DiskFull}, time.Second)
	d.Clear(DiskFull, "", "")
	d.Hold("", []Fault{DiskFull}, nil)
	if d.Active() != nil {
		t.Error("it has something")
	}
}

// TestError shows its fault through what wraps it, and is what it wraps.
func TestError(t *testing.T) {
	cause := errors.New("signal: killed")
	err := fmt.Errorf("trainer: %w", &Error{TrainerOutOfMemory, fmt.Errorf("worker: %w", cause)})
	shown, ok := errors.AsType[*Error](err)
	if !ok || shown.Fault != TrainerOutOfMemory || !errors.Is(err, cause) || err.Error() != "trainer: worker: signal: killed" {
		t.Errorf("%v: %v", err, shown)
	}
}
