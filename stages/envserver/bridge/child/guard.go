package child

import (
	"bufio"
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
	mu sync.Mutex
	to io.Writer // nil before the first process is started
}

var guarded guard

const (
	// guardVar is the variable that makes this program a guard.
	guardVar = "PRL_CHILD_GUARD"
	// lastTime is what processes have to end by themselves when the server has ended.
	lastTime = 5 * time.Second
)

func init() {
	if os.Getenv(guardVar) != "" {
		watch(os.Stdin)
		os.Exit(0)
	}
}

// begin tells the guard of a process, the first time it starts it.
func (g *guard) begin(pid int, marker string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.to == nil {
		to, err := post()
		if err != nil {
			return fmt.Errorf("start a guard of processes: %w", err)
		}
		g.to = to
	}
	_, err := fmt.Fprintf(g.to, "%d %s\n", pid, marker)
	return err
}

// end tells the guard that a process is gone, with all that it has started.
func (g *guard) end(pid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.to != nil {
		_, _ = fmt.Fprintf(g.to, "%d\n", pid) // one that nobody can tell kills a group that is not there
	}
}

// post starts the guard. It is not ended: it ends after us, in a session of its own that no signal to ours reaches.
func post() (io.Writer, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	from, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer from.Close()
	cmd := exec.Command(path)
	cmd.Stdin, cmd.Dir, cmd.Env = from, "/", []string{guardVar + "=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		_ = to.Close()
		return nil, err
	}
	go func() { _ = cmd.Wait() }() // it ends before us only where somebody kills it
	return to, nil
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
