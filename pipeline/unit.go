package pipeline

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/schemas"
)

// A unit is the core of one input partition with all that the shell knows of it.
type unit struct {
	partition int32
	owned     bool // the partition is this instance's
	core      Core
	inputs    []*input      // in the order of ProcessorConfig.Inputs; the core's state is in the first's record
	out       Out           // of what was fed since the last transaction
	outputs   []*kgo.Record // the first of out.Emitted, encoded
	sent      int           // of outputs, ahead of the rest of the transaction
	poison    []*kgo.Record
	fed       bool
	committed time.Time
	counted   map[string]int64 // what the core's Counts were last
	waiting   string           // for what, as logged last
	told      time.Time
}

// An input is one topic's partition of a unit.
type input struct {
	topic    string
	set      *unfinished
	position int64 // where the shell last sought or polled to; unread before it did
	low      int64 // oldest unfinished offset, as it was committed last
	metadata string
	pending  string // metadata of a transaction whose end is not known
	end      int64  // of what was committed to the partition, at the newest fetch
	fed      int    // records since the last transaction
}

// unread is the position of an input that was not sought to yet.
const unread = -1

// commits are, by input topic, the metadata that the group has with a partition's offset: empty where nothing was ever
// committed. It points at the state record, which knows all else.
type commits map[string]string

const metadataPrefix = "prl1:"

// stateOffset reads the offset of a state record from a commit's metadata.
func stateOffset(metadata string) (int64, error) {
	digits, ok := strings.CutPrefix(metadata, metadataPrefix)
	at, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil {
		return 0, Fatal("the group's offsets carry %q, which prl did not write: another program commits to this group", metadata)
	}
	return at, nil
}

// restore builds the core of a partition from what the group committed: state record, then unfinished records. What
// the core emits meanwhile was emitted before and is thrown away.
func (p *Processor) restore(ctx context.Context, partition int32, c commits) (*unit, error) {
	start := time.Now()
	u := &unit{partition: partition, committed: start}
	var state []byte
	open := map[string][]int64{}
	for i, topic := range p.cfg.Inputs {
		in := &input{topic: topic, metadata: c[topic]}
		u.inputs = append(u.inputs, in)
		rec, err := p.stateRecord(ctx, in, partition)
		if err != nil {
			return nil, err
		}
		in.set = newUnfinished(0, nil)
		if rec != nil {
			in.low = rec.LowOffset
			list, err := UnfinishedOffsets(rec.LowOffset, rec.NextOffset, rec.Unfinished)
			if err != nil {
				return nil, Fatal("state record of %s/%d: %w", topic, partition, err)
			}
			in.set, open[topic] = newUnfinished(rec.NextOffset, list), list
			if i == 0 {
				state = rec.Core
			}
		}
		in.position = unread
	}
	core, err := p.cfg.New(partition, state)
	if err != nil {
		return nil, Fatal("build the core of %s partition %d from %d bytes of state: %w", p.cfg.Stage, partition, len(state), err)
	}
	u.core = core
	for _, in := range u.inputs {
		recs, err := p.rt.readOffsets(ctx, in.topic, partition, open[in.topic])
		if err != nil {
			return nil, err
		}
		for _, r := range recs {
			rec, err := p.rt.Decode(ctx, r)
			if errors.Is(err, ErrTransient) || err != nil && ctx.Err() != nil {
				return nil, err
			}
			if err != nil {
				return nil, Fatal("%v was decoded before and is not now: %w", rec.Ref, err)
			}
			var again Out
			if err := core.Process(rec, &again); err != nil {
				return nil, Fatal("%v was accepted before and is not now: %w", rec.Ref, err)
			}
			if len(again.Finished) > 0 {
				return nil, Fatal("%v was unfinished and is decided now: a setting of the run was changed (batch_size, batch_tokens, seq_len, max_steps, max_off_policy_steps, a filter, partial, min_group_size, max_attempts); set it back, it is fixed for a run", rec.Ref)
			}
		}
	}
	u.count(func(string, int64) {}) // what was fed again was counted when it came
	p.rt.Metrics.Restore.WithLabelValues(p.cfg.Stage).Observe(time.Since(start).Seconds())
	return u, nil
}

