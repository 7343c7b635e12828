package python

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/stages/envserver/env"
)

// works plays an episode that has been begun.
func works(t *testing.T, s *env.Session) {
	t.Helper()
	if got, err := call(t, s, "noop", `{}`); err != nil || got != "ok " {
		t.Fatalf("an episode that has nothing to do with it: %q, %v", got, err)
	}
	if score, err := s.Score(t.Context()); err != nil || *score.Rewards.Total() != 0.25 {
		t.Fatalf("score %+v, %v", score, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// pid asks an episode for its process.
func pid(t *testing.T, s *env.Session) int {
	t.Helper()
	text, err := call(t, s, "pid", `{}`)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// apart begins two episodes in processes of their own.
func apart(t *testing.T, change func(*Config)) (e *Python, broken, other *env.Session) {
	t.Helper()
	e = open(t, "faulty:Faulty", func(c *Config) {
		c.Processes, c.Episodes = 2, 1
		if change != nil {
			change(c)
		}
	})
	broken, other = begin(t, e, `{}`), begin(t, e, `{}`)
	if pid(t, broken) == pid(t, other) {
		t.Fatal("the episodes are in one process")
	}
	return e, broken, other
}

// traced fails unless the error has a traceback with the text.
func traced(t *testing.T, err error, message, where string) {
	t.Helper()
	var traced env.Traced
	if err == nil || !strings.Contains(err.Error(), message) || !errors.As(err, &traced) || !strings.Contains(traced.Traceback(), where) {
		t.Fatalf("error %v, want one with %q and the traceback %q (%+v)", err, message, where, traced)
	}
}

func gone(t *testing.T, pid int) {
	t.Helper()
	if there(pid) {
		t.Errorf("process %d is still there", pid)
	}
}

// there says that a process has not ended.
func there(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return !strings.Contains(string(text), ") Z ")
}

// Each fault ends its own episode with a traceback, no other one, and the next episode is played.
func TestInvariant_AFaultCostsItsOwnEpisodes(t *testing.T) {
	for _, test := range []struct {
		tool, message, where string
		change               func(*Config)
	}{
		{"leave", "SystemExit: 3", "in leave", nil},
		{"hang", "call of hang: no answer in 1s", "in _wait_for_ever", func(c *Config) { c.TimeoutS = 1 }},
		{"leak", "MemoryError", "in leak", func(c *Config) { c.MemoryMB = 256 }},
		{"flood", "call of flood: printed more than 1 MiB", "flood flood", func(c *Config) { c.OutputMB, c.LogMB = 1, 1 }},
		{"long", "more than 256 KiB", "", nil},
	} {
		t.Run(test.tool, func(t *testing.T) {
			e, broken, other := apart(t, test.change)
			was := pid(t, broken)
			_, err := call(t, broken, test.tool, `{}`)
			traced(t, err, test.message, test.where)
			if err := broken.Close(); err != nil {
				t.Fatal(err)
			}
			works(t, begin(t, e, `{}`)) // tried again, beside the other
			works(t, other)
			gone(t, was)
		})
	}
}

// TestInvariant_KilledProcess kills a process in the middle of an episode.
func TestInvariant_KilledProcess(t *testing.T) {
	e, broken, other := apart(t, nil)
	was := pid(t, broken)
	child, err := call(t, broken, "stubborn_child", `{}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(was, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_, err = call(t, broken, "noop", `{}`)
	if err == nil || !strings.Contains(err.Error(), "signal: killed") {
		t.Fatalf("after SIGKILL: %v", err)
	}
	if err := broken.Close(); err != nil {
		t.Fatal(err)
	}
	again := begin(t, e, `{}`)
	if pid(t, again) == was {
		t.Error("it was not killed")
	}
	works(t, again)
	works(t, other)
	n, err := strconv.Atoi(child)
	if err != nil {
		t.Fatal(err)
	}
	gone(t, n)
}

// Episodes in one process share its fate, and nothing else.
func TestSharedProcess(t *testing.T) {
	e := open(t, "faulty:Faulty", nil)
	a, b := begin(t, e, `{}`), begin(t, e, `{}`)
	was := pid(t, a)
	if was != pid(t, b) {
		t.Fatal("two processes")
	}
	if _, err := env.Begin(t.Context(), e, []byte(`{"start":"raise"}`), 1); true {
		traced(t, err, "RuntimeError: the service is down", "in reset")
	}
	works(t, a) // an exception of another episode does not touch it
	if err := syscall.Kill(was, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := call(t, b, "noop", `{}`); err == nil {
		t.Fatal("the process lives")
	}
	works(t, begin(t, e, `{}`))
}

// What a class prints does not reach the protocol, and it can read nothing of it.
func TestInvariant_PrintsAreNoAnswers(t *testing.T) {
	e := open(t, "faulty:Faulty", nil)
	s := begin(t, e, `{}`)
	if got, err := call(t, s, "chat", `{}`); err != nil || got != "read ''" {
		t.Fatalf("%q, %v", got, err)
	}
	works(t, s)
	for _, said := range []string{"forged", "raw", "from a child"} {
		if log := logOf(t, e); !strings.Contains(log, said) {
			t.Errorf("the log lacks %q: %s", said, log)
		}
	}
}

// The settings of prl, among which are secrets, are not the class's to read; all else of the environment is.
func TestVariables(t *testing.T) {
	t.Setenv("PRL__KAFKA__PASSWORD", "hush")
	t.Setenv("THEIRS", "yes")
	s := begin(t, open(t, "faulty:Faulty", nil), `{}`)
	for name, want := range map[string]string{"PRL__KAFKA__PASSWORD": "none", "THEIRS": "yes"} {
		if got, err := call(t, s, "variable", `{"name": "`+name+`"}`); err != nil || got != want {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
}

// A call whose caller has gone harms nobody: what is asked later is answered.
func TestCancelled(t *testing.T) {
	e := open(t, "faulty:Faulty", nil)
	s := begin(t, e, `{}`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := env.Begin(ctx, e, []byte(`{}`), 1); !errors.Is(err, context.Canceled) {
		t.Errorf("an episode that nobody waits for: %v", err)
	}
	works(t, s)
}

// TestInvariant_NoOrphans kills a server: its processes end, with all that they have started.
func TestInvariant_NoOrphans(t *testing.T) {
	if os.Getenv("FAULTY_ORPHAN") != "" {
		s := begin(t, open(t, "faulty:Faulty", nil), `{}`)
		for _, tool := range []string{"pid", "child", "stubborn_child"} {
			n, err := call(t, s, tool, `{}`)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Println("pid", n)
		}
		select {} // until it is killed
	}
	need.Python3(t)
	cmd := exec.Command(os.Args[0], "-test.run", "^TestInvariant_NoOrphans$", "-test.v")
	cmd.Env = append(os.Environ(), "FAULTY_ORPHAN=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []int
	for lines := bufio.NewScanner(out); len(pids) < 3 && lines.Scan(); {
		var pid int
		if n, _ := fmt.Sscanf(lines.Text(), "pid %d", &pid); n == 1 { // other lines say other things
			pids = append(pids, pid)
		}
	}
	if err := cmd.Process.Kill(); err != nil || len(pids) < 3 {
		t.Fatalf("processes %d: %v", pids, err)
	}
	_ = cmd.Wait() // it was killed
	for _, pid := range pids {
		for deadline := time.Now().Add(time.Minute); there(pid); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("process %d outlives us", pid)
			}
		}
	}
}

// Where all processes are full, an episode waits as long as its deadline allows, or until another one ends.
func TestFull(t *testing.T) {
	e := open(t, "faulty:Faulty", func(c *Config) { c.Episodes = 1 })
	s := begin(t, e, `{}`)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := env.Begin(ctx, e, []byte(`{}`), 1); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "raise processes") {
		t.Errorf("no room: %v", err)
	}
	next := make(chan *env.Session)
	go func() {
		s, err := env.Begin(t.Context(), e, []byte(`{}`), 1)
		if err != nil {
			t.Error(err)
		}
		next <- s
	}()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	works(t, <-next)
}

// The log is bounded.
func TestLogTurns(t *testing.T) {
	e := open(t, "faulty:Faulty", func(c *Config) { c.LogMB, c.OutputMB = 1, 3 })
	if _, err := call(t, begin(t, e, `{}`), "flood", `{}`); err == nil {
		t.Fatal("a flood ends well")
	}
	if err := e.Close(); err != nil { // by then nothing is written, and no file is between its two names
		t.Fatal(err)
	}
	for _, path := range []string{e.log.Path(), e.log.Path() + ".1"} {
		if at, err := os.Stat(path); err != nil || at.Size() > 2<<20 {
			t.Errorf("%s: %v, %v", path, at, err)
		}
	}
}

// Close ends every process, and what is asked after it fails.
func TestClose(t *testing.T) {
	e, a, b := apart(t, nil)
	pids := []int{pid(t, a), pid(t, b)}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for _, n := range pids {
		gone(t, n)
	}
	if _, err := call(t, a, "noop", `{}`); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("a call: %v", err)
	}
	if _, err := env.Begin(t.Context(), e, []byte(`{}`), 1); !errors.Is(err, errClosed) {
		t.Errorf("an episode: %v", err)
	}
}

// Close waits neither for a call that hangs nor for a process that cannot come up.
func TestInvariant_CloseEndsWhatHangs(t *testing.T) {
	t.Run("call", func(t *testing.T) {
		e := open(t, "faulty:Faulty", func(c *Config) { c.TimeoutS = 3600 })
		s := begin(t, e, `{}`)
		was, failed := pid(t, s), make(chan error)
		go func() {
			_, err := call(t, s, "hang", `{}`)
			failed <- err
		}()
		for !strings.Contains(logOf(t, e), "it hangs") {
			time.Sleep(10 * time.Millisecond)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-failed; !errors.Is(err, errClosed) {
			t.Errorf("the call: %v", err)
		}
		gone(t, was)
	})
	t.Run("start", func(t *testing.T) {
		e := open(t, "faulty:Faulty", func(c *Config) { c.Processes, c.StartS = 2, 3600 })
		begin(t, e, `{}`)
		t.Setenv("FAULTY_IMPORT", "hangs")
		begin(t, e, `{}`) // with the first, and another process begins to start
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		e.pool.mu.Lock()
		defer e.pool.mu.Unlock()
		if e.pool.starting != 0 || len(e.pool.live) != 0 {
			t.Errorf("%d processes are starting, %d live", e.pool.starting, len(e.pool.live))
		}
	})
}
