package replay

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// A Selection is a part of what was recorded. Its zero value selects everything.
type Selection struct {
	// FromOffset and ToOffset (below which; 0 for no end) are offsets of the topic samples where groups are recomputed,
	// and else of each partition of the topic that is read.
	FromOffset, ToOffset int64
	// From and To (before which) are times of those records; zero for none.
	From, To time.Time
	// FromVersion and ToVersion select what the trainer saw between two policy versions: the groups that were decided
	// for the steps FromVersion+1 to ToVersion. Of traces they select those that the versions FromVersion to ToVersion
	// began (policy_start). ToVersion is below 0 for no end.
	FromVersion, ToVersion int64
}

// Everything selects all that was recorded.
func Everything() Selection { return Selection{ToVersion: -1} }

func (s Selection) record(offset int64, at time.Time) bool {
	return offset >= s.FromOffset && (s.ToOffset == 0 || offset < s.ToOffset) &&
		(s.From.IsZero() || !at.Before(s.From)) && (s.To.IsZero() || at.Before(s.To))
}

// A turn is a group's place in the recorded order.
type turn struct {
	group  int64
	offset int64 // in samples, of its first record
	time   time.Time
	step   int64 // for which it was decided
}

func (s Selection) turn(t turn) bool {
	return s.record(t.offset, t.time) && t.step > s.FromVersion && (s.ToVersion < 0 || t.step <= s.ToVersion)
}

// recorded is what a run has recorded of the groups that are selected.
type recorded struct {
	turns    []turn // in the order of samples; in ordered mode, where that order decides nothing, by id
	outcomes map[int64]outcome
	steps    map[int64]bool // whose packed groups are all selected
	figures  Figures
	sums     map[place][32]byte // SHA-256 of the batches of steps
}

// place is where a micro-batch is.
type place struct {
	step        int64
	rank, index int
}

func (p place) String() string {
	return fmt.Sprintf("step %d, rank %d, micro-batch %d", p.step, p.rank, p.index)
}

// readRecorded reads the recorded order and what became of the groups.
func (r *replayer) readRecorded(ctx context.Context) (*recorded, error) {
	rec := &recorded{figures: newFigures(), outcomes: map[int64]outcome{}, steps: map[int64]bool{}, sums: map[place][32]byte{}}
	err := r.each(ctx, pipeline.TopicOutcomes, func(rc Record) error {
		o, ok, err := decode[*schemas.GroupOutcome](ctx, rc)
		if ok && o.Eval == "" {
			if _, known := rec.outcomes[o.GroupID]; !known {
				rec.outcomes[o.GroupID] = outcomeOf(o)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	all, err := r.readTurns(ctx)
	if err != nil {
		return nil, err
	}
	if !r.cfg.Recorded.Ordered() {
		setSteps(all, rec.outcomes)
	}
	whole := map[int64]bool{}
	for _, t := range all {
		packedIn, selected := rec.outcomes[t.group].step, r.cfg.Select.turn(t)
		if selected {
			rec.turns = append(rec.turns, t)
		}
		if packedIn > 0 {
			was, known := whole[packedIn]
			whole[packedIn] = selected && (was || !known)
		}
	}
	maps.DeleteFunc(whole, func(_ int64, all bool) bool { return !all })
	rec.steps = whole
	if r.cfg.Recorded.Ordered() {
		slices.SortFunc(rec.turns, func(a, b turn) int { return cmp.Compare(a.group, b.group) })
	}
	for _, t := range rec.turns {
		o, ok := rec.outcomes[t.group]
		if !ok {
			o.by = Open
		}
		rec.figures.group(o)
	}
	return rec, nil
}

// readTurns gives the place of every group in samples.
func (r *replayer) readTurns(ctx context.Context) (turns []turn, err error) {
	seen := map[int64]bool{}
	err = r.each(ctx, pipeline.TopicSamples, func(rc Record) error {
		eval, id, ok := pipeline.GroupOfKey(rc.Key)
		if !ok || eval != "" || seen[id] {
			return nil
		}
		t := turn{group: id, offset: rc.Offset, time: rc.Time}
		if r.cfg.Recorded.Ordered() {
			g, ok, err := decode[*schemas.SampleGroup](ctx, rc)
			if !ok {
				return err
			}
			t.step = g.Step
		}
		seen[id] = true
		turns = append(turns, t)
		return nil
	})
	return turns, err
}

// setSteps says for each group in the order of samples for which step it was decided. A step was cut with the last of its
// packed groups, and what came after it was for the next.
func setSteps(turns []turn, outcomes map[int64]outcome) {
	cut := map[int64]int{}
	first := int64(0)
	for i, t := range turns {
		if s := outcomes[t.group].step; s > 0 {
			cut[s] = i
			if first == 0 || s < first {
				first = s
			}
		}
	}
	step := max(1, first)
	for i := range turns {
		turns[i].step = step
		for at, ok := cut[step]; ok && at <= i; at, ok = cut[step] {
			step++
		}
	}
}

// readBatches adds the batches of the steps that are selected as a whole.
func (r *replayer) readBatches(ctx context.Context, rec *recorded) error {
	return r.each(ctx, pipeline.TopicBatches, func(rc Record) error {
		mb, ok, err := decode[*schemas.MicroBatch](ctx, rc)
		if !ok || !rec.steps[mb.Step] {
			return err
		}
		at := place{mb.Step, mb.Rank, mb.Index}
		if _, again := rec.sums[at]; again {
			return nil
		}
		rec.figures.batch(mb, r.cfg.Recorded.SeqLen)
		rec.sums[at], err = sumOf(mb)
		return err
	})
}

func (r *replayer) each(ctx context.Context, topic string, visit func(Record) error) error {
	return each(ctx, r.src, topic, newMeter(r.cfg.Progress, "reading "+topic, offsets(r.src.Spans(topic))), visit)
}

// each visits every record of a topic, one partition after the other.
func each(ctx context.Context, src Source, topic string, m *meter, visit func(Record) error) error {
	spans := src.Spans(topic)
	for _, p := range slices.Sorted(maps.Keys(spans)) {
		last := spans[p].Start - 1
		for rc, err := range src.Read(ctx, topic, p) {
			if err == nil {
				err = visit(rc)
			}
			if err != nil {
				return err
			}
			m.add(rc.Offset - last)
			last = rc.Offset
		}
	}
	m.end()
	return nil
}

// offsets counts those of all partitions, whether each has a record or not.
func offsets(spans map[int32]pipeline.Span) (n int64) {
	for _, s := range spans {
		n += s.End - s.Start
	}
	return n
}
