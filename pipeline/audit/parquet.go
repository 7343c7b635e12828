package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/parquet-go/parquet-go"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// rowSums stand for the records of a partition, in the order of their offsets.
type rowSums struct {
	offsets []int64
	values  []uint64
	tasks   []uint64 // of the task's JSON, for records that have one
	unread  []bool   // could not be decoded here
	seen    []bool   // in Parquet
}

// keepRow notes what the row of a record must hold.
func (a *auditor) keepRow(r record) {
	if a.cfg.Parquet == "" {
		return
	}
	p := part{r.Topic, r.Partition}
	s := a.rows[p]
	if s == nil {
		s = &rowSums{}
		a.rows[p] = s
	}
	value, task := maphash.Bytes(canonSeed, r.Raw), uint64(0)
	if r.Value != nil {
		value = recordSum(r.Value)
	}
	switch v := r.Value.(type) {
	case *schemas.Task:
		task = textSum(v.Task)
	case *schemas.Trace:
		task = textSum(v.Task)
	}
	s.offsets, s.values, s.tasks = append(s.offsets, r.Offset), append(s.values, value), append(s.tasks, task)
	s.unread, s.seen = append(s.unread, r.Value == nil && r.Topic != pipeline.TopicDLQ), append(s.seen, false)
}

// readParquet holds every row of the sink's files against the record it is of.
func (a *auditor) readParquet(ctx context.Context, dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, "*", "*.parquet"))
	if err != nil {
		return fmt.Errorf("list the Parquet files: %w", err)
	}
	slices.Sort(paths)
	for _, path := range paths {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := a.readFile(path); err != nil {
			a.violate(TrainedOnce, "%s cannot be read: %v", path, err)
		}
	}
	return nil
}

func (a *auditor) readFile(path string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	file, err := parquet.OpenFile(f, info.Size()) // NewGenericReader would panic
	if err != nil {
		return err
	}
	r := parquet.NewGenericReader[any](file)
	defer r.Close()
	rows := make([]any, 64)
	for {
		n, err := r.Read(rows)
		for _, row := range rows[:n] {
			if err := a.row(row); err != nil {
				return err
			}
		}
		clear(rows)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// row holds a row against its record.
func (a *auditor) row(row any) error {
	columns, _ := row.(map[string]any)
	topic, ok := columns["kafka_topic"].(string)
	partition, ok2 := columns["kafka_partition"].(int32)
	offset, ok3 := columns["kafka_offset"].(int64)
	if !ok || !ok2 || !ok3 {
		return fmt.Errorf("a row does not say which record it is of")
	}
	a.count(topic).Rows++
	ref := pipeline.Ref{Topic: topic, Partition: partition, Offset: offset}
	spec, known := pipeline.TopicOf(topic)
	s := a.rows[part{topic, partition}]
	i, found := 0, false
	if s != nil {
		i, found = slices.BinarySearch(s.offsets, offset)
	}
	switch {
	case !found && known && spec.Compacted:
		return nil
	case !found:
		a.violate(TrainedOnce, "Parquet has a row of %v, which does not exist", ref)
		return nil
	case s.seen[i]:
		a.violate(TrainedOnce, "Parquet has two rows of %v", ref)
		return nil
	}
	s.seen[i] = true
	if s.unread[i] && columns["kafka_error"] == nil {
		return nil // its tensors are what could not be read: the sink leaves them where they are
	}
	value, err := rowValue(spec, columns)
	if err != nil {
		return fmt.Errorf("%v: %w", ref, err)
	}
	if text, ok := columns["task"].(string); ok && !s.unread[i] && columns["kafka_error"] == nil && textSum(text) != s.tasks[i] {
		a.violate(NoEnvironment, "the task of %v is another one in Parquet: %s", ref, clip(text))
	} else if value != s.values[i] {
		a.violate(TrainedOnce, "the row of %v has other values than the record", ref)
	}
	return nil
}

// rowValue sums the values of a row as keepRow does those of a record.
func rowValue(spec pipeline.Topic, columns map[string]any) (uint64, error) {
	column := "kafka_raw"
	switch {
	case columns["kafka_error"] != nil:
	case spec.Record == "":
		column = "value"
	default:
		return rowSum(reflect.TypeOf(schemas.New(spec.Record)).Elem(), columns)
	}
	switch raw := columns[column].(type) {
	case string:
		return maphash.String(canonSeed, raw), nil
	case []byte:
		return maphash.Bytes(canonSeed, raw), nil
	}
	return maphash.String(canonSeed, ""), nil
}

// checkRows holds the Parquet files to having every record. Before the end the newest may be missing.
func (a *auditor) checkRows() {
	for _, p := range slices.SortedFunc(maps.Keys(a.rows), func(x, y part) int {
		return cmp.Or(strings.Compare(x.topic, y.topic), cmp.Compare(x.partition, y.partition))
	}) {
		s := a.rows[p]
		last := len(s.seen)
		for !a.cfg.Ended && last > 0 && !s.seen[last-1] {
			last--
		}
		for i, seen := range s.seen[:last] {
			if !seen {
				a.violate(TrainedOnce, "%v is not in Parquet", pipeline.Ref{Topic: p.topic, Partition: p.partition, Offset: s.offsets[i]})
			}
		}
	}
}

// fillCounts puts the topics into the report, in their order.
func (a *auditor) fillCounts() {
	for _, t := range topicsOf(a.cfg.Envs) {
		a.report.Topics = append(a.report.Topics, *a.count(t))
	}
}
