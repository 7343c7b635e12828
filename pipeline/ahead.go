package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// What a core emits is on its way to the brokers while the core works on: a transaction begins with the first output and not
// behind the last record, so that compressing, sending and the brokers' work go on beside the core's. State and offsets follow at
// the end, as ever. The brokers lose patience with an open transaction, so nothing waits in one for anything but them: before
// something waits for the blob store, what was sent is taken back, and goes with the rest.

// An opened transaction has begun.
type opened struct {
	*sender
	ctx   context.Context // ends before the broker loses patience, whose answer to that looks like another process of this name
	end   func()
	start time.Time
}

// begin opens a transaction.
func (s *session) begin() error {
	if err := s.cl.BeginTransaction(); err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.p.cfg.TransactionTimeout*3/4)
	s.tx = &opened{&sender{cl: s.cl}, ctx, cancel, time.Now()}
	return nil
}

// over forgets a transaction that has ended.
func (s *session) over() {
	s.tx.end()
	s.tx = nil
}

// full reports whether the open transaction is to take no more records: the most of its time is left for its end.
func (s *session) full() bool {
	return s.tx != nil && time.Since(s.tx.start) > s.p.cfg.TransactionTimeout/8
}

// mayAhead reports whether outputs may be sent ahead of the rest of their transaction: not where a core emits at any time, or where
// a transaction is not due at the end of each turn, nor where a registry may have to be asked.
func (s *session) mayAhead() bool {
	p := s.p
	if p.cfg.CommitEvery > 0 || p.cfg.TouchEvery > 0 || p.rt.Schemas != nil {
		return false
	}
	for _, u := range p.owned() {
		if _, clock := u.core.(Ticker); clock {
			return false
		}
	}
	return true
}

// ahead sends what a unit has emitted.
func (s *session) ahead(ctx context.Context, u *unit) error {
	if err := u.encode(ctx, s.p); err != nil || s.waited {
		return err
	}
	for ; u.sent < len(u.outputs); u.sent++ {
		if s.tx == nil {
			if err := s.begin(); err != nil {
				return err
			}
		}
		if u.sent == 0 && u.begins() {
			if err := s.introduce(u); err != nil {
				return err
			}
		}
		s.tx.send(s.tx.ctx, u.outputs[u.sent])
	}
	return nil
}

// introduce writes a state of a partition that has none, and waits until it is acknowledged (produce says why).
func (s *session) introduce(u *unit) error {
	states, err := s.states(s.tx.ctx, u)
	if err != nil {
		return err
	}
	return ProduceAll(s.tx.ctx, s.cl, states)
}

// mayWait says that something is about to wait for the blob store. It will again: nothing is sent ahead any more.
func (s *session) mayWait() error {
	s.waited = true
	return s.takeBack()
}

// takeBack aborts the open transaction, in which only outputs were sent. All of them are acknowledged first: before the client has
// stored their partitions' metadata an abort could do nothing (sender.wait), and the next transaction would join this one.
func (s *session) takeBack() error {
	if s.tx == nil {
		return nil
	}
	defer s.over()
	for _, u := range s.p.units {
		u.sent = 0
	}
	s.p.rt.Metrics.Transactions.WithLabelValues(s.p.cfg.Stage, "aborted").Inc()
	return errors.Join(s.tx.wait(s.tx.ctx), s.abort(s.tx.ctx))
}

// giveUp ends the open transaction of a session that fails.
func (s *session) giveUp(err error) error { return s.explained(errors.Join(err, s.takeBack())) }

// A sender produces records until all of them are acknowledged.
type sender struct {
	cl      *kgo.Client
	records []*kgo.Record
	mu      sync.Mutex
	failed  error
}

// send begins to produce a record.
func (s *sender) send(ctx context.Context, r *kgo.Record) {
	s.records = append(s.records, r)
	r.Context = ctx // not that of a transaction that has ended, which the client would keep
	s.cl.Produce(ctx, r, func(_ *kgo.Record, err error) {
		if err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.failed = Denied(err, WriteTopic(r.Topic))
		}
	})
}

// wait waits until all are acknowledged, and until the client has stored the metadata of their partitions. Without the latter a
// commit can be an abort that returns no error: EndTransaction (kgo 1.22.2) looks for what was produced in the metadata it holds,
// and that of a topic it produces to for the first time is stored after the topic's records are let go.
func (s *sender) wait(ctx context.Context) error {
	if err := s.cl.Flush(ctx); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return fmt.Errorf("produce: %w", s.failed)
	}
	for _, r := range s.records {
		for {
			leader, _, err := s.cl.PartitionLeader(r.Topic, r.Partition)
			if err != nil {
				return fmt.Errorf("metadata of %s/%d: %w", r.Topic, r.Partition, err)
			}
			if leader >= 0 {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("metadata of %s/%d: %w", r.Topic, r.Partition, ctx.Err())
			case <-time.After(time.Millisecond):
			}
		}
	}
	return nil
}

// ProduceAll produces records and waits for them as a sender does.
func ProduceAll(ctx context.Context, cl *kgo.Client, records []*kgo.Record) error {
	s := &sender{cl: cl}
	for _, r := range records {
		s.send(ctx, r)
	}
	return s.wait(ctx)
}