// stateRecord reads the state record a commit points at; nil for a partition that is new.
func (p *Processor) stateRecord(ctx context.Context, in *input, partition int32) (*schemas.StageState, error) {
	var at int64
	var err error
	if in.metadata != "" {
		at, err = stateOffset(in.metadata)
	} else {
		var found bool
		at, found, err = p.forgottenState(ctx, in.topic, partition)
		if err != nil || !found {
			return nil, err
		}
		in.metadata = metadataPrefix + strconv.FormatInt(at, 10)
	}
	if err != nil {
		return nil, err
	}
	recs, err := p.rt.readOffsets(ctx, TopicState, statePartition(p.cfg.Stage), []int64{at})
	if err != nil {
		return nil, err
	}
	value, err := p.rt.DecodeValue(ctx, recs[0].Value)
	if errors.Is(err, ErrTransient) || err != nil && ctx.Err() != nil {
		return nil, err
	}
	if err != nil {
		return nil, Fatal("state record at offset %d: %w", at, err)
	}
	state, ok := value.(*schemas.StageState)
	if !ok {
		return nil, Fatal("state record at offset %d: it is a %s", at, value.SchemaName())
	}
	if state.Stage != p.cfg.Stage || state.Topic != in.topic || state.Partition != int(partition) {
		return nil, Fatal("the commit of %s/%d points at the state of %s %s/%d", in.topic, partition, state.Stage, state.Topic, state.Partition)
	}
	return state, nil
}

// state makes the state records of a unit, one per input.
func (u *unit) state(p *Processor) ([]*schemas.StageState, error) {
	core, err := u.core.State()
	if err != nil {
		return nil, Fatal("state of %s partition %d: %w", p.cfg.Stage, u.partition, err)
	}
	concurrency := 0
	if p.cfg.Concurrency != nil {
		concurrency = p.cfg.Concurrency()
	}
	var recs []*schemas.StageState
	for i, in := range u.inputs {
		low, bits, err := in.set.encode()
		if err != nil {
			return nil, Fatal("unfinished set of %s/%d: %w", in.topic, u.partition, err)
		}
		rec := &schemas.StageState{
			Stage: p.cfg.Stage, Topic: in.topic, Partition: int(u.partition), Instance: p.rt.Instance,
			LowOffset: low, NextOffset: in.set.next, Unfinished: bits, Concurrency: concurrency,
		}
		if i == 0 {
			rec.Core = core
		}
		recs = append(recs, rec)
	}
	return recs, nil
}

// feed gives the core one record. What cannot be decoded or is refused goes to dlq.
func (u *unit) feed(ctx context.Context, p *Processor, r *kgo.Record) error {
	rec, err := p.rt.decodeTelling(ctx, r, p.mayWait)
	if errors.Is(err, ErrTransient) || err != nil && ctx.Err() != nil {
		return err // the record comes again
	}
	in := u.input(rec.Topic)
	if r.Offset < in.set.next {
		return Fatal("%v came after offset %d was fed", rec.Ref, in.set.next-1)
	}
	u.fed = true
	in.set.feed(r.Offset)
	in.fed++
	if err != nil {
		return u.undecodable(p, rec, r, err)
	}
	emitted, finished := len(u.out.Emitted), len(u.out.Finished)
	if err := u.core.Process(rec, &u.out); err != nil {
		if errorsIsFatal(err) {
			return err
		}
		u.out.Emitted, u.out.Finished = u.out.Emitted[:emitted], u.out.Finished[:finished]
		u.refuse(p, rec, r, err)
	}
	if err := u.recycle(ctx, p, emitted); err != nil {
		return err
	}
	return u.finish(finished)
}

