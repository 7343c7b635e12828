package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/schemas"
)

// prepareDeadline bounds the writing of the blobs of what a core emitted, which ends before a transaction begins.
const prepareDeadline = 5 * time.Minute

// rebalanceGrace is how long a commit is tried again while the group rebalances.
const rebalanceGrace = 2 * time.Second

// commit writes what the units emitted, a state record for each of their inputs, and the offsets of every owned
// partition, in one transaction: in the one that is open, or else in one that begins when records and blobs are prepared. After an
// error the session ends.
func (s *session) commit(ctx context.Context, units []*unit) error {
	prepared, done := context.WithTimeout(ctx, prepareDeadline)
	defer done()
	t, err := s.prepare(prepared, units)
	if err != nil {
		return s.giveUp(err)
	}
	if s.tx == nil {
		if err := s.begin(); err != nil {
			return err
		}
	}
	defer s.over()
	ctx, start := s.tx.ctx, s.tx.start
	err = s.produce(t)
	Crash(s.p.cfg.Stage + ".produced")
	if err == nil {
		err = s.commitOffsets(ctx)
	}
	m := s.p.rt.Metrics
	if err != nil {
		m.Transactions.WithLabelValues(s.p.cfg.Stage, "aborted").Inc()
		return errors.Join(fmt.Errorf("transaction: %w", s.explained(err)), s.abort(ctx))
	}
	Crash(s.p.cfg.Stage + ".before-commit")
	if err := s.cl.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return fmt.Errorf("commit transaction (whether it was is not known): %w", Fenced(err))
	}
	Crash(s.p.cfg.Stage + ".after-commit")
	m.Transactions.WithLabelValues(s.p.cfg.Stage, "committed").Inc()
	m.Commit.WithLabelValues(s.p.cfg.Stage).Observe(time.Since(start).Seconds())
	for _, u := range t.units {
		s.p.rt.TraceCommitted(s.p.cfg.Stage, u.out.Emitted, start, time.Now())
	}
	t.settle(s.p, time.Now())
	return nil
}

// explained says of an error of a transaction what it means for this process.
func (s *session) explained(err error) error {
	return Denied(Fenced(err), ReadGroup(s.p.group()), WriteTransactionalID(s.p.transactionalID()))
}

func (s *session) abort(ctx context.Context) error {
	if err := s.cl.AbortBufferedRecords(ctx); err != nil {
		return fmt.Errorf("abort: %w", err)
	}
	if err := s.cl.EndTransaction(ctx, kgo.TryAbort); err != nil {
		return fmt.Errorf("abort: %w", Fenced(err))
	}
	return nil
}

// A transaction is the records of one transaction, and who they are of.
type transaction struct {
	units   []*unit
	outputs [][]*kgo.Record // by unit, aligned with Out.Emitted
	states  [][]*kgo.Record // by unit, aligned with its inputs
}

func (s *session) prepare(ctx context.Context, units []*unit) (*transaction, error) {
	t := &transaction{units: units}
	for _, u := range units {
		if err := u.encode(ctx, s.p); err != nil {
			return nil, err
		}
		states, err := s.states(ctx, u)
		if err != nil {
			return nil, err
		}
		t.outputs, t.states = append(t.outputs, u.outputs), append(t.states, states)
	}
	return t, nil
}

// states are the state records of a unit.
func (s *session) states(ctx context.Context, u *unit) (states []*kgo.Record, err error) {
	recs, err := u.state(s.p)
	if err != nil {
		return nil, err
	}
	for _, rec := range recs {
		r, err := s.p.rt.Encode(ctx, Emission{TopicState, AutoPartition, schemas.Record(rec)})
		if errors.Is(err, errTooLarge) {
			return nil, Fatal("state of %s/%d: %w", rec.Topic, rec.Partition, err)
		}
		if err != nil {
			return nil, err
		}
		states = append(states, r)
	}
	return states, nil
}

// encode makes the record of an emission. One that fits no topic would fail again however often it is tried, so a few
// words take its place, under its key: readers cannot decode them, send them to dlq, and end what the key names.
func (p *Processor) encode(ctx context.Context, e Emission) (*kgo.Record, error) {
	r, err := p.rt.encodeTelling(ctx, e, p.mayWait)
	if !errors.Is(err, errTooLarge) {
		return r, err
	}
	p.rt.Log.Error("a record is replaced by its error", "stage", p.cfg.Stage, "topic", e.Topic, "error", err)
	topic, _ := TopicOf(e.Topic)
	return p.rt.address(e, topic, []byte(err.Error())), nil
}

// produce sends the records that were not sent ahead and waits until all are acknowledged; then the state records' offsets are
// known. The first state of a partition is acknowledged before any of its outputs is sent: outputs without any state of the stage,
// committed or not, are a sign that it was deleted.
func (s *session) produce(t *transaction) error {
	var first, others []*kgo.Record
	for i, u := range t.units {
		if u.begins() {
			first = append(first, t.states[i]...)
		} else {
			others = append(others, t.states[i]...)
		}
		others = slices.Concat(others, t.outputs[i][u.sent:], u.poison)
	}
	if err := ProduceAll(s.tx.ctx, s.cl, first); err != nil {
		return err
	}
	for _, r := range others {
		s.tx.send(s.tx.ctx, r)
	}
	if err := s.tx.wait(s.tx.ctx); err != nil {
		return err
	}
	for i, u := range t.units {
		for j, in := range u.inputs {
			in.pending = metadataPrefix + strconv.FormatInt(t.states[i][j].Offset, 10)
		}
	}
	return nil
}

