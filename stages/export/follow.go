package export

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/idset"
)

const (
	// partRows and partAge bound how much a part holds, and how long a conversation waits to be in one.
	partRows = 10_000
	partAge  = 30 * time.Second
	// pollWait bounds how late the age of a part is noticed.
	pollWait = time.Second
	// drain is how long a stop goes on towards the ends of the topics.
	drain = 10 * time.Second
)

// A follower exports from the topics while the run goes on. A rollout is exported when both its trace and the outcome of its group
// have been read, in whatever order.
type follower struct {
	*Export
	speech   speech
	parts    *parts
	summary  Summary
	outcomes map[groupKey]*undone          // of groups that are decided and not done
	waiting  map[groupKey][]*schemas.Trace // of groups that are not decided
	done     map[string]*idset.Set         // groups of which every trace has been met, by eval
}

// undone is a group of which not every trace has been met that is to come.
type undone struct {
	*schemas.GroupOutcome
	left map[int]bool // rollouts
}

func newFollower(e *Export, parts *parts) *follower {
	return &follower{
		Export: e, parts: parts, outcomes: map[groupKey]*undone{}, waiting: map[groupKey][]*schemas.Trace{}, done: map[string]*idset.Set{},
		speech: speech{tools: map[string]*toolbox{}}, summary: Summary{Run: e.rt.Run.Name, Left: map[string]int64{}},
	}
}

// Run writes parts until ctx ends, and then what had come by then.
func (e *Export) Run(ctx context.Context) (err error) {
	e.rt.Health.Set(Name, false)
	defer e.rt.Health.Set(Name, false)
	parts, err := openParts(e.cfg, e.rt.Run.Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, parts.close()) }()
	f := newFollower(e, parts)
	if err := f.hear(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	small, err := e.rt.Follow(pipeline.TopicOutcomes, pipeline.TopicEnvs)
	if err != nil {
		return err
	}
	defer small.Close()
	large, err := e.rt.Follow(e.topics()...)
	if err != nil {
		return err
	}
	defer large.Close()
	known, err := small.Load(ctx) // so that traces of decided groups need not wait
	f.decide(known)
	if err != nil {
		return fmt.Errorf("%s: %w", Name, err)
	}
	e.rt.Health.Set(Name, true)
	e.ready()
	e.rt.Log.Info("conversations go to parts", "stage", Name, "dir", e.cfg.Out, "there", len(parts.seen))
	for ctx.Err() == nil {
		if err := f.step(ctx, small, large); err != nil {
			return fmt.Errorf("%s: %w", Name, err)
		}
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	for _, topics := range []*pipeline.Follower{large, small} {
		recs, err := topics.Load(stop)
		f.take(stop, recs)
		if err != nil {
			e.rt.Log.Warn("stopped before all was read; the next start goes on there", "stage", Name, "error", err)
		}
	}
	return f.parts.flush(time.Now(), true)
}

// hear waits for the run's first version, and learns how its policies are spoken to.
func (f *follower) hear(ctx context.Context) error {
	policies, err := f.rt.Follow(pipeline.TopicPolicies)
	if err != nil {
		return err
	}
	defer policies.Close()
	for ctx.Err() == nil {
		recs, err := f.poll(ctx, policies)
		if err != nil {
			return err
		}
		for _, r := range recs {
			if v, ok := r.Value.(*schemas.PolicyVersion); ok {
				f.speech.renderer = f.renderer(ctx, v)
				return nil
			}
		}
	}
	return nil
}

// poll gives what comes within pollWait.
func (f *follower) poll(ctx context.Context, topics *pipeline.Follower) ([]pipeline.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, pollWait)
	defer cancel()
	recs, err := topics.Poll(ctx)
	if errors.Is(err, pipeline.ErrTransient) {
		<-ctx.Done() // it may fail at once, again and again
		err = nil
	}
	return recs, err
}

// step takes what comes, and writes parts that are due.
func (f *follower) step(ctx context.Context, small, large *pipeline.Follower) error {
	recs, err := f.poll(ctx, large)
	if err != nil {
		return err
	}
	//lint:ignore SA1012 kgo documents nil as: return what is buffered
	decided, err := small.Poll(nil)
	if err != nil && !errors.Is(err, pipeline.ErrTransient) {
		return err
	}
	f.take(ctx, append(recs, decided...))
	for {
		err := f.parts.flush(time.Now(), false)
		f.rt.Wrote(Name, err)
		if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pollWait):
		}
	}
}

// take takes records of all topics.
func (f *follower) take(ctx context.Context, recs []pipeline.Record) {
	for _, r := range recs {
		t, ok := r.Value.(*schemas.Trace)
		if !ok {
			continue
		}
		group := groupKey{t.Eval, t.GroupID}
		if done := f.done[t.Eval]; done != nil && done.Has(t.GroupID) {
			continue // it came twice
		}
		if f.outcomes[group] != nil {
			f.rollout(ctx, t, f.outcomes[group])
		} else if why, _ := f.cfg.rollout(t, nil); why == whyUndecided && len(t.Errors) == 0 {
			f.waiting[group] = append(f.waiting[group], t)
		}
	}
	f.decide(recs)
}

