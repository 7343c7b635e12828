package trainer

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"time"

	"github.com/prl-project/prl/pipeline"
)

// A request waits for its answer.
type request struct {
	op    string
	reply chan answer // of capacity 1
}

// An answer is the head of a worker's answer.
type answer struct {
	ID uint64
	// Error is why the request failed, after which the worker ends.
	Error       string
	OutOfMemory bool `json:"out_of_memory"`
	// PeerLost: what failed is another rank, not this worker.
	PeerLost bool `json:"peer_lost"`
	// What the request asked for: see torch/prl_torch/__main__.py.
	Applied    bool
	Figures    map[string]string
	Vocabulary int
	Positions  int
	Value      string
}

// A failure is an answer that is an error.
type failure struct {
	op string
	answer
}

func (f *failure) Error() string { return fmt.Sprintf("at %s: %s", f.op, f.answer.Error) }

// ask sends a request and waits for its answer; those to requests of other goroutines may come before. An error says what
// became of the worker, the same to all who ask, and the worker is gone: ErrTransient, ctx's error, or a failure.
func (w *worker) ask(ctx context.Context, op string, args map[string]any, body []byte) (answer, error) {
	r := &request{op, make(chan answer, 1)}
	id := w.add(r)
	defer w.remove(id)
	defer context.AfterFunc(ctx, func() { w.end(ctx.Err()) })()
	defer time.AfterFunc(w.timeout, func() {
		w.end(fmt.Errorf("%w: the torch worker has not answered %s for %v and was killed", pipeline.ErrTransient, op, w.timeout))
	}).Stop()
	if err := w.send(id, op, args, body); err != nil {
		w.end(err)
	}
	select {
	case a := <-r.reply:
		return a, nil
	case <-w.gone:
	}
	select {
	case a := <-r.reply: // its last
		return a, nil
	default:
		return answer{}, w.err
	}
}

func (w *worker) add(r *request) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last++
	w.waiting[w.last] = r
	return w.last
}

// remove gives the request that waited under an id; nil where there is none.
func (w *worker) remove(id uint64) *request {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.waiting[id]
	delete(w.waiting, id)
	return r
}

// send writes a request. That the pipe is closed is no error: the end of the answers says why.
func (w *worker) send(id uint64, op string, args map[string]any, body []byte) error {
	head := map[string]any{"id": id, "op": op}
	for k, v := range args {
		head[k] = v
	}
	text, err := json.Marshal(head)
	if err != nil {
		return pipeline.Fatal("encode %s: %w", op, err)
	}
	prefix := binary.LittleEndian.AppendUint32(nil, uint32(len(text)))
	prefix = binary.LittleEndian.AppendUint64(prefix, uint64(len(body)))
	w.writing.Lock()
	defer w.writing.Unlock()
	for _, part := range [][]byte{append(prefix, text...), body} {
		if _, err := w.requests.Write(part); err != nil {
			return nil
		}
	}
	return nil
}

// listen hands answers to those who wait for them, until one is an error or the pipe ends. Then it says why.
func (w *worker) listen() {
	for {
		a, err := w.read()
		if err != nil {
			break
		}
		r := w.remove(a.ID)
		if r == nil {
			w.end(fmt.Errorf("%w: the torch worker answered a request that nobody made", pipeline.ErrTransient))
			break
		}
		if a.Error != "" {
			w.fail(&failure{r.op, a})
			break
		}
		r.reply <- a
	}
	select {
	case <-w.done:
	case <-time.After(burial):
		w.kill()
		<-w.done
	}
	w.fail(w.death())
	w.err = w.cause
	if !errors.Is(w.err, context.Canceled) && !errors.Is(w.err, context.DeadlineExceeded) {
		w.err = fmt.Errorf("%w%s", w.err, w.words())
	}
	close(w.gone)
}

func (w *worker) read() (a answer, err error) {
	var prefix [12]byte
	if _, err := io.ReadFull(w.answers, prefix[:]); err != nil {
		return a, err
	}
	if n := binary.LittleEndian.Uint64(prefix[4:]); n != 0 {
		return a, fmt.Errorf("an answer with a body of %d bytes", n)
	}
	text := make([]byte, binary.LittleEndian.Uint32(prefix[:]))
	if _, err := io.ReadFull(w.answers, text); err != nil {
		return a, err
	}
	return a, json.Unmarshal(text, &a)
}

// death says how a process ended that nobody ended.
func (w *worker) death() error {
	cause := w.cmd.ProcessState.String()
	if s, ok := w.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signal() == syscall.SIGKILL {
		return fmt.Errorf("%w: the torch worker died at %s (%s, %w)", pipeline.ErrTransient, w.oldest(), cause, errKilled)
	}
	return fmt.Errorf("%w: the torch worker died at %s (%s)", pipeline.ErrTransient, w.oldest(), cause)
}

// oldest is the request that has waited longest.
func (w *worker) oldest() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ids []uint64
	for id := range w.waiting {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return "rest"
	}
	return w.waiting[slices.Min(ids)].op
}

// fail says what went wrong with the worker; what was said first counts.
func (w *worker) fail(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cause == nil {
		w.cause = cause
	}
}

// end ends the process for a reason.
func (w *worker) end(cause error) {
	w.fail(cause)
	w.kill()
}
