package python

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
)

const (
	longestLine = 1 << 20 // of results, in bytes
	mostResults = 4 << 20 // bytes of all of them
)

// line is one of what the runner writes.
type line struct {
	Ready bool            `json:"ready"`
	Setup string          `json:"setup"`
	Call  *int            `json:"call"`
	Value json.RawMessage `json:"value"`
	Error string          `json:"error"`
}

// outcome is what became of a job.
type outcome struct {
	returned []json.RawMessage // of each call; nil if it did not return
	errors   []string          // of each call: what it raised, or why it was not made
	stopped  string            // why the process did not end by itself: "time", "results" or empty
	printed  string            // the beginning of it
}

// reading is what was read of the results. The code can write there, too: only answers, which it has to know for that.
type reading struct {
	calls int
	ready chan struct{} // closed when the code begins
	begun bool
	setup string // why it did not
	load  string // why the code could not be loaded
	lines map[int]line
}

// all reads until the end; false if there is too much.
func (r *reading) all(from io.Reader) bool {
	r.lines = map[int]line{}
	limited := &io.LimitedReader{R: from, N: mostResults}
	lines := bufio.NewScanner(limited)
	lines.Buffer(nil, longestLine)
	for lines.Scan() {
		var l line
		switch err := json.Unmarshal(lines.Bytes(), &l); {
		case err != nil:
		case !r.begun && l.Ready:
			r.begun = true
			close(r.ready)
		case !r.begun:
			r.setup = l.Setup
		case l.Call != nil:
			if _, known := r.lines[*l.Call]; !known && *l.Call >= 0 && *l.Call < r.calls {
				r.lines[*l.Call] = l
			}
		case r.load == "":
			r.load = l.Error
		}
	}
	return limited.N > 0 && !errors.Is(lines.Err(), bufio.ErrTooLong)
}

func (r *reading) outcome(stopped, printed string) outcome {
	o := outcome{returned: make([]json.RawMessage, r.calls), errors: make([]string, r.calls), stopped: stopped, printed: printed}
	for i := range r.calls {
		l, ok := r.lines[i]
		switch {
		case ok && l.Error == "" && l.Value != nil:
			o.returned[i] = l.Value
		case ok:
			o.errors[i] = l.Error
		case r.load != "":
			o.errors[i] = r.load
		case stopped == "time":
			o.errors[i] = "the time limit was reached"
		case stopped == "results":
			o.errors[i] = "what was returned is too long"
		default:
			o.errors[i] = "the process ended before"
		}
	}
	return o
}

// head keeps the beginning of what is written and takes the rest without a word, so that nobody who writes waits.
type head struct {
	mu    sync.Mutex
	kept  []byte
	limit int
}

func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept = append(h.kept, p[:min(len(p), h.limit-len(h.kept))]...)
	return len(p), nil
}

func (h *head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.ToValidUTF8(string(h.kept), "\uFFFD")
}
