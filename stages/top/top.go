// Package top is the run in a terminal: its stages with their lag and throughput, which of them the others wait for, whether it
// learns, and what is wrong.
//
//	Reads   the topics, as the page does (ui.Watch); it joins no group
//	Writes  nothing
//	State   none
//
// On a terminal the picture stands in place until q or the end of the run. Elsewhere it is one table, as of kubectl top, or JSON,
// a line every ten seconds.
package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/prl-project/prl/stages/ui"
)

// Name is that of --stage top.
const Name = "top"

const (
	drawEvery = time.Second
	lineEvery = 10 * time.Second
)

// Options say how a run is shown.
type Options struct {
	JSON bool // a line each
	Once bool // one look
	Out  *os.File
	// Keys is where somebody types; nil opens the terminal of the process.
	Keys io.ReadCloser
	// Every is the time between two lines of JSON; 0 for the usual.
	Every time.Duration
}

// Source is the run that is shown.
type Source interface {
	// Run reads where it stands, calls ready, and follows it until ctx ends.
	Run(ctx context.Context, ready func()) error
	Sight() ui.Sight
}

// Run shows the run until it has ended, ctx ends, or somebody types q.
func Run(ctx context.Context, run Source, o Options) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	ready := make(chan struct{})
	group.Go(func() error { return run.Run(ctx, func() { close(ready) }) })
	group.Go(func() error {
		defer stop()
		select {
		case <-ready:
		case <-ctx.Done():
			return nil
		}
		switch live := term.IsTerminal(int(o.Out.Fd())); {
		case o.JSON:
			return lines(ctx, run, o)
		case live && !o.Once:
			return screen(ctx, run, o)
		}
		_, err := io.WriteString(o.Out, Table(run.Sight()))
		return err
	})
	return group.Wait()
}

// lines writes a line of JSON now and then.
func lines(ctx context.Context, run Source, o Options) error {
	every := o.Every
	if every == 0 {
		every = lineEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		s := run.Sight()
		if err := json.NewEncoder(o.Out).Encode(s); err != nil {
			return err
		}
		if o.Once || Ended(s) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Escape sequences of the terminal.
const (
	enter = "\x1b[?1049h\x1b[?25l\x1b[?7l" // another screen, no cursor, long lines are cut
	leave = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// screen shows the run in place. What it has shown last stays on the terminal.
func screen(ctx context.Context, run Source, o Options) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	keys, restore, err := listen(o)
	if err != nil {
		return err
	}
	typed := make(chan struct{})
	go func() { // ends when restore closes the keys
		defer close(typed)
		if quits(keys) {
			stop()
		}
	}()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	s := run.Sight()
	err = func() error {
		defer func() { // whatever happens, the terminal is as it was
			_, _ = io.WriteString(o.Out, leave)
			restore()
			<-typed
		}()
		tick := time.NewTicker(drawEvery)
		defer tick.Stop()
		if _, err := io.WriteString(o.Out, enter); err != nil {
			return err
		}
		for {
			if err := draw(o.Out, s); err != nil {
				return err
			}
			if Ended(s) {
				return nil
			}
			select {
			case <-ctx.Done():
				return nil
			case <-resized:
			case <-tick.C:
				s = run.Sight()
			}
		}
	}()
	if err != nil {
		return err
	}
	_, err = io.WriteString(o.Out, Table(s))
	return err
}

// draw puts a picture over the one before in one write, so that none is seen half.
func draw(out *os.File, s ui.Sight) error {
	width, height, err := term.GetSize(int(out.Fd()))
	if err != nil || width < 1 || height < 1 {
		width, height = 80, 24
	}
	var b strings.Builder
	b.WriteString("\x1b[H")
	lines := Screen(s, width, height)
	for i, l := range lines {
		b.WriteString(l + "\x1b[K")
		if i < len(lines)-1 {
			b.WriteString("\r\n")
		}
	}
	b.WriteString("\x1b[J")
	_, err = io.WriteString(out, b.String())
	return err
}

// listen makes the terminal give keys as they are typed, without showing them; restore gives it back and ends reading.
func listen(o Options) (keys io.Reader, restore func(), err error) {
	if o.Keys != nil {
		return o.Keys, func() { _ = o.Keys.Close() }, nil
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY, 0)
	if err != nil { // a process without one is ended by its signals
		return strings.NewReader(""), func() {}, nil
	}
	raw, err := tty.SyscallConn() // Fd would make reading go on after Close
	if err != nil {
		return nil, nil, fmt.Errorf("read keys from the terminal: %w", err)
	}
	var was *term.State
	var failed error
	err = raw.Control(func(fd uintptr) { was, failed = term.MakeRaw(int(fd)) })
	if err := errors.Join(err, failed); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("read keys from the terminal: %w", err), tty.Close())
	}
	return tty, func() {
		_ = raw.Control(func(fd uintptr) { _ = term.Restore(int(fd), was) }) // there is nobody else to tell
		_ = tty.Close()
	}, nil
}

// quits waits until somebody types q, Ctrl-C or Ctrl-D; false where nobody can any more.
func quits(keys io.Reader) bool {
	one := make([]byte, 1)
	for {
		n, err := keys.Read(one)
		if n > 0 && strings.IndexByte("qQ\x03\x04", one[0]) >= 0 {
			return true
		}
		if err != nil {
			return false
		}
	}
}
