package top

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/prl-project/prl/stages/ui"
	"github.com/prl-project/prl/stages/ui/flow"
)

const testDeadline = time.Minute

func sight(change func(*ui.Sight)) ui.Sight {
	stage := func(name string, unread, working, places, instances int, rate float64) flow.StageView {
		return flow.StageView{Stage: flow.Stage{Name: name}, Unread: unread, Working: working, Places: places, Instances: instances, Rate: rate, Quiet: 2}
	}
	s := ui.Sight{
		Run: "demo", Now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), MaxSteps: 100, Version: new(int64(41)), Step: 41, Packed: 42, Following: true,
		Envs:  []ui.EnvSight{{Env: "catch", Announced: true, Reward: new(0.5), Curve: []float64{0, 0.5, 1}}},
		Evals: []ui.EvalSight{{Eval: "held-out", Version: 40, K: 2, Avg: new(0.25), Stderr: new(0.01)}}, OffPolicy: &ui.OffPolicy{Mean: 0.8, Max: 2},
		Open: &ui.OpenSight{Groups: 12, Rollouts: 96}, Ends: map[string]int64{"packed": 150, "filtered:zero_advantage": 50},
		Flow: flow.View{Tokens: 1234, Stages: []flow.StageView{
			stage("emitter", 0, 0, 0, 1, 12.5), stage("inference", 0, 0, 0, 0, 0), stage("envserver", 122, 64, 64, 2, 3.25), stage("trainer", 1, 0, 0, 0, 0.3),
		}, Slow: flow.Bottleneck{Stage: "envserver", Why: "The trainer waits 60 % of the time for rollouts."}},
	}
	if change != nil {
		change(&s)
	}
	return s
}

// TestTable says all that there is to say.
func TestTable(t *testing.T) {
	want := `run demo · step 41 of 100 · version 41 · 1.2k tokens/s · 12 groups open (96 rollouts) · off-policy steps 0.8, at most 2 · 03:04:05

  STAGE      PROCESSES  LAG   WORKING  RECORDS/S  LAST HEARD
  emitter            1    0         0         12      2s ago
  inference          -    -         -          -           -
▶ envserver          2  122  64 of 64       3.25      2s ago
  trainer            -    1         -       0.30           -

▶ The trainer waits 60 % of the time for rollouts.

  catch     reward  0.500  ▁▄█
  held-out  eval of version 40: avg@2 0.250 ± 0.020
  of the newest 200 groups: packed 150, filtered:zero_advantage 50
`
	if got := Table(sight(nil)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for name, c := range map[string]struct {
		change func(*ui.Sight)
		want   string
	}{
		"nothing yet":       {func(s *ui.Sight) { s.Version, s.Open, s.OffPolicy, s.Evals = nil, nil, nil, nil }, "no policy version yet"},
		"no server":         {func(s *ui.Sight) { s.Envs = append(s.Envs, ui.EnvSight{Env: "wordle"}) }, "waits for a server of the environment wordle (prl-stage --stage envserver --env wordle)"},
		"ended":             {func(s *ui.Sight) { s.Final, s.Open.Groups = true, 0 }, "ended with version 41"},
		"ends":              {func(s *ui.Sight) { s.Final = true }, "which is the final one"},
		"brokers are gone":  {func(s *ui.Sight) { s.Following = false }, "NOT FOLLOWED"},
		"steps not known":   {func(s *ui.Sight) { s.MaxSteps = 0 }, "step 41 ·"},
		"something is bad":  {func(s *ui.Sight) { s.Notices = []ui.Notice{{Level: "bad", Text: "Start one."}} }, "!! Start one."},
		"a terminal's code": {func(s *ui.Sight) { s.Notices = []ui.Notice{{Level: "odd", Text: "a\x1b[2Jb\u202ec\r\nd"}} }, "! a·[2Jb·c  d"},
	} {
		if got := Table(sight(c.change)); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q is not in\n%s", name, c.want, got)
		}
	}
}

// TestInvariant_Fits: whatever the size of the terminal, no line is longer and there are no more of them; what tells most stays.
func TestInvariant_Fits(t *testing.T) {
	s := sight(func(s *ui.Sight) {
		s.Notices = []ui.Notice{{Level: "bad", Text: strings.Repeat("wide 漢字 and é ", 40)}, {Level: "odd", Text: strings.Repeat("x", 500)}}
	})
	for width := 1; width < 200; width++ {
		for _, height := range []int{1, 2, 5, 24, 60} {
			lines := Screen(s, width, height)
			if len(lines) > height {
				t.Fatalf("%d lines on %dx%d", len(lines), width, height)
			}
			for _, l := range lines {
				cells := 0
				for _, r := range l {
					if cells++; r >= 0x3000 {
						cells++
					}
				}
				if cells > width {
					t.Fatalf("%d cells on a width of %d: %q", cells, width, l)
				}
			}
		}
	}
	narrow := strings.Join(Screen(s, 30, 24), "\n")
	if !strings.Contains(narrow, "LAG") || !strings.Contains(narrow, "122") || strings.Contains(narrow, "LAST HEARD") {
		t.Errorf("on a narrow terminal:\n%s", narrow)
	}
}

// fake is a run that is what it is told to be.
type fake struct {
	mu    sync.Mutex
	sight ui.Sight
	fails error
	ends  int // at which look it has ended; 0 for never
	looks int
}

