package replay

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// Config says what to recompute.
type Config struct {
	// Recorded is the section [run] as the run began, Run that of the other configuration.
	Recorded, Run pipeline.RunConfig
	// Scorer and Packer make the cores of the other configuration; Begin makes the packer's state behind a step, from
	// the first group id of the next.
	Scorer, Packer func(partition int32, state []byte) (pipeline.Core, error)
	Begin          func(step, next int64) ([]byte, error)
	// Topic is traces, or samples to take the recorded SampleGroups as they are and only pack them anew.
	Topic  string
	Select Selection
	// Rescorer gives the rewards of an environment's traces anew before they are scored; nil leaves them.
	Rescorer func(env string) (Rescorer, error)
	// Write takes everything that is made, in order: the groups as they are packed, and what the packer emits. Nil for
	// none.
	Write func(ctx context.Context, made []pipeline.Emission) error
	// Progress is told how far the work is; nil for no one.
	Progress Progress
}

// A Comparison holds what would have been against what was.
type Comparison struct {
	Recorded, Recomputed Figures
	// Identical micro-batches are the recorded ones byte for byte, in the newest schema; Different ones are in the same
	// place and are not. First is the first place where the two part; empty where they do not.
	Identical, Different int64
	First                string
	// Refused traces were unreadable, or poison to the scorer. Lost traces failed as they were given new rewards, by the
	// type of the error.
	Refused int64
	Lost    map[string]int64
	// Stopped is why the run would have stopped before the end; nil where it would not.
	Stopped error
}

// replayer is a recompute that runs.
type replayer struct {
	cfg    Config
	src    Source
	rec    *recorded
	groups groups
	packer pipeline.Core
	// step is the one the packer is at, fed the number of records it has got, held that of the groups without an outcome.
	step, fed, held int64
	waves           *waves // ordered mode only
	made            Comparison
}

