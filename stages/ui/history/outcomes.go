package history

import (
	"github.com/parquet-go/parquet-go"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
)

// Outcomes reads the outcomes of a file from an offset on, in the order of the log; of their rollouts not the errors.
func Outcomes(file sink.File, from int64) ([]*schemas.GroupOutcome, error) {
	var outcomes []*schemas.GroupOutcome
	err := columns(file.Path, func(t *table) (err error) {
		outcomes, err = t.outcomes(from)
		return err
	})
	return outcomes, err
}

func (t *table) outcomes(from int64) ([]*schemas.GroupOutcome, error) {
	rows := make([]schemas.GroupOutcome, t.file.NumRows())
	seen := words{}
	for _, c := range []struct {
		name string
		set  func(*schemas.GroupOutcome, parquet.Value)
	}{
		{"env", func(o *schemas.GroupOutcome, v parquet.Value) { o.Env = seen.of(v) }},
		{"eval", func(o *schemas.GroupOutcome, v parquet.Value) { o.Eval = seen.of(v) }},
		{"group_id", func(o *schemas.GroupOutcome, v parquet.Value) { o.GroupID = v.Int64() }},
		{"task_index", func(o *schemas.GroupOutcome, v parquet.Value) { o.TaskIndex = v.Int64() }},
		{"fate", func(o *schemas.GroupOutcome, v parquet.Value) { o.Fate = seen.of(v) }},
		{"filter", func(o *schemas.GroupOutcome, v parquet.Value) { o.Filter = seen.of(v) }},
		{"step", func(o *schemas.GroupOutcome, v parquet.Value) { o.Step = new(v.Int64()) }},
		{"rollouts.list.element.rollout_index", func(o *schemas.GroupOutcome, v parquet.Value) {
			o.Rollouts = append(o.Rollouts, schemas.RolloutFate{RolloutIndex: int(v.Int32())})
		}},
	} {
		if err := t.each(c.name, func(row int64, v parquet.Value) error {
			if !v.IsNull() {
				c.set(&rows[row], v)
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	for _, c := range []struct {
		name string
		set  func(*schemas.RolloutFate, parquet.Value)
	}{
		{"attempt", func(r *schemas.RolloutFate, v parquet.Value) { r.Attempt = int(v.Int32()) }},
		{"fate", func(r *schemas.RolloutFate, v parquet.Value) { r.Fate = seen.of(v) }},
		{"reward", func(r *schemas.RolloutFate, v parquet.Value) { r.Reward = new(v.Double()) }},
		{"policy_start", func(r *schemas.RolloutFate, v parquet.Value) { r.PolicyStart = new(v.Int64()) }},
		{"tokens", func(r *schemas.RolloutFate, v parquet.Value) { r.Tokens = int(v.Int32()) }},
		{"truncated", func(r *schemas.RolloutFate, v parquet.Value) { r.Truncated = v.Boolean() }},
	} {
		at := 0
		if err := t.each("rollouts.list.element."+c.name, func(row int64, v parquet.Value) error {
			if v.RepetitionLevel() == 0 {
				at = 0
			}
			if !v.IsNull() && at < len(rows[row].Rollouts) {
				c.set(&rows[row].Rollouts[at], v)
			}
			at++
			return nil
		}); err != nil {
			return nil, err
		}
	}
	if err := t.each("kafka_offset", func(row int64, v parquet.Value) error {
		if v.Int64() < from {
			rows[row].Fate = ""
		}
		return nil
	}); err != nil {
		return nil, err
	}
	outcomes := make([]*schemas.GroupOutcome, 0, len(rows))
	for i := range rows {
		if rows[i].Fate != "" { // else it could not be read, or is not wanted
			outcomes = append(outcomes, &rows[i])
		}
	}
	return outcomes, nil
}