// settle tells the cores that the transaction is durable.
func (t *transaction) settle(p *Processor, now time.Time) {
	for i, u := range t.units {
		if core, ok := u.core.(ProduceObserver); ok {
			refs := make([]Ref, len(t.outputs[i]))
			for j, r := range t.outputs[i] {
				refs[j] = Ref{u.out.Emitted[j].Topic, r.Partition, r.Offset}
			}
			core.Produced(refs)
		}
		for _, e := range u.out.Emitted {
			p.rt.Metrics.Emitted.WithLabelValues(p.cfg.Stage, e.Topic).Inc()
			if p.cfg.Meter != nil {
				p.cfg.Meter.Committed(e)
			}
		}
		for _, in := range u.inputs {
			p.rt.Metrics.Records.WithLabelValues(p.cfg.Stage, in.topic).Add(float64(in.fed))
		}
		p.rt.Metrics.Refused(p.cfg.Stage, u.poison)
		u.count(func(why string, n int64) {
			p.rt.Metrics.PassedOver.WithLabelValues(p.cfg.Stage, why).Add(float64(n))
		})
		u.done(now)
		if core, ok := u.core.(AsyncCore); ok {
			core.Committed()
		}
	}
}

// commitOffsets adds the offsets of every owned partition to the transaction: the new ones of its units, and those of
// partitions that were not touched as they were committed last. Around a rebalance, and
// while the brokers still end the transaction before, it asks again for a while.
func (s *session) commitOffsets(ctx context.Context) error {
	deadline := time.Now().Add(rebalanceGrace)
	for {
		err := s.txnOffsetCommit(ctx)
		retry := errors.Is(err, kerr.IllegalGeneration) || errors.Is(err, kerr.RebalanceInProgress) ||
			errors.Is(err, kerr.CoordinatorLoadInProgress) || errors.Is(err, kerr.ConcurrentTransactions)
		if !retry || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *session) txnOffsetCommit(ctx context.Context) error {
	id, epoch, err := s.cl.ProducerID(ctx) // every time: the epoch goes up with each transaction (KIP-890)
	if err != nil {
		return err
	}
	if s.addOffsets {
		if err := s.addOffsetsToTxn(ctx, id, epoch); err != nil {
			return err
		}
	}
	member, generation := s.cl.GroupMetadata()
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID = s.p.transactionalID()
	req.Group = s.p.group()
	req.ProducerID, req.ProducerEpoch = id, epoch
	req.Generation, req.MemberID = generation, member
	req.InstanceID = kmsg.StringPtr(s.p.rt.Instance)
	for _, topic := range s.p.cfg.Inputs {
		rt := kmsg.NewTxnOffsetCommitRequestTopic()
		rt.Topic, rt.TopicID = s.p.rt.TopicName(topic), s.topicIDs[topic]
		for _, u := range s.p.owned() {
			in := u.input(topic)
			low, metadata := in.low, in.metadata
			if in.pending != "" {
				low, metadata = in.set.low(), in.pending
			}
			if metadata == "" {
				continue // never touched
			}
			rp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
			rp.Partition, rp.Offset, rp.Metadata = u.partition, low, &metadata
			rt.Partitions = append(rt.Partitions, rp)
		}
		if len(rt.Partitions) > 0 {
			req.Topics = append(req.Topics, rt)
		}
	}
	resp, err := req.RequestWith(ctx, s.cl)
	if err != nil {
		return fmt.Errorf("commit offsets: %w", err)
	}
	for _, topic := range resp.Topics {
		for _, part := range topic.Partitions {
			if err := kerr.ErrorForCode(part.ErrorCode); err != nil {
				return fmt.Errorf("commit offset of partition %d: %w", part.Partition, Denied(err, ReadTopic(topic.Topic)))
			}
		}
	}
	return nil
}

// addOffsetsToTxn makes the group's offsets part of the transaction, which brokers before KIP-890 must be told.
func (s *session) addOffsetsToTxn(ctx context.Context, id int64, epoch int16) error {
	req := kmsg.NewPtrAddOffsetsToTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = s.p.transactionalID(), id, epoch, s.p.group()
	for {
		resp, err := req.RequestWith(ctx, s.cl)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, kerr.ConcurrentTransactions) {
			return fmt.Errorf("add offsets to the transaction: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Fenced makes an error that says another process has taken this one's name an ErrFenced; others it leaves alone.
func Fenced(err error) error {
	if errors.Is(err, ErrFenced) {
		return err
	}
	for _, e := range []error{kerr.ProducerFenced, kerr.FencedInstanceID, kerr.InvalidProducerEpoch} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: another process runs under this instance name, or this one slept past its transaction time-out (--instance chooses the name): %w", ErrFenced, err)
		}
	}
	return err
}

func errorsIsFatal(err error) bool { return errors.Is(err, ErrFatal) || errors.Is(err, ErrFenced) }
