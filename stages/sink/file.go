package sink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go"
)

// A File is one file of a chain, as its name says. Files are never changed, so what was read of one stays true.
type File struct {
	Path      string
	Topic     string // without the run's prefix
	Partition int32
	Start     int64     // position at which it starts; the file before it ends there
	Time      time.Time // when it was published
}

// ListFiles lists the files of a topic's table below dir, in the order of topics, partitions and positions; none where the
// sink has not been there. The topics of all environments' tasks are one table.
func ListFiles(dir, topic string) ([]File, error) {
	t, ok := tableOf(topic)
	if !ok {
		return nil, fmt.Errorf("topic %s is none of a run's", topic)
	}
	folder := filepath.Join(dir, t.name)
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the files of %s: %w", topic, err)
	}
	var files []File
	for _, e := range entries {
		n, ok := parseName(e.Name())
		if !ok {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list the files of %s: %w", topic, err)
		}
		files = append(files, File{filepath.Join(folder, e.Name()), n.topic, n.partition, n.start, info.ModTime()})
	}
	slices.SortFunc(files, func(a, b File) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Start, b.Start))
	})
	return files, nil
}

// End is the position at which the file ends: the offset of the next record, or of a gap before it.
func (f File) End() (int64, error) { return readEnd(f.Path) }

// ReadFile gives the records of a file in the order of their offsets. Tensors in the blob store stay there. The first error
// ends it.
func ReadFile(ctx context.Context, f File) iter.Seq2[Stored, error] {
	return func(yield func(Stored, error) bool) {
		t, ok := tableOf(f.Topic)
		if !ok || t.record == "" {
			yield(Stored{}, fmt.Errorf("topic %s has no records that could be read from files", f.Topic))
			return
		}
		err := (&Files{table: t}).readFile(ctx, f.Path, func(s Stored) bool { return yield(s, nil) })
		if err != nil && !errors.Is(err, errEnough) {
			yield(Stored{}, fmt.Errorf("read %s: %w", f.Path, err))
		}
	}
}

// ReadRow reads one row of a file. Tensors in the blob store stay there: the record's blobs name them.
func ReadRow(ctx context.Context, f File, row int64) (Stored, error) {
	t, ok := tableOf(f.Topic)
	if !ok || t.record == "" {
		return Stored{}, fmt.Errorf("topic %s has no records that could be read from files", f.Topic)
	}
	if err := ctx.Err(); err != nil {
		return Stored{}, err
	}
	s, err := t.readRow(f.Path, row)
	if err != nil {
		return s, fmt.Errorf("read row %d of %s: %w", row, f.Path, err)
	}
	return s, nil
}

func (t *table) readRow(path string, row int64) (Stored, error) {
	file, err := os.Open(path)
	if err != nil {
		return Stored{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return Stored{}, err
	}
	opened, err := parquet.OpenFile(file, info.Size())
	if err != nil {
		return Stored{}, err
	}
	r := parquet.NewGenericReader[any](opened, t.schema)
	defer r.Close()
	if err := r.SeekToRow(row); err != nil {
		return Stored{}, err
	}
	rows := make([]parquet.Row, 1)
	n, err := r.ReadRows(rows)
	if n == 0 {
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		return Stored{}, err
	}
	return t.stored(rows[0])
}
