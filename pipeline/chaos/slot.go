package chaos

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The fleet: how many processes of each stage. One emitter, packer and so on is active, the others stand by.
var fleet = []struct {
	stage string
	count int
}{
	{"emitter", 2}, {"inference", 1}, {"envserver", 3}, {"scorer", 2}, {"packer", 2}, {"trainer", 1}, {"eval", 2}, {"sink", 2},
}

func slotNames() []string {
	var names []string
	for _, m := range fleet {
		for i := range m.count {
			names = append(names, fmt.Sprintf("%s-%d", m.stage, i))
		}
	}
	return names
}

func stageOf(slot string) string {
	stage, _, _ := strings.Cut(slot, "-")
	return stage
}

const (
	// restartPause is how soon a process that ended is started again; every end in a short time doubles it.
	restartPause    = 250 * time.Millisecond
	maxRestartPause = 5 * time.Second
	// stopDeadline bounds a stop in order: the longest drain of a stage, and what a busy machine adds.
	stopDeadline = 60 * time.Second
)

// A slot keeps a process of one name running: who ends is started again.
type slot struct {
	name  string
	start func(env ...string) (*process, error)
	told  func(slot string, p *process) // of every end

	mu      sync.Mutex
	changed *sync.Cond
	running *process       // nil between two
	next    []string       // environment of the next process only
	ending  bool           // nothing is started any more
	held    bool           // nothing is started for now
	waits   bool           // a successor would be started now, were the slot not held
	pause   time.Duration  // before the next start
	watched sync.WaitGroup // processes that have not ended, successors and zombies
}

func newSlot(name string, start func(env ...string) (*process, error), told func(string, *process)) *slot {
	s := &slot{name: name, start: start, told: told}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// run starts the process and keeps it running, until end.
func (s *slot) run() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending, s.held, s.pause = false, false, restartPause
	return s.begin()
}

// begin starts a process and watches it. The lock is held.
func (s *slot) begin() error {
	p, err := s.start(s.next...)
	if err != nil {
		return err
	}
	s.running, s.next = p, nil
	s.changed.Broadcast()
	started := time.Now()
	s.watched.Go(func() {
		<-p.done
		s.told(s.name, p)
		s.succeed(p, time.Since(started))
	})
	return nil
}

// succeed starts the next process after one that ended, unless there is one.
func (s *slot) succeed(was *process, lived time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != was {
		return // it was a zombie
	}
	s.running = nil
	s.pause = min(2*s.pause, maxRestartPause)
	if was.asked() || lived > 10*time.Second {
		s.pause = restartPause
	}
	for !s.ending {
		pause := s.pause
		s.mu.Unlock()
		time.Sleep(pause)
		s.mu.Lock()
		for s.held && !s.ending {
			s.waits = true
			s.changed.Wait()
		}
		s.waits = false
		if s.ending || s.begin() == nil {
			return
		}
		s.pause = maxRestartPause // out of processes or memory: it may pass
	}
}

// await is the running process; it waits for one where the last has just ended, and is nil when none will come.
func (s *slot) await() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.running == nil && !s.ending {
		s.changed.Wait()
	}
	return s.running
}

// kill ends the process with SIGKILL. ok is false where it had ended by itself.
func (s *slot) kill() (ok bool) {
	p := s.await()
	if p == nil {
		return false
	}
	p.stop(syscall.SIGKILL)
	<-p.done
	return p.end.killed
}

// hold says whether who ends is not started again for now.
func (s *slot) hold(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = on
	s.changed.Broadcast()
}

// crashNext kills the process and lets its successor kill itself at a marked place.
func (s *slot) crashNext(place string, times int) {
	s.mu.Lock()
	s.next = append(s.next, fmt.Sprintf("PRL_CRASH_AT=%s:%d", place, times))
	s.mu.Unlock()
	s.kill()
}

// nap stops the process with SIGSTOP for a while.
func (s *slot) nap(d time.Duration) { s.asleep(func() { time.Sleep(d) }) }

// asleep stops the process with SIGSTOP until meanwhile returns.
func (s *slot) asleep(meanwhile func()) {
	if p := s.await(); p != nil {
		p.signal(syscall.SIGSTOP)
		meanwhile()
		p.signal(syscall.SIGCONT)
	}
}

// restart ends the process in order. It reports whether it ended, and without an error.
func (s *slot) restart() error {
	p := s.await()
	if p == nil {
		return nil
	}
	return stopInOrder(s.name, p)
}

// stopInOrder sends SIGTERM and waits for an end without error.
func stopInOrder(name string, p *process) error {
	p.stop(syscall.SIGTERM)
	if !p.ended(stopDeadline) {
		p.signal(syscall.SIGQUIT) // its goroutines go to the log
		if !p.ended(stopDeadline) {
			p.signal(syscall.SIGKILL)
		}
		return fmt.Errorf("%s did not stop within %v of SIGTERM", name, stopDeadline)
	}
	return nil
}

// replace starts a successor while the process sleeps, and wakes it after d. It gives the zombie back.
func (s *slot) replace(d time.Duration) (zombie *process, err error) {
	zombie = s.await()
	if zombie == nil {
		return nil, nil
	}
	zombie.signal(syscall.SIGSTOP)
	s.mu.Lock()
	err = s.begin()
	s.mu.Unlock()
	if err == nil {
		time.Sleep(d)
	}
	zombie.signal(syscall.SIGCONT)
	return zombie, err
}

// end lets nothing start any more and stops what runs, in order.
func (s *slot) end() error {
	s.mu.Lock()
	s.ending = true
	p := s.running
	s.changed.Broadcast()
	s.mu.Unlock()
	var err error
	if p != nil {
		p.signal(syscall.SIGCONT)
		err = stopInOrder(s.name, p)
	}
	s.watched.Wait()
	return err
}
