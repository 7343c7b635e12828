package board

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/prl-project/prl/pipeline"
)

// fileName is that of the one event file of a folder. TensorBoard takes every file with tfevents in its name.
const fileName = "events.out.tfevents.0000000000.prl"

// A file is an event file that grows.
type file struct {
	*os.File
	path   string
	size   int64            // of its whole events
	torn   int64            // bytes behind them that were cut off
	last   map[string]int64 // by topic, the offset of the last record it holds
	points int              // written by this process
	buffer []byte
	added  int // events in buffer
}

// openFile opens the event file of a folder and cuts off what is torn. A new one begins with the preamble.
func openFile(dir string, preamble []event) (f *file, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of an event file: %w", err)
	}
	f = &file{path: filepath.Join(dir, fileName), last: map[string]int64{}}
	if f.File, err = os.OpenFile(f.path, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return nil, fmt.Errorf("open an event file: %w", err)
	}
	if err := f.scan(len(preamble)); err != nil {
		return nil, fmt.Errorf("read %s: %w", f.path, errors.Join(err, f.Close()))
	}
	if f.size == 0 {
		for _, e := range preamble {
			f.buffer = appendRecord(f.buffer, e.bytes())
		}
	}
	return f, nil
}

// scan finds where the file goes on. A preamble that is not whole is written again.
func (f *file) scan(preamble int) error {
	r := bufio.NewReaderSize(f.File, 1<<18)
	for n := 0; ; n++ {
		data, size, err := readRecord(r)
		if errors.Is(err, io.EOF) || errors.Is(err, errTorn) {
			if n < preamble {
				f.size = 0
				clear(f.last)
			}
			break
		}
		if err != nil {
			return err
		}
		f.size += size
		topic, offset, ok, err := placeOf(data)
		if err != nil {
			return fmt.Errorf("an event at byte %d: %w; move the file away, and it is written anew", f.size-size, err)
		}
		if ok {
			f.last[topic] = offset
		}
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if f.torn = info.Size() - f.size; f.torn == 0 {
		return nil
	}
	return f.Truncate(f.size)
}

// add takes a point that the file has not.
func (f *file) add(p Point) {
	if f.File == nil {
		return
	}
	if last, some := f.last[p.Topic]; some && p.Offset <= last {
		return
	}
	f.last[p.Topic] = p.Offset
	if e, ok := eventOf(p); ok {
		f.buffer = appendRecord(f.buffer, e.bytes())
		f.added++
	}
}

// flush writes what was added. After an error the file is as it was, and flush may be called again.
func (f *file) flush() error {
	if len(f.buffer) == 0 {
		return nil
	}
	pipeline.Crash(Name + ".before-write")
	err := pipeline.WriteFault()
	if err == nil {
		_, err = f.WriteAt(f.buffer, f.size)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", f.path, errors.Join(err, f.Truncate(f.size)))
	}
	pipeline.Crash(Name + ".written")
	f.size += int64(len(f.buffer))
	f.points += f.added
	f.buffer, f.added = f.buffer[:0], 0
	return nil
}

func (f *file) close() error {
	if f.File == nil {
		return nil
	}
	return errors.Join(f.Sync(), f.Close())
}
