package chaos

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// fencedWords are in what a process says that has lost its name to another (pipeline.ErrFenced).
const fencedWords = "name in use"

// fatalWords are in what a process says that stops for good (pipeline.ErrFatal).
const fatalWords = ": fatal: "

// An end is how a process ended.
type end struct {
	killed bool   // by SIGKILL
	early  bool   // by SIGTERM, before it listened to it
	code   int    // where it ended itself
	last   string // the last it said, where that was an error
}

func (e end) fenced() bool { return strings.Contains(e.last, fencedWords) }

func (e end) fatal() bool { return strings.Contains(e.last, fatalWords) }

func (e end) String() string {
	if e.killed || e.early {
		return "was killed"
	}
	return fmt.Sprintf("ended with %d: %s", e.code, e.last)
}

// A process is one incarnation of a stage. It dies with the harness.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	end  end // once done is closed

	mu       sync.Mutex
	expected bool // its end was asked for
}

// startProcess starts a program whose standard error is appended to a file.
func startProcess(log string, env []string, program string, args ...string) (*process, error) {
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of logs: %w", err)
	}
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of a process: %w", err)
	}
	tail := &tailWriter{}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = f, io.MultiWriter(f, tail)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		_ = f.Close() // nothing was written
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	fmt.Fprintf(f, "--- chaos: pid %d started %s %s\n", cmd.Process.Pid, time.Now().Format(time.TimeOnly), strings.Join(env, " "))
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in ProcessState
		if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			p.end.killed, p.end.early = s.Signal() == syscall.SIGKILL, s.Signal() == syscall.SIGTERM
		}
		p.end.code = cmd.ProcessState.ExitCode()
		if p.end.code != 0 && !p.end.killed && !p.end.early {
			p.end.last = tail.error()
		}
		fmt.Fprintf(f, "--- chaos: pid %d %v %s\n", cmd.Process.Pid, cmd.ProcessState, time.Now().Format(time.TimeOnly))
		_ = f.Close()
		close(p.done)
	}()
	return p, nil
}

// signal sends a signal; to a process that has ended it does nothing.
func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// stop says that the process is to end by a signal, and sends it.
func (p *process) stop(s syscall.Signal) {
	p.expect()
	p.signal(s)
}

func (p *process) expect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = true
}

func (p *process) asked() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.expected
}

// ended waits for the process to end.
func (p *process) ended(deadline time.Duration) bool {
	select {
	case <-p.done:
		return true
	case <-time.After(deadline):
		return false
	}
}

// tailWriter keeps the end of what is written to it.
type tailWriter struct {
	mu   sync.Mutex
	text []byte
}

// maxTail is how much of a process's last words is kept.
const maxTail = 8 << 10

func (w *tailWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, b...)
	if len(w.text) > 2*maxTail {
		w.text = append([]byte(nil), w.text[len(w.text)-maxTail:]...)
	}
	return len(b), nil
}

// error is what prl-stage says last, from the line that begins with its name; or the last line.
func (w *tailWriter) error() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := strings.TrimSpace(string(w.text))
	for _, mark := range []string{"panic: ", "fatal error: ", "prl-stage: "} {
		if i := strings.LastIndex(text, mark); i >= 0 {
			return text[i:min(len(text), i+2000)]
		}
	}
	return text[strings.LastIndexByte(text, '\n')+1:]
}
