package child

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// A guard is this program once more, in a process that does nothing until this one has ended, however it did: then it kills what
// was started and is not gone by itself. A signal at the death of a parent reaches the child alone, and not what that has started.
type guard struct {
	mu      sync.Mutex
	open    map[int]string // markers of processes by their number
	to      *os.File       // nil while there is none
	process *os.Process
}

var guarded = guard{open: map[int]string{}}

const (
	// guardVar is the variable that makes this program a guard.
	guardVar = "PRL_CHILD_GUARD"
	// lastTime is what processes have to end by themselves when the server has ended.
	lastTime = 5 * time.Second
	tellTime = time.Second
)

func init() {
	if os.Getenv(guardVar) != "" {
		watch(os.Stdin)
		os.Exit(0)
	}
}

// begin tells the guard of a process. It starts one if there is none, or none that listens.
func (g *guard) begin(pid int, marker string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open[pid] = marker
	if g.to != nil && g.tell(pid) == nil {
		return nil
	}
	if err := g.post(); err != nil {
		return fmt.Errorf("start a guard of processes: %w", err)
	}
	for pid := range g.open {
		if err := g.tell(pid); err != nil {
			return fmt.Errorf("the guard of processes does not listen: %w", err)
		}
	}
	return nil
}

// end tells the guard that a process is gone, with all that it has started.
func (g *guard) end(pid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.open, pid)
	if g.to != nil {
		_ = g.tell(pid) // the next to begin hears of it
	}
}

// tell says what is known of a process.
func (g *guard) tell(pid int) error {
	if err := g.to.SetWriteDeadline(time.Now().Add(tellTime)); err != nil {
		return err
	}
	_, err := fmt.Fprintln(g.to, pid, g.open[pid])
	return err
}

// post starts a guard. It is not ended: it ends after us, in a session of its own that no signal to ours reaches.
func (g *guard) post() error {
	path := "/proc/self/exe" // is there where the file is not any more
	if _, err := os.Stat(path); err != nil {
		if path, err = os.Executable(); err != nil {
			return err
		}
	}
	from, to, err := os.Pipe()
	if err != nil {
		return err
	}
	defer from.Close()
	cmd := exec.Command(path)
	cmd.Args, cmd.Stdin, cmd.Dir, cmd.Env = []string{"prl-guard"}, from, "/", []string{guardVar + "=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return errors.Join(err, to.Close())
	}
	go func() { _ = cmd.Wait() }() // only where somebody has killed it
	if g.to != nil {
		_ = g.to.Close() // the one that does not listen
	}
	g.to, g.process = to, cmd.Process
	return nil
}

// watch is what a guard does.
func watch(told io.Reader) {
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	open := map[int]string{}
	for lines := bufio.NewScanner(told); lines.Scan(); {
		var pid int
		var marker string
		switch n, _ := fmt.Sscan(lines.Text(), &pid, &marker); n {
		case 2:
			open[pid] = marker
		case 1:
			delete(open, pid)
		}
	}
	deadline := time.Now().Add(lastTime)
	for pid, marker := range open {
		for alive(pid) && time.Now().Before(deadline) {
			time.Sleep(20 * time.Millisecond)
		}
		kill(pid, marker)
	}
}
