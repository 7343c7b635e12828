package faults

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// repeat is how often a fault that lasts is logged again.
const repeat = time.Minute

// mostReports bounds what a desk holds. What comes beyond is logged and not kept.
const mostReports = 1000

// A Report says that a stage has a fault.
type Report struct {
	Fault Fault
	Stage string
	About string // what it is about where a stage may have several: an environment; empty for the stage as a whole
	Why   string // the error, or the figures
	// Ended says that the stage has ended with it: nobody is left who could take it back.
	Ended bool
	Since time.Time
	// Over says that it was taken back. Active reports are not.
	Over bool
}

type key struct{ fault, stage, about string }

func (r Report) key() key { return key{r.Fault.Name, r.Stage, r.About} }

// kept is a report that is active.
type kept struct {
	Report
	logged time.Time
	times  int       // raised since it was logged
	until  time.Time // it is over by itself; zero for never
}

// A Desk keeps which faults the stages of a process have, and logs each when it comes, once a minute while it is raised again,
// and when it is over. A nil Desk takes everything and says nothing.
type Desk struct {
	log *slog.Logger
	now func() time.Time
	on  func(Report)

	mu     sync.Mutex
	active map[key]*kept
}

// NewDesk logs to log. on is told of every change, in order, and must not wait; nil for nobody.
func NewDesk(log *slog.Logger, now func() time.Time, on func(Report)) *Desk {
	return &Desk{log: log, now: now, on: on, active: map[key]*kept{}}
}

// Raise says that a stage has a fault, as often as it is noticed.
func (d *Desk) Raise(r Report) { d.raise(r, 0) }

// Note says that something has happened that shows a fault: it is over when it was not noted for so long.
func (d *Desk) Note(r Report, lasts time.Duration) { d.raise(r, lasts) }

func (d *Desk) raise(r Report, lasts time.Duration) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	k := d.active[r.key()]
	if k == nil {
		r.Since, r.Over = now, false
		k = &kept{Report: r, logged: now}
		d.write(k, "")
		if len(d.active) >= mostReports {
			return
		}
		d.active[r.key()] = k
		d.tell(k.Report)
	} else {
		changed := r.Ended && !k.Ended
		k.Why, k.Ended = r.Why, k.Ended || r.Ended
		if k.times++; now.Sub(k.logged) >= repeat {
			d.write(k, "still")
			k.logged, k.times = now, 0
		}
		if changed {
			d.tell(k.Report)
		}
	}
	if lasts > 0 {
		k.until = now.Add(lasts)
	}
}

// Clear says that a stage does not have a fault, as often as that is seen.
func (d *Desk) Clear(f Fault, stage, about string) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clear(key{f.Name, stage, about})
}

func (d *Desk) clear(k key) {
	r := d.active[k]
	if r == nil {
		return
	}
	delete(d.active, k)
	r.Over = true
	d.log.Info("it is over: "+r.Fault.Says, append(r.attrs(), "lasted", d.now().Sub(r.Since).Round(time.Millisecond))...)
	d.tell(r.Report)
}

// Hold says that these are all the faults of their kinds that a stage has.
func (d *Desk) Hold(stage string, kinds []Fault, reports []Report) {
	if d == nil {
		return
	}
	there := map[key]bool{}
	for _, r := range reports {
		r.Stage = stage
		there[r.key()] = true
		d.Raise(r)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for k := range d.active {
		if k.stage == stage && !there[k] && slices.ContainsFunc(kinds, func(f Fault) bool { return f.Name == k.fault }) {
			d.clear(k)
		}
	}
}

// Active are the faults that there are, the gravest first.
func (d *Desk) Active() []Report {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	var list []Report
	for k, r := range d.active {
		if !r.until.IsZero() && now.After(r.until) {
			d.clear(k)
			continue
		}
		list = append(list, r.Report)
	}
	slices.SortFunc(list, Compare)
	return list
}

// Compare orders reports, the gravest first.
func Compare(a, b Report) int {
	return cmp.Or(cmp.Compare(grave(a.Fault), grave(b.Fault)), cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.About, b.About))
}

func grave(f Fault) int {
	return slices.IndexFunc(All, func(g Fault) bool { return g.Name == f.Name })
}

func (d *Desk) tell(r Report) {
	if d.on != nil {
		d.on(r)
	}
}

// write logs a fault: what is wrong, what to do, and what shows it.
func (d *Desk) write(k *kept, still string) {
	args := append(k.attrs(), "do", k.Fault.Do)
	if k.Why != "" {
		args = append(args, "error", k.Why)
	}
	if still != "" {
		args = append(args, "since", k.Since.Format(time.RFC3339), "times", k.times)
	}
	d.log.Error(k.Fault.Says, args...)
}

func (r Report) attrs() []any {
	args := []any{"fault", r.Fault.Name, "stage", r.Stage}
	if r.About != "" {
		args = append(args, "about", r.About)
	}
	return args
}
