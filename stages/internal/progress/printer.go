package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Printer shows a View, or a Bar, over and over: in place on a terminal, as a line now and then elsewhere.
type Printer struct {
	out      io.Writer
	terminal *Terminal // nil elsewhere
	last     time.Time
	step     int64
}

const (
	screenEvery = 250 * time.Millisecond
	lineEvery   = 10 * time.Second
	idleEvery   = 30 * time.Second // where no step has been made
)

// NewPrinter prints on out, which may be a Terminal.
func NewPrinter(out io.Writer) *Printer {
	p := &Printer{out: out}
	switch out := out.(type) {
	case *Terminal:
		p.terminal = out
	case *os.File:
		p.terminal, _ = NewTerminal(out)
	}
	return p
}

// Show draws v if it is time to.
func (p *Printer) Show(v *View, now time.Time) {
	_, final := v.Final()
	if p.terminal != nil {
		if now.Sub(p.last) < screenEvery && !final {
			return
		}
		p.last = now
		p.draw(v.Screen(now, p.terminal.Width())...)
		return
	}
	step := int64(-1)
	if v.policy != nil {
		step = v.policy.Step
	}
	every := lineEvery
	if step == p.step {
		every = idleEvery
	}
	if now.Sub(p.last) < every && !(final && step != p.step) {
		return
	}
	p.last, p.step = now, step
	fmt.Fprintln(p.out, v.Line(now))
}

// A Bar is work of a known size.
type Bar struct {
	Done, Total int
	Note        string // beside it
}

// String is the bar in one line.
func (b Bar) String() string {
	const width = 30
	done := 0
	if b.Total > 0 {
		done = width * min(b.Done, b.Total) / b.Total
	}
	return fmt.Sprintf("%s%s %d of %d %s", strings.Repeat("█", done), strings.Repeat("░", width-done), b.Done, b.Total, b.Note)
}

// Turn says that something else begins, which is to be seen: the next picture is due at once.
func (p *Printer) Turn() { p.last = time.Time{} }

// BarDue reports whether it is time to draw a bar that is not full, for those that have to work for one.
func (p *Printer) BarDue(now time.Time) bool {
	every := lineEvery
	if p.terminal != nil {
		every = screenEvery
	}
	return now.Sub(p.last) >= every
}

// ShowBar draws b if it is time to, or it is full.
func (p *Printer) ShowBar(b Bar, now time.Time) {
	over := b.Done >= b.Total && p.step != int64(b.Done)
	if !over && !p.BarDue(now) {
		return
	}
	p.last, p.step = now, int64(b.Done)
	if p.terminal != nil {
		p.draw(b.String())
		return
	}
	fmt.Fprintf(p.out, "%d of %d %s\n", b.Done, b.Total, b.Note)
}

// draw replaces the picture. A terminal that is gone is no reason to stop.
func (p *Printer) draw(lines ...string) { _ = p.terminal.Draw(lines) }

// Close leaves the last picture on the terminal.
func (p *Printer) Close() {
	if p.terminal != nil {
		p.terminal.Leave()
	}
}
