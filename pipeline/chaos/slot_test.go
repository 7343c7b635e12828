package chaos

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const patience = 30 * time.Second

// testSlot keeps a shell script running; ends tells of the processes that ended.
func testSlot(t *testing.T, script string) (s *slot, log string, ends func() []end) {
	t.Helper()
	log = filepath.Join(t.TempDir(), "log")
	var mu sync.Mutex
	var list []end
	s = newSlot("test-0", func(env ...string) (*process, error) {
		return startProcess(log, env, "sh", "-c", script)
	}, func(_ string, p *process) {
		mu.Lock()
		defer mu.Unlock()
		list = append(list, p.end)
	})
	if err := s.run(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.end(); err != nil {
			t.Error(err)
		}
	})
	return s, log, func() []end {
		mu.Lock()
		defer mu.Unlock()
		return append([]end(nil), list...)
	}
}

// until waits for ok.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func TestSlotStartsAgain(t *testing.T) {
	s, _, ends := testSlot(t, "exec sleep 1000")
	first := s.await()
	if !s.kill() {
		t.Fatal("not killed")
	}
	until(t, "a successor", func() bool { p := s.await(); return p != nil && p != first })
	if e := ends(); len(e) != 1 || !e[0].killed {
		t.Errorf("ends %v", e)
	}
}

func TestSlotIsHeld(t *testing.T) {
	s, _, _ := testSlot(t, "exec sleep 1000")
	s.hold(true)
	first := s.await()
	s.kill()
	until(t, "a successor is due", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.running != nil && s.running != first {
			t.Fatal("a successor was started while the slot was held")
		}
		return s.waits
	})
	s.hold(false)
	until(t, "a successor", func() bool { return s.await() != nil })
}

// TestSlotCrash gives the environment to the successor, and to it alone.
func TestSlotCrash(t *testing.T) {
	s, log, ends := testSlot(t, `echo "crash: $PRL_CRASH_AT" >&2; [ -z "$PRL_CRASH_AT" ] || kill -9 $$; exec sleep 1000`)
	until(t, "the first", func() bool { return starts(t, log) == 1 })
	s.crashNext("here", 3)
	until(t, "the third", func() bool { return starts(t, log) == 3 })
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(data), "crash: here:3"); n != 1 || len(ends()) != 2 {
		t.Errorf("%d processes were told to crash, %d ended:\n%s", n, len(ends()), data)
	}
}

func starts(t *testing.T, log string) int {
	data, err := os.ReadFile(log)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Count(string(data), "crash: ")
}

func TestSlotNap(t *testing.T) {
	s, _, _ := testSlot(t, "exec sleep 1000")
	p := s.await()
	s.asleep(func() {
		until(t, "it stops", func() bool { return state(t, p) == "T" })
	})
	until(t, "it goes on", func() bool { return state(t, p) == "S" })
}

// state is the process's, as the kernel tells it.
func state(t *testing.T, p *process) string {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	return rest[:1]
}

// TestSlotZombie: a successor runs beside the one that sleeps, and goes on when that has ended.
func TestSlotZombie(t *testing.T) {
	s, _, ends := testSlot(t, "exec sleep 1000")
	first := s.await()
	zombie, err := s.replace(time.Millisecond)
	if err != nil || zombie != first || s.await() == first {
		t.Fatalf("zombie %v, error %v", zombie, err)
	}
	successor := s.await()
	zombie.stop(syscall.SIGKILL)
	<-zombie.done
	until(t, "the end is told", func() bool { return len(ends()) == 1 })
	if s.await() != successor {
		t.Error("the end of the zombie took the successor with it")
	}
}

// TestLastWords tells a fenced process from one that stopped for good.
func TestLastWords(t *testing.T) {
	for said, want := range map[string]end{
		"prl-stage: scorer: fetch: name in use: another process":        {code: 1, last: "prl-stage: scorer: fetch: name in use: another process"},
		"some log\nprl-stage: trainer: fatal: version 3 is missing":     {code: 1, last: "prl-stage: trainer: fatal: version 3 is missing"},
		"panic: index out of range\n\ngoroutine 1 [running]:\nmain.x()": {code: 1, last: "panic: index out of range\n\ngoroutine 1 [running]:\nmain.x()"},
	} {
		p, err := startProcess(filepath.Join(t.TempDir(), "log"), []string{"SAID=" + said}, "sh", "-c", `echo "$SAID" >&2; exit 1`)
		if err != nil {
			t.Fatal(err)
		}
		<-p.done
		if p.end != want {
			t.Errorf("%q ended with %+v", said, p.end)
		}
	}
	if e := (end{last: "scorer: name in use: x"}); !e.fenced() || e.fatal() {
		t.Errorf("%+v", e)
	}
	if e := (end{last: "trainer: fatal: x"}); e.fenced() || !e.fatal() {
		t.Errorf("%+v", e)
	}
}
