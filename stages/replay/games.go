package replay

import (
	"context"
	"fmt"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/eval"
)

// Games are the distinct tasks that were played of an environment, in the order of the first trace of each.
type Games struct {
	Games []eval.Game
	// Rollouts with a reward that were recorded of them, and the mean of those.
	Rollouts int64
	Reward   float64
}

// GamesOf reads the tasks of traces or eval_traces, by environment; refused is the number of traces that cannot be read.
func GamesOf(ctx context.Context, src Source, topic string, selected Selection, show Progress) (all map[string]*Games, refused int64, err error) {
	if topic != pipeline.TopicTraces && topic != pipeline.TopicEvalTraces {
		return nil, 0, fmt.Errorf("tasks of topic %q: %s or %s", topic, pipeline.TopicTraces, pipeline.TopicEvalTraces)
	}
	type key struct {
		env  string
		game eval.Game
	}
	all = map[string]*Games{}
	seen := map[key]bool{}
	err = each(ctx, src, topic, newMeter(show, "reading "+topic, offsets(src.Spans(topic))), func(rec Record) error {
		if !selected.record(rec.Offset, rec.Time) {
			return nil
		}
		t, ok, err := decode[*schemas.Trace](ctx, rec)
		if err == nil && !ok {
			refused++
		}
		if !ok || !selected.trace(t) {
			return err
		}
		g := all[t.Env]
		if g == nil {
			g = &Games{}
			all[t.Env] = g
		}
		game := eval.Game{Split: t.Split, TaskIndex: t.TaskIndex, GroupSeed: t.GroupSeed}
		if k := (key{t.Env, game}); !seen[k] {
			seen[k] = true
			g.Games = append(g.Games, game)
		}
		if t.Reward != nil && len(t.Errors) == 0 {
			g.Rollouts++
			g.Reward += (*t.Reward - g.Reward) / float64(g.Rollouts)
		}
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("read the recorded tasks: %w", err)
	}
	return all, refused, nil
}
