package mcptools

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/prl-project/prl/stages/envserver/bridge/child"
)

// grace is how long a server may take to end when its session does.
const grace = 2 * time.Second

// process is a local server. It ends with this process, however that ends.
type process struct {
	*child.Process
	in      io.WriteCloser
	out     io.ReadCloser
	printed *child.Output
}

func start(s Server) (*process, error) {
	theirs, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe to it: %w", err)
	}
	defer theirs.Close()
	out, answers, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pipe from it: %w", err), in.Close())
	}
	defer answers.Close()
	p := &process{in: in, out: out, printed: child.NewOutput(child.NewRecord("", s.Name, 0), 0, nil)}
	cmd := exec.Command(s.Command[0], s.Command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir, cmd.Env = theirs, answers, p.printed, s.Folder, s.Env
	if p.Process, err = child.Start(cmd, syscall.SIGKILL); err != nil {
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
	within(grace, p.Ended())
	p.Kill()
	_ = p.out.Close()
}

// within waits for something, but not for long.
func within(limit time.Duration, done <-chan struct{}) {
	select {
	case <-done:
	case <-time.After(limit):
	}
}
