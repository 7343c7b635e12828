// Package board writes the curves of a run as TensorBoard's event files: what is in the topics metrics and evals, with the run's
// settings beside it.
//
// Guarantee: every point of the topics is in the files exactly once and in the order of the topic, however often the stage is
// killed and started again (I4), and a run's whole history is written by the same command, from its topics or from its
// Parquet files.
//
//	Reads   metrics and evals: committed records only, from the start, outside any group
//	Writes  <run>/board/events.out.tfevents.*, and a folder shadow-<name> beside it for each shadow trainer; nothing to Kafka
//	Key     one is enough: a lock on the folder holds a second one back until the first is gone
//	State   the files: every event carries, in a field of its own that TensorBoard passes over, the topic and the offset of the
//	        record it was made of. A record is one event
//	On replay  a file is read to its last whole event, what is torn behind it is cut off, and what the file has is passed over
package board

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
)

const (
	// Name is that of the stage.
	Name = "board"
	// pollWait bounds how long a point waits to be written.
	pollWait = time.Second
	// retryEvery is how long a folder or a disk waits that is another's, or full.
	retryEvery = time.Second
	// drain is how long a stop goes on reading towards the end of the topics.
	drain = 10 * time.Second
)

// Topics are those that are read.
var Topics = []string{pipeline.TopicMetrics, pipeline.TopicEvals}

// A Point is a record with its place.
type Point struct {
	Topic  string // without the run's prefix
	Offset int64
	Time   time.Time // when it was written to the topic
	Value  schemas.Record
}

// Options say whose curves go where.
type Options struct {
	Dir string // of the event files
	// Settings are those of the run, or of a shadow trainer of it, as TOML; nil where they are not known. Name is empty for
	// the run.
	Settings func(shadow string) []byte
}

// Board is the stage.
type Board struct {
	rt      *pipeline.Runtime
	options Options
	lock    *os.File
	files   map[string]*file // by shadow trainer; "" is the run's own
}

// New makes the stage; it does no I/O.
func New(rt *pipeline.Runtime, o Options) *Board {
	rt.Health.Set(Name, false)
	return &Board{rt: rt, options: o, files: map[string]*file{}}
}

// Run writes what comes until ctx ends, and then what had come by then. A folder that is another's, or a disk that is full,
// it waits for: a run is never held up by its curves.
func (b *Board) Run(ctx context.Context) error {
	defer b.rt.Health.Set(Name, false)
	defer b.close()
	for b.lock == nil {
		err := b.claim()
		if err == nil {
			break
		}
		if !errors.Is(err, errHeld) {
			return err
		}
		b.rt.Log.Warn("another process writes the event files; this one waits", "stage", Name, "dir", b.options.Dir)
		if !pause(ctx, 5*retryEvery) {
			return nil
		}
	}
	r, err := openReader(b.rt)
	if err != nil {
		return err
	}
	defer r.close()
	if err := b.fits(ctx, r); err != nil {
		return err
	}
	b.rt.Health.Set(Name, true)
	for ctx.Err() == nil {
		if err := b.poll(ctx, r); err != nil {
			return err
		}
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	ends, err := r.ends(stop)
	for err == nil && stop.Err() == nil && !r.reached(ends) {
		err = b.poll(stop, r)
	}
	if err != nil {
		b.rt.Log.Warn("stopped before every point was written; the next start goes on there", "stage", Name, "error", err)
	}
	return nil
}

// fits holds the run's file to the topics: one with points that they have not is of topics that are gone.
func (b *Board) fits(ctx context.Context, r *reader) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	ends, err := r.ends(ctx)
	if err != nil {
		return err
	}
	f, err := b.file("")
	if err != nil {
		return err
	}
	for topic, last := range f.last {
		if last >= ends[topic] {
			return pipeline.Fatal("%s goes to offset %d of %s, which ends at %d: the topic was made again, or has lost records; move the folder %s away, and it is written anew",
				f.path, last, topic, ends[topic], b.options.Dir)
		}
	}
	return nil
}

