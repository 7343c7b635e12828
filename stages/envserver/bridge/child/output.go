// Package child has what every bridge needs that starts processes: they end with this server, and so does all that they have started,
// and what they print goes to a log of a bounded size.
package child

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prl-project/prl/pipeline/logs"
)

// tailBytes is what is kept in memory of what a process printed last.
const tailBytes = 8 << 10

// Output takes what a process prints: all of it into the record, the last of it for errors.
type Output struct {
	record  *Record
	limit   int64         // bytes for one request; 0 for no limit
	flooded func()        // called once, when a request has printed more
	grown   chan struct{} // something was printed

	mu    sync.Mutex
	last  []byte
	since int64 // bytes, in this request
	flood bool
}

// NewOutput makes one for a process that may print limit bytes for one request (see [Output.Begin]), without a limit if that is 0.
// If it prints more, flooded is called once, and what follows is not recorded.
func NewOutput(r *Record, limit int64, flooded func()) *Output {
	return &Output{record: r, limit: limit, flooded: flooded, grown: make(chan struct{}, 1)}
}

// Write never fails: a process must not block on it.
func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	o.last = append(o.last, b...)
	if n := len(o.last) - tailBytes; n > 0 {
		o.last = append(o.last[:0], o.last[n:]...)
	}
	o.since += int64(len(b))
	first := o.limit > 0 && o.since > o.limit && !o.flood
	o.flood = o.flood || first
	quiet := o.flood && !first
	o.mu.Unlock()
	if first {
		o.flooded()
	}
	if !quiet {
		o.record.write(b)
	}
	select {
	case o.grown <- struct{}{}:
	default:
	}
	return len(b), nil
}

// Begin begins to count for another request.
func (o *Output) Begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.since = 0
}

// Over says that a request printed too much.
func (o *Output) Over() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.flood
}

// Settle waits until nothing is printed any more, but not for long.
func (o *Output) Settle() {
	deadline := time.After(time.Second)
	quiet := 500 * time.Millisecond // until Python comes to it
	for {
		select {
		case <-o.grown:
			quiet = 50 * time.Millisecond
		case <-time.After(quiet):
			return
		case <-deadline:
			return
		}
	}
}

// Tail is what was printed last, from the beginning of a line.
func (o *Output) Tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := strings.ToValidUTF8(string(o.last), "\uFFFD")
	if _, rest, ok := strings.Cut(text, "\n"); ok && len(o.last) == tailBytes {
		text = rest
	}
	return text
}

// Note writes a line of our own into the record.
func (o *Output) Note(format string, args ...any) {
	o.record.write(fmt.Appendf(nil, time.Now().UTC().Format(time.DateTime)+" "+format+"\n", args...))
}

// Record is the log of an environment: a file of a bounded size, and at level debug lines of the process's own log with the
// environment's name. It is safe for concurrent use.
type Record struct {
	*logs.File
	env string

	mu   sync.Mutex
	part []byte // of a line that has no end yet
}

// maxLine is how much of a line of an environment goes into a line of the process's log.
const maxLine = 4 << 10

// NewRecord makes the log <folder>/<name>.log of an environment in files of limit bytes; no file is kept if the folder is empty.
func NewRecord(folder, name string, limit int64) *Record {
	return &Record{File: logs.Open(folder, name, limit), env: name}
}

func (r *Record) write(b []byte) {
	_, _ = r.Write(b) // it never fails
	if r.env != "" && slog.Default().Enabled(context.Background(), slog.LevelDebug) {
		r.say(b)
	}
}

// say logs the lines that are whole.
func (r *Record) say(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		line, rest, whole := bytes.Cut(b, []byte("\n"))
		if r.part = append(r.part, line...); len(r.part) > maxLine {
			r.part = r.part[:maxLine]
		}
		if !whole {
			return
		}
		if len(r.part) > 0 {
			slog.Debug(logs.Says, logs.Env, r.env, "text", string(r.part))
		}
		r.part, b = r.part[:0], rest
	}
}
