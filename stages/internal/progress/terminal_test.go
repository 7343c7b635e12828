package progress

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// screen is a terminal as one sees it: lines, of which the last are rewritten by what moves up and wipes.
type screen struct {
	t      *testing.T
	mu     sync.Mutex
	lines  []string
	writes int
	width  int
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	for rest := string(p); rest != ""; {
		var up int
		if n, _ := fmt.Sscanf(rest, "\x1b[%dA", &up); n == 1 {
			if up > len(s.lines) {
				s.t.Errorf("%d lines up of %d", up, len(s.lines))
				up = len(s.lines)
			}
			s.lines = s.lines[:len(s.lines)-up] // J wipes what is below
			rest = strings.TrimPrefix(rest, fmt.Sprintf("\x1b[%dA\r\x1b[J", up))
			continue
		}
		line, after, whole := strings.Cut(rest, "\n")
		if !whole || strings.Contains(line, "\x1b") {
			s.t.Errorf("half a line, or an unknown code: %q", rest)
		}
		s.lines, rest = append(s.lines, line), after
	}
	return len(p), nil
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.lines, "\n")
}

func (s *screen) terminal() *Terminal { return &Terminal{out: s, size: func() int { return s.width }} }

// narrow makes the terminal narrower, which breaks its lines.
func (s *screen) narrow(width int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.width = width
	var broken []string
	for _, l := range s.lines {
		for len(l) > width {
			broken, l = append(broken, l[:width]), l[width:]
		}
		broken = append(broken, l)
	}
	s.lines = broken
}

// TestTerminal: whatever is logged meanwhile, the picture stands whole below it, once.
func TestTerminal(t *testing.T) {
	s := &screen{t: t, width: 20}
	term := s.terminal()
	step := func(want string, do func()) {
		t.Helper()
		before := s.writes
		do()
		if got := s.String(); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		if s.writes > before+1 {
			t.Errorf("%d writes for one change", s.writes-before)
		}
	}
	write := func(text string) func() { return func() { fmt.Fprint(term, text) } }
	step("begins", write("begins\n"))
	step("begins\na\nb", func() { _ = term.Draw([]string{"a", "b"}) })
	step("begins\nc", func() { _ = term.Draw([]string{"c"}) })
	step("begins\nlog one\nlog two\nc", write("log one\nlog two\n"))
	step("begins\nlog one\nlog two\nc", write("half"))
	step("begins\nlog one\nlog two\nhalf of a line\nc", write(" of a line\n"))
	step("begins\nlog one\nlog two\nhalf of a line\n01234567890123456789", func() { _ = term.Draw([]string{"0123456789012345678901234"}) })
	step("begins\nlog one\nlog two\nhalf of a line\n012345678901234567", func() { s.narrow(18); _ = term.Draw([]string{"0123456789012345678901234"}) })
	step("begins\nlog one\nlog two\nhalf of a line\n012345678901234567\nbehind it", func() { term.Leave(); write("behind it\n")() })
}

// TestTerminalManyWriters: log lines of several goroutines and pictures, each whole.
func TestTerminalManyWriters(t *testing.T) {
	s := &screen{t: t, width: 20}
	term := s.terminal()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 100 {
				fmt.Fprintf(term, "%d %d\n", w, i)
				_ = term.Draw([]string{fmt.Sprint("one ", i), "two"})
			}
		})
	}
	wg.Wait()
	lines := strings.Split(s.String(), "\n")
	if len(lines) != 402 || lines[401] != "two" || !strings.HasPrefix(lines[400], "one ") {
		t.Errorf("%d lines, at last %q", len(lines), lines[max(0, len(lines)-3):])
	}
}

// TestDoing is in place on a terminal and gone at its end.
func TestDoing(t *testing.T) {
	s := &screen{t: t, width: 20}
	seen := make(chan struct{})
	stop := Doing(s.terminal(), func(time.Duration) string {
		if s.String() == "reads" {
			select {
			case <-seen:
			default:
				close(seen)
			}
		}
		return "reads"
	})
	<-seen
	stop()
	stop()
	if got := s.String(); got != "" {
		t.Errorf("%q is left", got)
	}
}

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		text  string
		width int
		most  int
		want  string
	}{
		{"a b c", 0, 1, "a b c"}, {"one two three", 8, 3, "one two|three"}, {"one two three", 8, 1, "one two…"}, {"onetwothree", 4, 5, "onet|woth|ree"},
		{"漢字漢字", 5, 3, "漢字|漢字"}, {"漢字", 1, 3, "…"}, {"", 5, 2, ""},
	} {
		if got := strings.Join(Wrap(c.text, c.width, c.most), "|"); got != c.want {
			t.Errorf("%q on %d: %q, want %q", c.text, c.width, got, c.want)
		}
	}
}
