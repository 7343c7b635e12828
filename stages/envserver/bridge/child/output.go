// Package child has what every bridge needs that starts processes: they end with this server, and so does all that they have started,
// and what they print goes to a log of a bounded size.
package child

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
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

// Record is the log of an environment: a file of a bounded size, beside which an older one is kept. It is safe for concurrent use.
type Record struct {
	path  string
	limit int64

	mu     sync.Mutex
	file   *os.File
	size   int64
	failed bool // nothing more is written
}

// NewRecord makes the log <folder>/<name>.log in files of limit bytes; nothing is kept if the folder is empty.
func NewRecord(folder, name string, limit int64) *Record {
	r := &Record{limit: limit}
	if folder != "" {
		r.path = filepath.Join(folder, name+".log")
	}
	return r
}

// Path is the newest file; empty for none.
func (r *Record) Path() string { return r.path }

func (r *Record) write(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.path == "" || r.failed {
		return
	}
	if r.file == nil || r.size > r.limit {
		if r.failed = r.turn() != nil; r.failed {
			return
		}
	}
	n, err := r.file.Write(b)
	r.size += int64(n)
	r.failed = err != nil
}

// turn opens the file, and puts one that is full aside.
func (r *Record) turn() error {
	if r.file != nil {
		if err := errors.Join(r.file.Close(), os.Rename(r.path, r.path+".1")); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(r.path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	at, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	r.file, r.size = file, at.Size()
	return nil
}

// Close ends the log; what is written later is lost.
func (r *Record) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
	if r.file == nil {
		return nil
	}
	file := r.file
	r.file = nil
	return file.Close()
}
