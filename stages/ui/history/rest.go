package history

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/parquet-go/parquet-go"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
)

// Metrics reads all points of a file, in the order of the log.
func Metrics(file sink.File) ([]*schemas.MetricPoint, error) {
	var points []*schemas.MetricPoint
	err := columns(file.Path, func(t *table) (err error) {
		points, err = t.metrics()
		return err
	})
	return points, err
}

func (t *table) metrics() ([]*schemas.MetricPoint, error) {
	rows := make([]schemas.MetricPoint, t.file.NumRows())
	seen := words{}
	keys := make([][]string, len(rows))
	for _, c := range []struct {
		name string
		set  func(row int64, p *schemas.MetricPoint, v parquet.Value)
	}{
		{"name", func(_ int64, p *schemas.MetricPoint, v parquet.Value) { p.Name = seen.of(v) }},
		{"stage", func(_ int64, p *schemas.MetricPoint, v parquet.Value) { p.Stage = seen.of(v) }},
		{"step", func(_ int64, p *schemas.MetricPoint, v parquet.Value) { p.Step = new(v.Int64()) }},
		{"value", func(_ int64, p *schemas.MetricPoint, v parquet.Value) { p.Value = v.Double() }},
		{"time_ms", func(_ int64, p *schemas.MetricPoint, v parquet.Value) { p.TimeMs = v.Int64() }},
		{"labels.key_value.key", func(row int64, _ *schemas.MetricPoint, v parquet.Value) { keys[row] = append(keys[row], seen.of(v)) }},
	} {
		if err := t.each(c.name, func(row int64, v parquet.Value) error {
			if !v.IsNull() {
				c.set(row, &rows[row], v)
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	if err := t.each("labels.key_value.value", func(row int64, v parquet.Value) error {
		if len(keys[row]) > 0 && !v.IsNull() {
			if rows[row].Labels == nil {
				rows[row].Labels = map[string]string{}
			}
			rows[row].Labels[keys[row][0]] = seen.of(v)
			keys[row] = keys[row][1:]
		}
		return nil
	}); err != nil {
		return nil, err
	}
	points := make([]*schemas.MetricPoint, 0, len(rows))
	for i := range rows {
		if rows[i].Name != "" { // else it could not be read
			points = append(points, &rows[i])
		}
	}
	return points, nil
}

// Records reads all records of a file of a topic that has few and small ones. What could not be read is left out.
func Records(ctx context.Context, file sink.File) ([]schemas.Record, error) {
	var records []schemas.Record
	for s, err := range sink.ReadFile(ctx, file) {
		if err != nil {
			return nil, err
		}
		if s.Value != nil {
			records = append(records, s.Value)
		}
	}
	return records, nil
}

// Texts gives, by row, whether a text is in what was said in the rollouts of a file: in their messages, calls of tools,
// reasoning or tasks. The case of letters does not count.
func Texts(ctx context.Context, file sink.File, contains func([]byte) bool) (offsets []int64, err error) {
	err = columns(file.Path, func(t *table) error {
		rows := make([]bool, t.file.NumRows())
		for _, c := range []string{"nodes.list.element.content", "nodes.list.element.reasoning", "nodes.list.element.tool_calls.list.element.arguments", "task"} {
			if err := t.each(c, func(row int64, v parquet.Value) error {
				if row&1023 == 0 && ctx.Err() != nil {
					return ctx.Err()
				}
				if !v.IsNull() && !rows[row] && contains(v.ByteArray()) {
					rows[row] = true
				}
				return nil
			}); err != nil {
				return err
			}
		}
		if !slices.Contains(rows, true) {
			return nil
		}
		err := t.each("kafka_offset", func(row int64, v parquet.Value) error {
			if rows[row] {
				offsets = append(offsets, v.Int64())
			}
			return nil
		})
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	})
	return offsets, err
}
