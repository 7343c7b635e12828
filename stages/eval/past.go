package eval

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/weights"
)

// Last, as what to resume, is the newest eval by hand of the same settings that is not finished: it has no result, or
// some of its rollouts failed.
const Last = "last"

// begun is an eval by hand that was begun before.
type begun struct {
	name   string
	tasks  []*schemas.Task
	result *schemas.EvalResult // the newest; nil for none
}

// finished reports whether nothing of so many examples is left to play.
func (b *begun) finished(examples int) bool {
	return b.result != nil && b.result.Errored == 0 && b.result.Examples >= int64(examples)
}

// find looks for the eval by hand that w resumes.
func find(ctx context.Context, rt *pipeline.Runtime, w Wish) (*begun, error) {
	all := map[string]*begun{}
	of := func(name string) *begun {
		if all[name] == nil {
			all[name] = &begun{name: name}
		}
		return all[name]
	}
	err := visit(ctx, rt, []string{pipeline.TopicTasks(w.Config.Env), pipeline.TopicEvals}, func(r pipeline.Record) {
		switch v := r.Value.(type) {
		case *schemas.Task:
			b := of(v.Eval)
			b.tasks = append(b.tasks, v)
		case *schemas.EvalResult:
			of(v.Eval).result = v
		}
	})
	if err != nil {
		return nil, fmt.Errorf("look for the eval to resume: %w", err)
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if len(all[name].tasks) > 0 {
			names = append(names, name)
		}
	}
	if w.Resume != Last {
		name := pipeline.ByHandPrefix + strings.TrimPrefix(w.Resume, pipeline.ByHandPrefix)
		if b := all[name]; b != nil && len(b.tasks) > 0 {
			return b, nil
		}
		return nil, fmt.Errorf("no eval by hand %q of %s in run %s: %s", w.Resume, w.Config.Env, rt.Run.Name, listed(names))
	}
	for _, name := range slices.Backward(names) {
		if b := all[name]; !b.finished(w.Config.Examples) && w.like(b.tasks[0]) {
			return b, nil
		}
	}
	return nil, fmt.Errorf("no eval by hand of %s with these settings is left unfinished in run %s: %s; leave --resume out to begin one", w.Config.Env, rt.Run.Name, listed(names))
}

func listed(names []string) string {
	if len(names) == 0 {
		return "there is none"
	}
	var ids []string
	for _, n := range names {
		ids = append(ids, strings.TrimPrefix(n, pipeline.ByHandPrefix))
	}
	return "there are " + strings.Join(ids, ", ")
}

// like reports whether a task is of an eval with the settings wished for.
func (w Wish) like(t *schemas.Task) bool {
	policy := w.Policy == Latest || w.Policy == t.Policy || t.PinVersion != nil && w.Policy == strconv.FormatInt(*t.PinVersion, 10)
	return policy && t.GroupSize == w.Config.K && t.Temperature == w.Config.Temperature
}

// read gives what the topics hold of the eval.
func (b *begun) read(ctx context.Context, rt *pipeline.Runtime, env string) (past, error) {
	p := past{decided: map[int64]bool{}}
	err := visit(ctx, rt, []string{pipeline.TopicTasks(env), pipeline.TopicEvalTraces, pipeline.TopicOutcomes}, func(r pipeline.Record) {
		switch v := r.Value.(type) {
		case *schemas.Task:
			if v.Eval == b.name {
				p.tasks = append(p.tasks, v)
			}
		case *schemas.Trace:
			if v.Eval == b.name {
				p.traces = append(p.traces, keep(v))
			}
		case *schemas.GroupOutcome:
			if v.Eval == b.name {
				p.decided[v.GroupID] = true
			}
		}
	})
	if err != nil {
		return p, fmt.Errorf("read what was played of %s: %w", b.name, err)
	}
	return p, nil
}

// visit reads topics from their start to their end, but only what is of evals by hand: all keys but those of evals name
// the group. What cannot be read is passed over.
func visit(ctx context.Context, rt *pipeline.Runtime, topics []string, with func(pipeline.Record)) error {
	spans, err := rt.Spans(ctx, true, topics...)
	if err != nil {
		return err
	}
	return rt.ReadSpans(ctx, true, spans, func(r *kgo.Record) error {
		byKey := rt.BaseName(r.Topic) != pipeline.TopicEvals
		if r.Attrs.IsControl() || byKey && !pipeline.EvalByHand(string(r.Key)) {
			return nil
		}
		rec, err := rt.Decode(ctx, r)
		if err != nil {
			rt.Log.Warn("a record cannot be read and is passed over", "record", rec.Ref.String(), "error", err)
			return nil
		}
		if res, ok := rec.Value.(*schemas.EvalResult); ok && !pipeline.EvalByHand(res.Eval) {
			return nil
		}
		with(rec)
		return nil
	})
}

// choose decides which policy is measured.
func choose(ctx context.Context, rt *pipeline.Runtime, w Wish, versions []*schemas.PolicyVersion, b *begun) (version int64, policy string, err error) {
	if len(versions) == 0 {
		return 0, "", fmt.Errorf("run %s has no policy version: is it the right --run?", rt.Run.Name)
	}
	first, last := versions[0].Version, versions[len(versions)-1].Version
	wanted := last
	switch n, err := strconv.ParseInt(w.Policy, 10, 64); {
	case w.Policy == Latest && b != nil && b.tasks[0].Policy != "":
		return 0, b.tasks[0].Policy, nil
	case w.Policy == Latest && b != nil && b.tasks[0].PinVersion != nil:
		wanted = *b.tasks[0].PinVersion
	case w.Policy == Latest:
	case err == nil:
		wanted = n
	case slices.Contains(w.Frozen, w.Policy):
		return 0, w.Policy, nil
	default:
		return 0, "", fmt.Errorf("no policy %q: there are %s, the versions %d to %d, and the frozen policies of the sections [frozen.<name>]: %v", w.Policy, Latest, first, last, w.Frozen)
	}
	i := slices.IndexFunc(versions, func(v *schemas.PolicyVersion) bool { return v.Version == wanted })
	if i < 0 {
		return 0, "", fmt.Errorf("run %s has no policy version %d: it has %d to %d", rt.Run.Name, wanted, first, last)
	}
	if !w.Here {
		return wanted, "", nil
	}
	history := weights.NewHistory(versions...)
	has, err := here(ctx, rt, history, versions[i])
	if err != nil || has {
		return wanted, "", err
	}
	var kept []string
	for _, v := range versions {
		if has, err := here(ctx, rt, history, v); err != nil {
			return 0, "", err
		} else if has {
			kept = append(kept, strconv.FormatInt(v.Version, 10))
		}
	}
	return 0, "", fmt.Errorf("the weights of policy version %d are not here (a clean-up deletes them by [cleanup] keep_versions and keep_every): those of %s are", wanted, strings.Join(kept, ", "))
}

// here reports whether all that the weights of a version are made from is in the blob store.
func here(ctx context.Context, rt *pipeline.Runtime, history *weights.History, v *schemas.PolicyVersion) (bool, error) {
	chain, err := history.Chain(v)
	if err != nil {
		return false, nil // nobody can make them
	}
	for _, link := range chain.Versions() {
		if has, err := rt.Blobs.Has(ctx, link.Weights); err != nil || !has {
			return false, err
		}
	}
	return true, nil
}
