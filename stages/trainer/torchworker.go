package trainer

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// lastWords is how much of what a worker printed is kept, in bytes.
	lastWords = 4 << 10
	// burial is how long a worker whose pipe has ended may take to end itself.
	burial = 10 * time.Second
)

// A worker is a Python process that answers requests (torch/prl_torch/__main__.py says which). Requests go to its file
// descriptor 3, answers come from 4; what it prints is kept for when it dies. It ends when this process does.
type worker struct {
	cmd               *exec.Cmd
	requests, answers *os.File
	timeout           time.Duration
	said              tail
	writing           sync.Mutex    // held while a request is written
	done              chan struct{} // closed when the process has ended
	gone              chan struct{} // closed when err is set, after done: nothing is answered any more

	mu      sync.Mutex
	last    uint64              // the id of the request that was made last
	waiting map[uint64]*request // those without an answer
	cause   error               // the first thing that went wrong
	err     error
}

// startWorker runs package prl_torch, whose source is in dir.
func startWorker(python, dir string, timeout time.Duration) (*worker, error) {
	theirRequests, requests, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the torch worker: %w", err)
	}
	defer theirRequests.Close()
	answers, theirAnswers, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the torch worker: %w", err), requests.Close())
	}
	defer theirAnswers.Close()
	w := &worker{
		requests: requests, answers: answers, timeout: timeout,
		done: make(chan struct{}), gone: make(chan struct{}), waiting: map[uint64]*request{},
	}
	w.cmd = exec.Command(python, "-P", "-m", "prl_torch")
	w.cmd.ExtraFiles = []*os.File{theirRequests, theirAnswers}
	w.cmd.Stdout, w.cmd.Stderr = &w.said, &w.said
	w.cmd.WaitDelay = burial                                                  // for what it left behind with its output
	w.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { // secrets may be among them
		return strings.HasPrefix(kv, "PRL_") || strings.HasPrefix(kv, "PYTHON")
	}), "PYTHONPATH="+dir, "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "HF_HUB_OFFLINE=1")
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signal meant for this process reaches it
	if err := w.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the torch worker: %w", err), requests.Close(), answers.Close())
	}
	go func() {
		_ = w.cmd.Wait() // what it says is in ProcessState
		w.killAll()      // what it started
		_ = w.answers.SetReadDeadline(time.Now().Add(burial))
		close(w.done)
	}()
	go w.listen()
	return w, nil
}

// kill ends the process; it holds nothing that is not published or made again.
func (w *worker) kill() { _ = w.cmd.Process.Kill() } // an error: it has ended

// killAll ends the processes of its session.
func (w *worker) killAll() { _ = syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL) } // an error: there are none

// close ends the process and waits until it is gone.
func (w *worker) close() {
	w.kill()
	<-w.gone
	_ = errors.Join(w.requests.Close(), w.answers.Close()) // nobody is at the other end
}

// words is what the worker printed last.
func (w *worker) words() string {
	if said := w.said.String(); said != "" {
		return "; its last words:\n" + said
	}
	return "; it had printed nothing"
}

// A tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	data []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	t.data = t.data[max(0, len(t.data)-lastWords):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(t.data), ""))
}