// poll writes what comes within pollWait.
func (b *Board) poll(ctx context.Context, r *reader) error {
	points, err := r.poll(ctx, pollWait)
	if err != nil {
		return err
	}
	for {
		err := b.write(points)
		b.rt.Wrote(Name, err)
		if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
			return err
		}
		b.rt.Health.Set(Name, false)
		if !pause(ctx, retryEvery) {
			return nil
		}
		b.rt.Health.Set(Name, true)
	}
}

// WriteHistory writes what the sink's files below parquet hold, and gives the number of points that were not there.
func (b *Board) WriteHistory(ctx context.Context, parquet string) (written int, err error) {
	if err := b.claim(); err != nil {
		return 0, err
	}
	defer b.close()
	for _, topic := range Topics {
		files, err := sink.OpenFiles(parquet, topic)
		if err != nil {
			return written, err
		}
		var points []Point
		flush := func() error {
			before := b.written()
			err := b.write(points)
			points, written = points[:0], written+b.written()-before
			return err
		}
		for r, err := range files.Read(ctx, 0) {
			if err != nil {
				return written, err
			}
			if r.Err != nil {
				continue
			}
			if points = append(points, Point{topic, r.Offset, r.Time, r.Value}); len(points) == 1000 {
				if err := flush(); err != nil {
					return written, err
				}
			}
		}
		if err := flush(); err != nil {
			return written, err
		}
	}
	return written, nil
}

// write puts points into the files that are theirs, each point once.
func (b *Board) write(points []Point) error {
	if _, err := b.file(""); err != nil { // is there, with the settings, before there is a point
		return err
	}
	for _, p := range points {
		f, err := b.file(shadowOf(p))
		if err != nil {
			return err
		}
		f.add(p)
	}
	for _, f := range b.files {
		if err := f.flush(); err != nil {
			return err
		}
	}
	return nil
}

// written is the number of points that this process has written.
func (b *Board) written() (n int) {
	for _, f := range b.files {
		n += f.points
	}
	return n
}

// maxShadows bounds the files of shadow trainers; points of more are passed over.
const maxShadows = 64

// file opens the file of the run, or of a shadow trainer.
func (b *Board) file(shadow string) (*file, error) {
	if f := b.files[shadow]; f != nil {
		return f, nil
	}
	if len(b.files) > maxShadows {
		return &file{}, nil
	}
	dir, name := b.options.Dir, b.rt.Run.Name
	if shadow != "" {
		dir, name = filepath.Join(dir, "shadow-"+shadow), name+"/shadow-"+shadow
	}
	var settings []byte
	if b.options.Settings != nil {
		settings = b.options.Settings(shadow)
	}
	f, err := openFile(dir, preamble(name, settings, time.Now()))
	if err != nil {
		return nil, err
	}
	if f.torn > 0 {
		b.rt.Log.Info("the end of an event file was torn and is written again", "stage", Name, "file", f.path, "bytes", f.torn)
	}
	b.files[shadow] = f
	return f, nil
}

var errHeld = errors.New("another process writes the event files of this folder")

// claim takes the folder's lock.
func (b *Board) claim() error {
	if err := os.MkdirAll(b.options.Dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of the event files: %w", err)
	}
	f, err := os.Open(b.options.Dir)
	if err != nil {
		return fmt.Errorf("open the folder of the event files: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("%w: %s: %w", errHeld, b.options.Dir, errors.Join(err, f.Close()))
	}
	b.lock = f
	return nil
}

func (b *Board) close() {
	for _, f := range b.files {
		if err := f.close(); err != nil {
			b.rt.Log.Warn("an event file was not closed", "stage", Name, "error", err)
		}
	}
	clear(b.files)
	if b.lock != nil {
		_ = b.lock.Close() // nothing was written to it
		b.lock = nil
	}
}

// pause waits for d; false where ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