// recycle gives a Recycler back what it emitted since index from. Spans of traces would look at it after the commit.
func (u *unit) recycle(ctx context.Context, p *Processor, from int) error {
	core, ok := u.core.(Recycler)
	if !ok || len(u.out.Emitted) == from || p.rt.Tracing != nil {
		return nil
	}
	if err := u.encode(ctx, p); err != nil {
		return err
	}
	for _, e := range u.out.Emitted[from:] {
		core.Recycle(e.Value)
	}
	return nil
}

// encode makes the records of what was emitted since the last call, and writes their blobs.
func (u *unit) encode(ctx context.Context, p *Processor) error {
	if len(u.outputs) == len(u.out.Emitted) {
		return nil
	}
	ctx, done := context.WithTimeout(ctx, prepareDeadline)
	defer done()
	for _, e := range u.out.Emitted[len(u.outputs):] {
		r, err := p.encode(ctx, e)
		if err != nil {
			return err
		}
		u.outputs = append(u.outputs, r)
	}
	return nil
}

func (u *unit) undecodable(p *Processor, rec Record, r *kgo.Record, reason error) error {
	finished := len(u.out.Finished)
	u.refuse(p, rec, r, reason)
	if core, ok := u.core.(Undecoder); ok {
		if err := core.Undecodable(rec, reason, &u.out); err != nil {
			return err
		}
	}
	return u.finish(finished)
}

// refuse sends a record to dlq, as it came, and finishes it.
func (u *unit) refuse(p *Processor, rec Record, r *kgo.Record, reason error) {
	u.poison = append(u.poison, p.rt.Refuse(p.cfg.Stage, rec, r, reason))
	u.out.Finish(rec.Ref)
}

// finish takes what the core has finished since index from out of the unfinished set.
func (u *unit) finish(from int) error {
	for _, ref := range u.out.Finished[from:] {
		if in := u.input(ref.Topic); in == nil || ref.Partition != u.partition || !in.set.finish(ref.Offset) {
			return Fatal("the core finished %v, which it was not fed or had finished", ref)
		}
	}
	return nil
}

func (u *unit) input(topic string) *input {
	for _, in := range u.inputs {
		if in.topic == topic {
			return in
		}
	}
	return nil
}

func (u *unit) async() bool { _, ok := u.core.(AsyncCore); return ok }

// tellWaiting logs what a core waits for: when that changes, and again now and then.
func (u *unit) tellWaiting(p *Processor, now time.Time) {
	core, ok := u.core.(Waiter)
	if !ok {
		return
	}
	waiting := core.Waiting()
	if waiting == u.waiting && (waiting == "" || now.Sub(u.told) < tellEvery) {
		return
	}
	u.waiting, u.told = waiting, now
	if waiting == "" {
		p.rt.Log.Info("stage goes on", "stage", p.cfg.Stage)
	} else {
		p.rt.Log.Info("stage waits", "stage", p.cfg.Stage, "for", waiting)
	}
}

// tellEvery is how often a stage says that it still waits.
const tellEvery = 30 * time.Second

// begins reports whether nothing was ever committed of the partition.
func (u *unit) begins() bool {
	return !slices.ContainsFunc(u.inputs, func(in *input) bool { return in.metadata != "" })
}

// changed reports whether there is something to commit.
func (u *unit) changed() bool { return u.fed || u.out.Changed() || len(u.poison) > 0 }

// count tells by how much the counts of a core have grown since the last call.
func (u *unit) count(tell func(why string, n int64)) {
	core, ok := u.core.(Counter)
	if !ok {
		return
	}
	now := core.Counts()
	for why, n := range now {
		tell(why, n-u.counted[why])
	}
	u.counted = now
}

// done forgets what a transaction has committed.
func (u *unit) done(now time.Time) {
	u.out, u.outputs, u.sent, u.poison, u.fed, u.committed = Out{}, nil, 0, nil, false, now
	for _, in := range u.inputs {
		in.metadata, in.pending, in.low, in.fed = in.pending, "", in.set.low(), 0
	}
}
