package broker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// parentFD is the file a child broker holds open on its parent: it ends when the parent is gone.
	parentFD = 3
	// startDeadline bounds the start of a child, waiting for the lock included.
	startDeadline = lockDeadline + 30*time.Second
	// stopDeadline bounds its stop.
	stopDeadline = 20 * time.Second
	readyPrefix  = "broker ready at "
)

// Child is a broker in a process of its own, in a session of its own, so that no signal meant for its parent reaches it.
type Child struct {
	Addr   string
	Log    string // file with its log
	cmd    *exec.Cmd
	parent *os.File
	done   chan struct{}
	err    error // of its end; read after done
}

// StartChild runs this binary once more as a broker that ends when this process does. args are its command line.
func StartChild(ctx context.Context, dir string, args ...string) (*Child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start the embedded broker: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("start the embedded broker: %w", err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the embedded broker: %w", err)
	}
	defer read.Close()
	logPath := filepath.Join(dir, "broker.log")
	logFile, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start the embedded broker: %w", err)
	}
	defer logFile.Close()
	cmd := exec.Command(self, args...)
	cmd.ExtraFiles = []*os.File{read}
	cmd.Stderr = logFile
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { // what it needs stands in args
		return strings.HasPrefix(kv, "PRL__") || strings.HasPrefix(kv, "PRL_CRASH_AT=")
	})
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the embedded broker: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the embedded broker: %w", err)
	}
	c := &Child{Log: logPath, cmd: cmd, parent: write, done: make(chan struct{})}
	ready := make(chan string, 1)
	go func() {
		addr := awaitReady(out)
		if addr != "" {
			ready <- addr
		}
		_, _ = io.Copy(io.Discard, out) // a broker says nothing more
		c.err = cmd.Wait()
		close(c.done)
	}()
	select {
	case c.Addr = <-ready:
		return c, nil
	case <-c.done:
		return nil, fmt.Errorf("the embedded broker ended at its start (%v); its last words are in %s", cmd.ProcessState, logPath)
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), c.Stop())
	case <-time.After(startDeadline):
		return nil, errors.Join(fmt.Errorf("the embedded broker was not ready after %v; see %s", startDeadline, logPath), c.Stop())
	}
}

func awaitReady(out io.Reader) string {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if addr, ok := strings.CutPrefix(lines.Text(), readyPrefix); ok {
			return addr
		}
	}
	return ""
}

// Done is closed when the child has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Stop shuts the child down in order.
func (c *Child) Stop() error {
	if err := c.parent.Close(); err != nil {
		return fmt.Errorf("stop the embedded broker: %w", err)
	}
	select {
	case <-c.done:
		return c.err
	case <-time.After(stopDeadline):
		err := c.cmd.Process.Kill()
		<-c.done
		return errors.Join(fmt.Errorf("the embedded broker did not stop within %v and was killed", stopDeadline), err)
	}
}

// WithParent is a context that ends when the process that started this one as a child has gone.
func WithParent(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	parent := os.NewFile(parentFD, "parent")
	go func() {
		defer cancel()
		var one [1]byte
		_, _ = parent.Read(one[:]) // nothing is ever written: it returns at the parent's end
	}()
	return ctx
}

// AnnounceReady tells the parent the address on standard output.
func AnnounceReady(addr string) { fmt.Println(readyPrefix + addr) }
