package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// maxPoll is how many micro-batches one poll takes.
const maxPoll = 64

// batches reads the steps of a run, one after the other, from every partition, or from those of one process.
type batches struct {
	rt    *pipeline.Runtime
	as    string // the stage
	cl    *kgo.Client
	ranks []rank
	// refused are, for dlq, the records that no packer wrote.
	refused []*kgo.Record
}

// A rank is one partition of batches.
type rank struct {
	read    bool          // by this process
	fetched []*kgo.Record // not taken yet
	next    int64         // the offset behind the last one taken
	end     int64         // of what was committed, at the newest fetch
}

// openBatches reads rank r's partition from offsets[r] on, where wanted, for a stage.
func openBatches(rt *pipeline.Runtime, as string, offsets []int64, wanted func(r int) bool) (*batches, error) {
	if len(offsets) != rt.Run.Ranks {
		return nil, pipeline.Fatal("the run's policies hold offsets of %d ranks, run.ranks = %d: set it back, it is fixed for a run", len(offsets), rt.Run.Ranks)
	}
	b := &batches{rt: rt, as: as}
	start := map[int32]kgo.Offset{}
	for r, o := range offsets {
		b.ranks = append(b.ranks, rank{read: wanted(r), next: o})
		if wanted(r) {
			start[int32(r)] = kgo.NewOffset().At(o)
		}
	}
	cl, err := rt.Client(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{rt.TopicName(pipeline.TopicBatches): start}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return nil, err
	}
	b.cl = cl
	return b, nil
}

func (b *batches) close() {
	b.rt.Metrics.Lag(b.as, pipeline.TopicBatches, nil)
	b.cl.Close()
}

// offsets are those of the first records that no step has taken.
func (b *batches) offsets() []int64 {
	next := make([]int64, len(b.ranks))
	for r := range b.ranks {
		next[r] = b.ranks[r].next
	}
	return next
}

// step waits for all micro-batches of step s, which must be the next one, and gives them in the order of rank and index.
// What it cannot vouch for is Fatal: a step that is not trained whole would break the run's promises.
func (b *batches) step(ctx context.Context, s int64) ([]*schemas.MicroBatch, error) {
	var all []*schemas.MicroBatch
	for r := range b.ranks {
		if !b.ranks[r].read {
			continue
		}
		for i, count := 0, 1; i < count; i++ {
			ref, m, err := b.take(ctx, r)
			if err != nil {
				return nil, err
			}
			all = append(all, m)
			if err := b.check(all, s, r, i); err != nil {
				return nil, pipeline.Fatal("%v: %w", ref, err)
			}
			count = m.Count
		}
	}
	b.tellLag()
	return all, nil
}

// tellLag says how many micro-batches wait.
func (b *batches) tellLag() {
	lag := map[int32]int64{}
	for r, p := range b.ranks {
		if p.read {
			lag[int32(r)] = p.end - p.next
		}
	}
	b.rt.Metrics.Lag(b.as, pipeline.TopicBatches, lag)
}

// check holds the last of micro against what must come: micro-batch i of rank r in step s.
func (b *batches) check(micro []*schemas.MicroBatch, s int64, r, i int) error {
	first, m := micro[0], micro[len(micro)-1]
	switch {
	case m.Step != s || m.Rank != r || m.Index != i:
		return fmt.Errorf("step %d, rank %d, micro-batch %d; what must come is step %d, rank %d, micro-batch %d: batches is not what one packer wrote, and a step cannot be left out; restore the topic or start a new run",
			m.Step, m.Rank, m.Index, s, r, i)
	case m.Ranks != len(b.ranks) || m.Count != first.Count:
		return fmt.Errorf("step %d: %d ranks with %d micro-batches each, after %d ranks with %d: restore the topic or start a new run",
			s, m.Ranks, m.Count, len(b.ranks), first.Count)
	case !slices.Equal(m.LossTokens, first.LossTokens):
		return fmt.Errorf("step %d: loss tokens %v, after %v: the ranks would not divide by the same number; restore the topic or start a new run",
			s, m.LossTokens, first.LossTokens)
	}
	return checkStaleness(m, b.rt.Run.MaxOffPolicySteps)
}

// checkStaleness asserts I3 for every sample of a micro-batch.
func checkStaleness(m *schemas.MicroBatch, most int) error {
	for _, p := range m.Samples {
		if p.PolicyStart == nil {
			continue
		}
		if off := m.Step - 1 - *p.PolicyStart; off < 0 || off > int64(most) {
			return fmt.Errorf("step %d holds a sample of env %s, group %d, rollout %d, branch %d whose tokens begin with policy version %d: %d off-policy steps, allowed are 0 to run.max_off_policy_steps = %d; the packer must not have cut it, so start a new run (or set back what was changed in this one)",
				m.Step, p.Env, p.GroupID, p.RolloutIndex, p.Branch, *p.PolicyStart, off, most)
		}
	}
	return nil
}

// refuse gives what was refused since it was called last.
func (b *batches) refuse() []*kgo.Record {
	refused := b.refused
	b.refused = nil
	return refused
}

// take waits for the next micro-batch of a rank. What cannot be read is refused where its key shows that no packer wrote it.
func (b *batches) take(ctx context.Context, r int) (pipeline.Ref, *schemas.MicroBatch, error) {
	for p := &b.ranks[r]; ; {
		for len(p.fetched) == 0 {
			if err := b.poll(ctx); err != nil {
				return pipeline.Ref{}, nil, err
			}
		}
		raw := p.fetched[0]
		rec, err := b.rt.Decode(ctx, raw)
		if ctx.Err() != nil {
			return rec.Ref, nil, ctx.Err()
		}
		if errors.Is(err, pipeline.ErrTransient) {
			return rec.Ref, nil, fmt.Errorf("read %v: %w", rec.Ref, err)
		}
		p.fetched, p.next = p.fetched[1:], raw.Offset+1
		b.rt.Metrics.Records.WithLabelValues(b.as, pipeline.TopicBatches).Inc()
		if err == nil {
			return rec.Ref, rec.Value.(*schemas.MicroBatch), nil
		}
		if string(raw.Key) == strconv.Itoa(r) {
			return rec.Ref, nil, pipeline.Fatal("%v cannot be read, and a batch cannot be skipped: restore the topic and the blob store, or start a new run: %w", rec.Ref, err)
		}
		b.refused = append(b.refused, b.rt.Refuse(b.as, rec, raw, err))
	}
}

func (b *batches) poll(ctx context.Context) error {
	fetches := b.cl.PollRecords(ctx, maxPoll)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errs := fetches.Errors(); len(errs) > 0 {
		e := errs[0]
		if errors.Is(e.Err, kerr.OffsetOutOfRange) && b.as == Shadow {
			return pipeline.Fatal("%s/%d: micro-batches that this shadow trainer has not trained were deleted: clean-up waits for no shadow trainer. Begin another one under a new name, from a later version (--from-version)", e.Topic, e.Partition)
		}
		if errors.Is(e.Err, kerr.OffsetOutOfRange) {
			return pipeline.Fatal("%s/%d: micro-batches that are not trained yet were deleted or the topic was made again: restore it, or start a new run", e.Topic, e.Partition)
		}
		return fmt.Errorf("read %s/%d: %w", e.Topic, e.Partition, pipeline.Denied(e.Err, pipeline.ReadTopic(e.Topic)))
	}
	fetches.EachPartition(func(ft kgo.FetchTopicPartition) {
		r := &b.ranks[ft.Partition]
		r.fetched, r.end = append(r.fetched, ft.Records...), ft.LastStableOffset
	})
	return nil
}