func (f *fake) Run(ctx context.Context, ready func()) error {
	if f.fails != nil {
		return f.fails
	}
	ready()
	<-ctx.Done()
	return nil
}

func (f *fake) Sight() ui.Sight {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.looks++; f.looks == f.ends {
		f.sight.Final, f.sight.Open = true, &ui.OpenSight{}
	}
	return f.sight
}

func (f *fake) set(change func(*ui.Sight)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.sight)
}

// pty is a terminal: what is written to tty is read from the screen.
func pty(t *testing.T, width, height int) (screen, tty *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	fd := int(screen.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tty.Close() })
	resize(t, screen, width, height)
	return screen, tty
}

func resize(t *testing.T, screen *os.File, width, height int) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(height), Col: uint16(width)}); err != nil {
		t.Fatal(err)
	}
}

// shown collects what a terminal shows.
type shown struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{}
}

func show(screen *os.File) *shown {
	s := &shown{more: make(chan struct{}, 1)}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := screen.Read(b)
			s.mu.Lock()
			s.text.Write(b[:n])
			s.mu.Unlock()
			select {
			case s.more <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	return s
}

func (s *shown) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// await waits until the terminal has shown text behind a place, and gives the place behind that.
func (s *shown) await(t *testing.T, from int, text string) int {
	t.Helper()
	deadline := time.After(testDeadline)
	for {
		all := s.String()
		if i := strings.Index(all[from:], text); i >= 0 {
			return from + i + len(text)
		}
		select {
		case <-s.more:
		case <-deadline:
			t.Fatalf("the terminal never showed %q:\n%q", text, all[from:])
		}
	}
}

// TestScreen: the picture stands in place, follows the run and the size of the terminal, and a key ends it; the terminal is left as
// it was, with the last table on it.
func TestScreen(t *testing.T) {
	for _, key := range []string{"q", "\x03"} {
		screen, tty := pty(t, 100, 30)
		s := show(screen)
		keys, typing := io.Pipe()
		run := &fake{sight: sight(nil)}
		ended := make(chan error, 1)
		go func() { ended <- Run(t.Context(), run, Options{Out: tty, Keys: keys}) }()
		at := s.await(t, 0, enter+"\x1b[H")
		at = s.await(t, at, "PROCESSES")
		at = s.await(t, at, "\x1b[J")
		run.set(func(s *ui.Sight) { s.Step, s.Version = 77, new(int64(77)) })
		at = s.await(t, at, "step 77 of 100")
		resize(t, screen, 30, 10)
		at = s.await(t, at, "… ") // it does not fit any more
		if key != "q" {
			if _, err := typing.Write([]byte("x")); err != nil { // which is nothing
				t.Fatal(err)
			}
		}
		if _, err := typing.Write([]byte(key)); err != nil {
			t.Fatal(err)
		}
		at = s.await(t, at, leave)
		s.await(t, at, "of the newest 200 groups")
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(testDeadline):
			t.Fatal("it did not end")
		}
		picture := s.String()
		picture = picture[:strings.Index(picture, leave)]
		if strings.Contains(strings.TrimPrefix(picture, enter), "\x1b[2J") {
			t.Error("the picture is wiped before it is drawn again: it flickers")
		}
	}
}

// TestScreenEnds with the run, and without it where it cannot be shown.
func TestScreenEnds(t *testing.T) {
	screen, tty := pty(t, 80, 24)
	s := show(screen)
	keys, _ := io.Pipe()
	run := &fake{sight: sight(func(s *ui.Sight) { s.Final, s.Open = true, &ui.OpenSight{} })}
	if err := Run(t.Context(), run, Options{Out: tty, Keys: keys}); err != nil {
		t.Fatal(err)
	}
	s.await(t, s.await(t, 0, leave), "ended with version 41")
	gone := errors.New("the brokers do not answer")
	if err := Run(t.Context(), &fake{fails: gone}, Options{Out: tty}); !errors.Is(err, gone) {
		t.Errorf("ended with %v", err)
	}
	if ended := Ended(sight(func(s *ui.Sight) { s.Final, s.Following, s.Open = true, false, nil })); ended {
		t.Error("a run that cannot be followed is taken for one that has ended")
	}
}

// TestLines: elsewhere it is one table, or JSON until the run has ended.
func TestLines(t *testing.T) {
	look := func(run *fake, o Options) string {
		t.Helper()
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer read.Close()
		o.Out = write
		err = Run(t.Context(), run, o)
		if err := errors.Join(err, write.Close()); err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(read)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if got := look(&fake{sight: sight(nil)}, Options{}); got != Table(sight(nil)) {
		t.Errorf("got\n%s", got)
	}
	once := look(&fake{sight: sight(nil)}, Options{JSON: true, Once: true})
	var told ui.Sight
	if err := json.Unmarshal([]byte(once), &told); err != nil || strings.Count(once, "\n") != 1 || told.Step != 41 || told.Flow.Slow.Stage != "envserver" {
		t.Errorf("%v: %s", err, once)
	}
	run := &fake{sight: sight(nil), ends: 3}
	if got := strings.Count(look(run, Options{JSON: true, Every: time.Millisecond}), "\n"); got != 3 {
		t.Errorf("%d lines of a run that ends at the third look", got)
	}
}
