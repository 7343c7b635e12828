package history

import (
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/sink"
	"github.com/prl-project/prl/stages/ui/index"
)

// Rollouts reads the figures of all rollouts of a file of traces, or eval_traces.
func Rollouts(file sink.File) ([]index.Rollout, error) {
	var rollouts []index.Rollout
	err := columns(file.Path, func(t *table) (err error) {
		rollouts, err = t.rollouts(file)
		return err
	})
	return rollouts, err
}

func (t *table) rollouts(file sink.File) ([]index.Rollout, error) {
	rows := make([]index.Rollout, t.file.NumRows())
	unreadable := make([]bool, len(rows))
	seen := words{}
	number := func(to func(*index.Rollout) **int64) func(*index.Rollout, parquet.Value) {
		return func(r *index.Rollout, v parquet.Value) { *to(r) = new(v.Int64()) }
	}
	seconds := func(r *index.Rollout, v parquet.Value) { r.Seconds += v.Double() / 1000 }
	errorsOf := make([]int, len(rows)) // parts of the first error that were read
	for _, c := range []struct {
		name string
		set  func(*index.Rollout, parquet.Value)
	}{
		{"env", func(r *index.Rollout, v parquet.Value) { r.Env = seen.of(v) }},
		{"eval", func(r *index.Rollout, v parquet.Value) { r.Eval = seen.of(v) }},
		{"group_id", func(r *index.Rollout, v parquet.Value) { r.Group = v.Int64() }},
		{"task_index", func(r *index.Rollout, v parquet.Value) { r.Task = v.Int64() }},
		{"rollout_index", func(r *index.Rollout, v parquet.Value) { r.Rollout = int(v.Int32()) }},
		{"attempt", func(r *index.Rollout, v parquet.Value) { r.Attempt = int(v.Int32()) }},
		{"reward", func(r *index.Rollout, v parquet.Value) { r.Reward = new(v.Double()) }},
		{"policy_start", number(func(r *index.Rollout) **int64 { return &r.Start })},
		{"policy_end", number(func(r *index.Rollout) **int64 { return &r.End })},
		{"stop_reason", func(r *index.Rollout, v parquet.Value) { r.Stop = seen.of(v) }},
		{"policy", func(r *index.Rollout, v parquet.Value) { r.Policy = seen.of(v) }},
		{"truncated", func(r *index.Rollout, v parquet.Value) { r.Truncated = v.Boolean() }},
		{"timing.setup_ms", seconds}, {"timing.generation_ms", seconds}, {"timing.environment_ms", seconds}, {"timing.scoring_ms", seconds},
		{"kafka_offset", func(r *index.Rollout, v parquet.Value) { r.ID.Offset = v.Int64() }},
		{"kafka_time", func(r *index.Rollout, v parquet.Value) { r.Time = time.UnixMilli(v.Int64()) }},
	} {
		if err := t.each(c.name, func(row int64, v parquet.Value) error {
			if !v.IsNull() && row < int64(len(rows)) {
				c.set(&rows[row], v)
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	for part, name := range []string{"errors.list.element.type", "errors.list.element.message"} {
		if err := t.each(name, func(row int64, v parquet.Value) error {
			if !v.IsNull() && row < int64(len(rows)) && errorsOf[row] == part {
				errorsOf[row]++
				if r := &rows[row]; part == 0 {
					r.Error = seen.of(v)
				} else {
					r.Error = seen.of(parquet.ValueOf(r.Error + ": " + string(v.ByteArray())))
				}
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	if err := t.each("kafka_error", func(row int64, v parquet.Value) error {
		unreadable[row] = !v.IsNull()
		return nil
	}); err != nil {
		return nil, err
	}
	kept := rows[:0]
	for i, r := range rows {
		if unreadable[i] {
			continue
		}
		r.ID.Eval, r.ID.Partition = file.Topic == pipeline.TopicEvalTraces, file.Partition
		kept = append(kept, r)
	}
	return kept, nil
}
