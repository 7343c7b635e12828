package mcptools

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prl-project/prl/stages/envserver/bridge/child"
)

// grace is how long a server may take to end when its session does.
const grace = 2 * time.Second

// process is a local server. It ends with this process, however that ends.
type process struct {
	in      io.WriteCloser
	out     io.ReadCloser
	cmd     *exec.Cmd
	marker  string // in the environment of all that it starts
	printed *child.Output
	ended   chan struct{}
}

func start(s Server) (*process, error) {
	theirs, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe to it: %w", err)
	}
	out, answers, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pipe from it: %w", err), theirs.Close(), in.Close())
	}
	p := &process{in: in, out: out, marker: "PRL_MCP=" + rand.Text(), printed: child.NewOutput(child.NewRecord("", "", 0), 0, nil), ended: make(chan struct{})}
	p.cmd = exec.Command(s.Command[0], s.Command[1:]...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = theirs, answers, p.printed
	p.cmd.Dir, p.cmd.WaitDelay, p.cmd.SysProcAttr = s.Folder, time.Second, child.Attributes(syscall.SIGKILL)
	p.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PRL_") }), s.Env...)
	p.cmd.Env = append(p.cmd.Env, p.marker)
	started := make(chan error)
	go func() {
		// It dies with the thread that has started it, so that it does not outlive us; the thread is kept as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.ended)
		err := p.cmd.Start()
		_, _ = theirs.Close(), answers.Close() // it has its own
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // how it ended changes nothing
		}
	}()
	if err := <-started; err != nil {
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	return p, nil
}

// said is what the server printed last, on one line; empty for nothing, and before it was started.
func (p *process) said() string {
	if p == nil {
		return ""
	}
	return strings.Join(strings.Fields(p.printed.Tail()), " ")
}

// end waits for the end of the session and for the server's own, which the end of its input tells it of, then kills what is left.
func (p *process) end(session <-chan struct{}) {
	within(grace, session)
	_ = p.in.Close() // the session may have closed it
	within(grace, p.ended)
	child.Kill(p.cmd.Process, p.marker)
	within(grace, p.ended)
	_ = p.out.Close()
}

// within waits for something, but not for long.
func within(limit time.Duration, done <-chan struct{}) {
	select {
	case <-done:
	case <-time.After(limit):
	}
}
