// Package history reads what a run's sink has written: the columns of a file that a list needs, or single records. It keeps
// nothing but what files say at their ends, which never changes.
package history

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/parquet-go/parquet-go"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
)

// ErrNotThere says that no file holds the record: it was never written, is not written yet, or was deleted.
var ErrNotThere = errors.New("not in the Parquet files")

// Files are those of a run. They are safe for concurrent use.
type Files struct {
	Dir string // with a folder per table

	mu    sync.Mutex
	spans map[string]span // by path and column
}

// span is the least and the greatest value of a column in a file.
type span struct{ min, max int64 }

// New looks at the files in dir, which need not be there.
func New(dir string) *Files { return &Files{Dir: dir, spans: map[string]span{}} }

// List lists the files of a topic's table, newest last.
func (f *Files) List(topic string) ([]sink.File, error) {
	files, err := sink.ListFiles(f.Dir, topic)
	slices.SortStableFunc(files, func(a, b sink.File) int { return a.Time.Compare(b.Time) })
	return files, err
}

// Ends are the positions at which the files of a topic's table end, by topic and partition.
func (f *Files) Ends(topic string) (map[string]map[int32]int64, error) {
	files, err := sink.ListFiles(f.Dir, topic)
	if err != nil {
		return nil, err
	}
	ends := map[string]map[int32]int64{}
	for i, file := range files {
		if i+1 < len(files) && files[i+1].Topic == file.Topic && files[i+1].Partition == file.Partition {
			continue
		}
		if ends[file.Topic] == nil {
			ends[file.Topic] = map[int32]int64{}
		}
		if ends[file.Topic][file.Partition], err = file.End(); err != nil {
			return nil, err
		}
	}
	return ends, nil
}

// Record reads the record at an offset.
func (f *Files) Record(ctx context.Context, topic string, partition int32, offset int64) (sink.Stored, error) {
	files, err := sink.ListFiles(f.Dir, topic)
	if err != nil {
		return sink.Stored{}, err
	}
	files = slices.DeleteFunc(files, func(x sink.File) bool { return x.Topic != topic || x.Partition != partition })
	i := sort.Search(len(files), func(i int) bool { return files[i].Start > offset })
	if i == 0 {
		return sink.Stored{}, fmt.Errorf("%s/%d@%d: %w", topic, partition, offset, ErrNotThere)
	}
	row := int64(-1)
	err = columns(files[i-1].Path, func(t *table) error {
		return t.each("kafka_offset", func(at int64, v parquet.Value) error {
			if v.Int64() == offset {
				row = at
				return io.EOF
			}
			return nil
		})
	})
	if err != nil && !errors.Is(err, io.EOF) {
		return sink.Stored{}, err
	}
	if row < 0 {
		return sink.Stored{}, fmt.Errorf("%s/%d@%d: %w", topic, partition, offset, ErrNotThere)
	}
	s, err := sink.ReadRow(ctx, files[i-1], row)
	if err == nil && s.Err != nil {
		err = fmt.Errorf("%s/%d@%d could not be read when it was written down: %w", topic, partition, offset, s.Err)
	}
	return s, err
}

// Where reads the records of a topic whose column has a value, at most limit, in the order of files.
func (f *Files) Where(ctx context.Context, topic, column string, value int64, limit int) ([]schemas.Record, error) {
	files, err := f.List(topic)
	if err != nil {
		return nil, err
	}
	var found []schemas.Record
	for _, file := range slices.Backward(files) {
		s, err := f.span(file, column)
		if err != nil {
			return nil, err
		}
		if value < s.min || value > s.max {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var rows []int64
		if err := columns(file.Path, func(t *table) error {
			return t.each(column, func(at int64, v parquet.Value) error {
				if !v.IsNull() && v.Int64() == value {
					rows = append(rows, at)
				}
				return nil
			})
		}); err != nil {
			return nil, err
		}
		for _, row := range rows {
			stored, err := sink.ReadRow(ctx, file, row)
			if err != nil {
				return nil, err
			}
			if stored.Value != nil && len(found) < limit {
				found = append(found, stored.Value)
			}
		}
		if len(found) >= limit {
			break
		}
	}
	return found, nil
}

// span is what the end of a file says of a column.
func (f *Files) span(file sink.File, column string) (span, error) {
	key := file.Path + "\x00" + column
	f.mu.Lock()
	s, known := f.spans[key]
	f.mu.Unlock()
	if known {
		return s, nil
	}
	s = span{min: 1, max: 0} // without a row
	err := columns(file.Path, func(t *table) error {
		for _, group := range t.file.RowGroups() {
			leaf, ok := t.file.Schema().Lookup(column)
			if !ok {
				return nil
			}
			index, err := group.ColumnChunks()[leaf.ColumnIndex].ColumnIndex()
			if err != nil {
				return err
			}
			for p := range index.NumPages() {
				if index.NullPage(p) {
					continue
				}
				low, high := index.MinValue(p).Int64(), index.MaxValue(p).Int64()
				if s.min > s.max {
					s = span{low, high}
				}
				s.min, s.max = min(s.min, low), max(s.max, high)
			}
		}
		return nil
	})
	if err != nil {
		return s, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.spans) >= maxSpans {
		clear(f.spans)
	}
	f.spans[key] = s
	return s, nil
}

// maxSpans bounds what is kept of the ends of files.
const maxSpans = 100_000

// table is an open file.
type table struct{ file *parquet.File }

// columns opens a file for reading some of its columns.
func columns(path string, read func(*table) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	opened, err := parquet.OpenFile(f, info.Size())
	if err == nil {
		err = read(&table{opened})
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// each gives the values of a column, named by its path with dots, with their rows. A row of an empty list has one null. A
// column that the file is too old for has none.
func (t *table) each(column string, value func(row int64, v parquet.Value) error) error {
	leaf, ok := t.file.Schema().Lookup(strings.Split(column, ".")...)
	if !ok {
		return nil
	}
	row := int64(-1)
	buffer := make([]parquet.Value, 1024)
	for _, group := range t.file.RowGroups() {
		pages := group.ColumnChunks()[leaf.ColumnIndex].Pages()
		err := eachOf(pages, buffer, func(v parquet.Value) error {
			if v.RepetitionLevel() == 0 {
				row++
			}
			return value(row, v)
		})
		if err = errors.Join(err, pages.Close()); err != nil {
			return err
		}
	}
	return nil
}

func eachOf(pages parquet.Pages, buffer []parquet.Value, value func(parquet.Value) error) error {
	for {
		page, err := pages.ReadPage()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		values := page.Values()
		for {
			n, err := values.ReadValues(buffer)
			for _, v := range buffer[:n] {
				if err := value(v); err != nil {
					parquet.Release(page)
					return err
				}
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				parquet.Release(page)
				return err
			}
		}
		parquet.Release(page)
	}
}

// words makes strings of values, each only once.
type words map[string]string

func (w words) of(v parquet.Value) string {
	if s, ok := w[string(v.ByteArray())]; ok {
		return s
	}
	if len(w) > 10_000 {
		clear(w)
	}
	s := string(v.ByteArray())
	w[s] = s
	return s
}