// decide takes outcomes and announcements, and the traces that have waited for them.
func (f *follower) decide(recs []pipeline.Record) {
	for _, r := range recs {
		switch v := r.Value.(type) {
		case *schemas.EnvInfo:
			if err := f.speech.learn(v); err != nil {
				f.rt.Log.Warn("tools are not known", "stage", Name, "error", err)
			}
		case *schemas.GroupOutcome:
			if v.Eval != "" && !f.cfg.Evals {
				continue // none of its traces is read
			}
			group := groupKey{v.Eval, v.GroupID}
			o := &undone{v, map[int]bool{}}
			for _, fate := range v.Rollouts {
				if fate.Error == "" {
					o.left[fate.RolloutIndex] = true
				}
			}
			f.outcomes[group] = o
			for _, t := range f.waiting[group] {
				f.rollout(context.Background(), t, o)
			}
			delete(f.waiting, group)
			f.finish(group, o)
		}
	}
}

// rollout exports the conversations of a decided rollout that are wanted and not there yet.
func (f *follower) rollout(ctx context.Context, t *schemas.Trace, o *undone) {
	why, fate := f.cfg.rollout(t, o.GroupOutcome)
	if why == whyErrored {
		return // the one that counts is another
	}
	delete(o.left, t.RolloutIndex)
	f.finish(groupKey{t.Eval, t.GroupID}, o)
	if why != "" {
		return
	}
	found, err := f.cfg.look(ctx, f.rt, t, f.summary.Left)
	if err != nil {
		f.rt.Log.Warn("a rollout cannot be read", "stage", Name, "group", t.GroupID, "rollout", t.RolloutIndex, "error", err)
		return
	}
	for _, c := range found {
		f.parts.add(f.cfg.split(t), f.speech.row(f.rt.Run.Name, t, o.GroupOutcome, fate, c))
	}
}

// finish forgets a group of which nothing is to come.
func (f *follower) finish(group groupKey, o *undone) {
	if len(o.left) > 0 {
		return
	}
	delete(f.outcomes, group)
	if f.done[group.eval] == nil {
		f.done[group.eval] = &idset.Set{}
	}
	f.done[group.eval].Add(group.id)
}

// parts are the files of an export that grows.
type parts struct {
	cfg    Config
	run    string
	lock   *os.File
	seen   map[rowKey]bool
	sums   map[string]bool
	next   map[string]int // number of the next part, by split
	held   map[string][]Row
	oldest map[string]time.Time
}

// A rowKey names a conversation of the run.
type rowKey struct {
	eval    string
	group   int64
	rollout int32
	branch  int32
}

func keyOf(p Provenance) rowKey { return rowKey{p.Eval, p.GroupID, p.RolloutIndex, p.Branch} }

// add takes a conversation, unless it is there or the same as another.
func (p *parts) add(split string, row Row) {
	key := keyOf(row.Provenance)
	if p.seen[key] || p.sums[row.Provenance.SHA256] {
		return
	}
	p.seen[key], p.sums[row.Provenance.SHA256] = true, true
	if len(p.held[split]) == 0 {
		p.oldest[split] = time.Now()
	}
	p.held[split] = append(p.held[split], row)
}

// flush writes the parts that are full or old, or all.
func (p *parts) flush(now time.Time, all bool) error {
	for _, split := range []string{splitTrain, splitTest} {
		held := p.held[split]
		if len(held) == 0 || !all && len(held) < partRows && now.Sub(p.oldest[split]) < partAge {
			continue
		}
		if err := p.write(split, held); err != nil {
			return err
		}
		p.held[split] = nil
		p.next[split]++
	}
	return nil
}

func (p *parts) path(split string, n int) string {
	return filepath.Join(p.cfg.Out, fmt.Sprintf("%s-%06d.%s", split, n, p.cfg.Formats[0]))
}

// write makes a part appear at once and whole.
func (p *parts) write(split string, held []Row) error {
	path := p.path(split, p.next[split])
	draft := filepath.Join(p.cfg.Out, ".draft")
	if err := os.Remove(draft); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	w, err := newRows(draft, p.cfg.Formats[0])
	if err != nil {
		return err
	}
	for _, row := range held {
		err = errors.Join(err, w.add(row))
	}
	if err := errors.Join(err, w.close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	pipeline.Crash(Name + ".drafted")
	if err := os.Rename(draft, path); err != nil {
		return err
	}
	pipeline.Crash(Name + ".published")
	return syncFolder(p.cfg.Out)
}

func (p *parts) close() error { return p.lock.Close() }
