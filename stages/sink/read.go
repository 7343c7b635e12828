package sink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// A Stored is a record as the files have it. Text is as they have it, too: in valid UTF-8, which a record's need not be.
type Stored struct {
	Offset int64
	Time   time.Time // UTC, to the millisecond
	Value  schemas.Record
	// Err says why the record could not be read when it was written to the file; Value is nil then.
	Err error
}

// Files are the chains of files of a topic's partitions, each in the order of its positions.
type Files struct {
	topic string
	table *table
	paths map[int32][]string
	// Spans is what the files of each partition cover, gaps of the offsets included.
	Spans map[int32]pipeline.Span
}

// OpenFiles finds the files of a topic, named without the run's prefix, below dir. It is an error where a chain has a
// hole, or where files are of two topics that had the name one after the other.
func OpenFiles(dir, topic string) (*Files, error) {
	t, ok := tableOf(topic)
	if !ok || t.record == "" {
		return nil, fmt.Errorf("topic %s has no records that could be read from files", topic)
	}
	f := &Files{topic: topic, table: t, paths: map[int32][]string{}, Spans: map[int32]pipeline.Span{}}
	folder := filepath.Join(dir, t.name)
	entries, err := os.ReadDir(folder) // in the order of names, so of positions
	if err != nil {
		return nil, fmt.Errorf("list the files of %s: %w", topic, err)
	}
	var first fileName
	for _, e := range entries {
		n, ok := parseName(e.Name())
		if !ok || n.topic != topic {
			continue
		}
		path, span := filepath.Join(folder, e.Name()), f.Spans[n.partition]
		switch {
		case len(f.paths) == 0:
			first = n
		case n.id != first.id:
			return nil, fmt.Errorf("read the files of %s: %s and %s are of two topics of the same name", topic, first, n)
		}
		if n.start != span.End {
			return nil, fmt.Errorf("read the files of %s: %s begins at offset %d, the one before it ends at %d: some are missing", topic, path, n.start, span.End)
		}
		if span.End, err = readEnd(path); err != nil {
			return nil, err
		}
		f.paths[n.partition], f.Spans[n.partition] = append(f.paths[n.partition], path), span
	}
	return f, nil
}

// Read gives the records of a partition in the order of their offsets. Tensors in the blob store stay there: the record's
// blobs name them. The first error ends it.
func (f *Files) Read(ctx context.Context, partition int32) iter.Seq2[Stored, error] {
	return func(yield func(Stored, error) bool) {
		for _, path := range f.paths[partition] {
			err := f.readFile(ctx, path, func(s Stored) bool { return yield(s, nil) })
			if errors.Is(err, errEnough) {
				return
			}
			if err != nil {
				yield(Stored{}, fmt.Errorf("read %s: %w", path, err))
				return
			}
		}
	}
}

var errEnough = errors.New("no more is wanted")

func (f *Files) readFile(ctx context.Context, path string, yield func(Stored) bool) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	opened, err := parquet.OpenFile(file, info.Size())
	if err != nil {
		return err
	}
	r := parquet.NewGenericReader[any](opened, f.table.schema) // columns that the file is too old for are empty
	defer r.Close()
	rows := make([]parquet.Row, 64)
	for {
		n, err := r.ReadRows(rows)
		for _, row := range rows[:n] {
			s, err := f.table.stored(row)
			if err != nil {
				return err
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if !yield(s) {
				return errEnough
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// stored is the record of a row: the way back from fill.
func (t *table) stored(row parquet.Row) (Stored, error) {
	filled := reflect.New(t.row)
	if err := t.schema.Reconstruct(filled.Interface(), row); err != nil {
		return Stored{}, err
	}
	var at position
	fields, first := filled.Elem(), t.values.Type.NumField()
	for i, v := 0, reflect.ValueOf(&at).Elem(); i < v.NumField(); i++ {
		v.Field(i).Set(fields.Field(first + i))
	}
	s := Stored{Offset: at.Offset, Time: at.Time.UTC()}
	if at.Error != nil {
		s.Err = errors.New(*at.Error)
		return s, nil
	}
	values := reflect.New(t.values.Type).Elem()
	for i := range values.NumField() {
		values.Field(i).Set(fields.Field(i))
	}
	s.Value = schemas.New(t.record)
	t.values.get(reflect.ValueOf(s.Value).Elem(), values)
	if err := s.Value.Validate(); err != nil {
		return Stored{}, fmt.Errorf("the record at offset %d: %w", s.Offset, err)
	}
	return s, nil
}