// Recompute runs scorer and packer over what a run has recorded, in its order, and compares.
func Recompute(ctx context.Context, src Source, cfg Config) (*Comparison, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r := &replayer{cfg: cfg, src: src}
	var err error
	if r.rec, err = r.readRecorded(ctx); err == nil {
		err = r.readBatches(ctx, r.rec)
	}
	if err == nil {
		err = r.run(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("recompute: %w", err)
	}
	return &r.made, nil
}

func (c Config) validate() error {
	switch {
	case c.Topic != pipeline.TopicTraces && c.Topic != pipeline.TopicSamples:
		return fmt.Errorf("recompute from topic %q: %s, or %s to pack anew what was scored", c.Topic, pipeline.TopicTraces, pipeline.TopicSamples)
	case c.Topic == pipeline.TopicSamples && c.Rescorer != nil:
		return fmt.Errorf("new rewards for topic %s, whose groups are scored already: read %s", c.Topic, pipeline.TopicTraces)
	case c.Run.Ordered() && !c.Recorded.Ordered():
		return fmt.Errorf("run.max_async_level = 0: the run was asynchronous, its groups belong to no step, and ordered mode cannot be recomputed from them")
	}
	return nil
}

func (r *replayer) run(ctx context.Context) (err error) {
	r.made.Recorded, r.made.Recomputed = r.rec.figures, newFigures()
	r.step = 1
	var state []byte
	if turns := r.rec.turns; len(turns) > 0 {
		r.step = turns[0].step
		if r.step > 1 || turns[0].group > 0 {
			if state, err = r.cfg.Begin(r.step-1, turns[0].group); err != nil {
				return err
			}
		}
		r.waves = r.firstWave(turns[0].group)
	}
	if r.packer, err = r.cfg.Packer(0, state); err != nil {
		return err
	}
	if r.groups, err = r.openGroups(); err != nil {
		return err
	}
	defer r.groups.close()
	m := newMeter(r.cfg.Progress, "recomputing groups", int64(len(r.rec.turns)))
	defer m.end()
	for _, t := range r.rec.turns {
		g, err := r.groups.take(ctx, t)
		if err != nil {
			return err
		}
		if err := r.place(ctx, t, g); errors.Is(err, pipeline.ErrFatal) {
			r.made.Stopped = err
			break
		} else if err != nil {
			return err
		}
		m.add(1)
	}
	r.made.Refused, r.made.Lost = r.groups.left()
	r.count(Open, r.held+r.waves.open())
	if r.made.Stopped != nil {
		r.count(notReached, int64(len(r.rec.turns))-total(r.made.Recomputed.Groups))
	}
	r.compareSteps()
	return nil
}

func (r *replayer) count(by string, groups int64) {
	if groups > 0 {
		r.made.Recomputed.Groups[by] += groups
	}
}

// place gives the packer a group at its turn; g is nil where it is undecided.
func (r *replayer) place(ctx context.Context, t turn, g *schemas.SampleGroup) error {
	if g == nil {
		r.count(undecided, 1)
	} else {
		renumber(g, r.step-t.step)
	}
	switch {
	case r.waves != nil && r.step <= r.cfg.Run.MaxSteps:
		return r.waves.place(ctx, r, t.group, g)
	case g == nil:
		return nil
	}
	return r.feed(ctx, g)
}

// renumber moves the policy versions of a group that is packed some steps later than it was, or earlier, along with it:
// it stays as old as it was recorded.
func renumber(g *schemas.SampleGroup, steps int64) {
	if steps == 0 {
		return
	}
	move := func(version **int64) {
		if *version != nil {
			*version = new(**version + steps)
		}
	}
	for i := range g.Samples {
		move(&g.Samples[i].PolicyStart)
	}
	for i := range g.Rollouts {
		move(&g.Rollouts[i].PolicyStart)
	}
}

// feed gives the packer a group.
func (r *replayer) feed(ctx context.Context, g *schemas.SampleGroup) error {
	var out pipeline.Out
	spec, _ := pipeline.TopicOf(pipeline.TopicSamples)
	rec := pipeline.Record{Ref: pipeline.Ref{Topic: pipeline.TopicSamples, Offset: r.fed}, Key: spec.Key(g), Value: g}
	if err := r.packer.Process(rec, &out); err != nil {
		return fmt.Errorf("pack group %d: %w", g.GroupID, err)
	}
	r.fed++
	if !r.waves.standsIn(g.GroupID) {
		r.held++
	}
	for _, e := range out.Emitted {
		switch v := e.Value.(type) {
		case *schemas.MicroBatch:
			r.step = v.Step + 1
			if err := r.compare(v); err != nil {
				return err
			}
		case *schemas.GroupOutcome:
			if !r.waves.standsIn(v.GroupID) {
				r.held--
				r.made.Recomputed.group(outcomeOf(v))
			}
		}
	}
	r.waves.follow(out.Emitted, r.cfg.Run.BatchSize)
	if r.cfg.Write == nil {
		return nil
	}
	return r.cfg.Write(ctx, append([]pipeline.Emission{{Topic: pipeline.TopicSamples, Partition: pipeline.AutoPartition, Value: g}}, out.Emitted...))
}

// compare holds a micro-batch against the recorded one in its place.
func (r *replayer) compare(mb *schemas.MicroBatch) error {
	r.made.Recomputed.batch(mb, r.cfg.Run.SeqLen)
	at := place{mb.Step, mb.Rank, mb.Index}
	was, ok := r.rec.sums[at]
	sum, err := sumOf(mb)
	if err != nil {
		return err
	}
	switch {
	case ok && sum == was:
		r.made.Identical++
		return nil
	case ok:
		r.made.Different++
	}
	if r.made.First == "" && (ok || r.rec.steps[mb.Step]) {
		r.made.First = at.String()
	}
	return nil
}

// compareSteps looks for a recorded batch that was not made at all.
func (r *replayer) compareSteps() {
	if r.made.First == "" && r.made.Identical+r.made.Different < int64(len(r.rec.sums)) {
		r.made.First = fmt.Sprintf("step %d, which was not made", r.step)
	}
}

func sumOf(mb *schemas.MicroBatch) ([32]byte, error) {
	b, err := schemas.Encode(mb)
	if err != nil {
		return [32]byte{}, fmt.Errorf("encode a micro-batch of step %d: %w", mb.Step, err)
	}
	return sha256.Sum256(b), nil
}
