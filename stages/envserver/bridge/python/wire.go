package python

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// longestOpening is the answer to the first request, which has all tasks, in bytes.
const longestOpening = 1 << 30

// wire is the pair of pipes to a process: a line there, a line back.
type wire struct {
	in      *os.File
	out     *os.File
	answers *bufio.Reader
	limit   int // bytes of an answer
	last    int64
}

func newWire(in, out *os.File, limit int) *wire {
	return &wire{in: in, out: out, answers: bufio.NewReader(out), limit: limit}
}

// exchange is for one goroutine. A time-out satisfies [os.IsTimeout].
func (w *wire) exchange(what request, limit time.Duration) (a answer, err error) {
	w.last++
	what.ID = w.last
	line, err := json.Marshal(what)
	if err != nil {
		return a, fmt.Errorf("encode the request: %w", err)
	}
	deadline := time.Now().Add(limit)
	if err := errors.Join(w.in.SetWriteDeadline(deadline), w.out.SetReadDeadline(deadline)); err != nil {
		return a, err
	}
	if _, err := w.in.Write(append(line, '\n')); err != nil {
		return a, err
	}
	most := w.limit
	if what.Op == "open" {
		most = longestOpening
	}
	said, err := w.line(most)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(said, &a); err != nil || a.ID != what.ID {
		return a, fmt.Errorf("the process answered %.200q, which is no answer to request %d", said, what.ID)
	}
	return a, nil
}

// line reads a line of most bytes.
func (w *wire) line(most int) (line []byte, err error) {
	for {
		part, err := w.answers.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > most:
			return nil, fmt.Errorf("an answer of more than %d KiB (reply_kb)", most>>10)
		case err == nil:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// interrupt ends an exchange that is under way.
func (w *wire) interrupt() {
	_ = w.in.SetWriteDeadline(time.Unix(1, 0)) // closed: it has ended
	_ = w.out.SetReadDeadline(time.Unix(1, 0))
}

func (w *wire) close() {
	_ = w.in.Close() // what was not read, nobody wants
	_ = w.out.Close()
}
