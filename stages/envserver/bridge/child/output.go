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

// output takes what a process prints: all of it into the record, the last of it for errors.
type output struct {
	record  *record
	limit   int64         // bytes for one request
	flooded func()        // called once, when a request has printed more
	grown   chan struct{} // something was printed

	mu    sync.Mutex
	last  []byte
	since int64 // bytes, in this request
	flood bool
}

func newOutput(r *record, limit int64) *output {
	return &output{record: r, limit: limit, grown: make(chan struct{}, 1)}
}

// Write never fails: a process must not block on it.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	o.last = append(o.last, b...)
	if n := len(o.last) - tailBytes; n > 0 {
		o.last = append(o.last[:0], o.last[n:]...)
	}
	o.since += int64(len(b))
	first := o.since > o.limit && !o.flood
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

// begin begins to count for another request.
func (o *output) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.since = 0
}

// over says that a request printed too much.
func (o *output) over() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.flood
}

// settle waits until nothing is printed any more, but not for long.
func (o *output) settle() {
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

// tail is what was printed last, from the beginning of a line.
func (o *output) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := strings.ToValidUTF8(string(o.last), "\uFFFD")
	if _, rest, ok := strings.Cut(text, "\n"); ok && len(o.last) == tailBytes {
		text = rest
	}
	return text
}

func (o *output) note(format string, args ...any) {
	o.record.write(fmt.Appendf(nil, time.Now().UTC().Format(time.DateTime)+" "+format+"\n", args...))
}

// record is the log of an environment: a file of a bounded size, beside which an older one is kept. It is safe for concurrent use.
type record struct {
	path  string // empty for none
	limit int64  // bytes of a file

	mu     sync.Mutex
	file   *os.File
	size   int64
	failed bool // nothing more is written
}

func (r *record) write(b []byte) {
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
func (r *record) turn() error {
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
func (r *record) Close() error {
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
