package trainer

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prl-project/prl/pipeline"
)

const (
	// lastWords is how much of what a worker printed is kept, in bytes.
	lastWords = 4 << 10
	// burial is how long a worker whose pipe has ended may take to end itself.
	burial = 10 * time.Second
)

// A worker is a Python process that answers one request after the other (torch/prl_torch/__main__.py says which). Requests
// go to its file descriptor 3, answers come from 4; what it prints is kept for when it dies. It ends when this process does.
type worker struct {
	cmd               *exec.Cmd
	requests, answers *os.File
	timeout           time.Duration
	said              tail
	done              chan struct{} // closed when the process has ended
}

// An answer is the head of a worker's answer.
type answer struct {
	Applied bool
	Figures map[string]string
	// Error is why the request failed, after which the worker has ended.
	Error       string
	OutOfMemory bool `json:"out_of_memory"`
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
	w := &worker{requests: requests, answers: answers, timeout: timeout, done: make(chan struct{})}
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
		close(w.done)
	}()
	return w, nil
}

// ask sends a request and waits for the answer. After an error, which is ErrTransient and says what became of the worker,
// and after an answer that is one, the worker is gone.
func (w *worker) ask(ctx context.Context, op string, args map[string]any, body []byte) (answer, []byte, error) {
	defer context.AfterFunc(ctx, w.kill)()
	a, data, err := w.exchange(op, args, body)
	switch {
	case err == nil && a.Error == "":
		return a, data, nil
	case ctx.Err() != nil:
		return a, nil, ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.kill()
		<-w.done
		return a, nil, fmt.Errorf("%w: the torch worker has not answered %s for %v and was killed%s", pipeline.ErrTransient, op, w.timeout, w.words())
	}
	select {
	case <-w.done:
	case <-time.After(burial):
		w.kill()
		<-w.done
	}
	if err == nil {
		return a, nil, nil
	}
	cause := w.cmd.ProcessState.String()
	if s, ok := w.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signal() == syscall.SIGKILL {
		cause += ", as the kernel does where memory runs out"
	}
	return a, nil, fmt.Errorf("%w: the torch worker died at %s (%s)%s", pipeline.ErrTransient, op, cause, w.words())
}

func (w *worker) exchange(op string, args map[string]any, body []byte) (a answer, data []byte, err error) {
	head := map[string]any{"op": op}
	for k, v := range args {
		head[k] = v
	}
	text, err := json.Marshal(head)
	if err != nil {
		return a, nil, fmt.Errorf("encode %s: %w", op, err)
	}
	limit := time.Now().Add(w.timeout)
	if err := errors.Join(w.requests.SetWriteDeadline(limit), w.answers.SetReadDeadline(limit)); err != nil {
		return a, nil, err
	}
	prefix := binary.LittleEndian.AppendUint32(nil, uint32(len(text)))
	prefix = binary.LittleEndian.AppendUint64(prefix, uint64(len(body)))
	for _, part := range [][]byte{append(prefix, text...), body} {
		if _, err := w.requests.Write(part); err != nil {
			return a, nil, err
		}
	}
	prefix = prefix[:12]
	if _, err := io.ReadFull(w.answers, prefix); err != nil {
		return a, nil, err
	}
	text = make([]byte, binary.LittleEndian.Uint32(prefix))
	data = make([]byte, binary.LittleEndian.Uint64(prefix[4:]))
	for _, part := range [][]byte{text, data} {
		if _, err := io.ReadFull(w.answers, part); err != nil {
			return a, nil, err
		}
	}
	return a, data, json.Unmarshal(text, &a)
}

// kill ends the process; it holds nothing that is not published or made again.
func (w *worker) kill() { _ = w.cmd.Process.Kill() } // an error: it has ended

// close ends the process and waits until it is gone.
func (w *worker) close() {
	w.kill()
	<-w.done
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
