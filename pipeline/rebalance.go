package pipeline

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fetched builds the cores of partitions whose committed offsets have come. A core that exists is kept: kgo fetches the
// offsets of the same partitions again after a cancelled request.
func (s *session) fetched(ctx context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	p := s.p
	all := map[int32]commits{}
	add := func(topic string, partition int32, offset int64, metadata *string) {
		if all[partition] == nil {
			all[partition] = commits{}
		}
		all[partition][p.rt.BaseName(topic)] = ""
		if metadata != nil && offset >= 0 {
			all[partition][p.rt.BaseName(topic)] = *metadata
		}
	}
	names := map[[16]byte]string{}
	for t, id := range s.topicIDs {
		names[id] = t
	}
	for _, g := range resp.Groups {
		for _, t := range g.Topics {
			name := t.Topic
			if name == "" {
				name = names[t.TopicID]
			}
			for _, part := range t.Partitions {
				if part.ErrorCode == 0 {
					add(name, part.Partition, part.Offset, part.Metadata)
				}
			}
		}
	}
	for _, t := range resp.Topics {
		for _, part := range t.Partitions {
			if part.ErrorCode == 0 {
				add(t.Topic, part.Partition, part.Offset, part.Metadata)
			}
		}
	}
	for partition, c := range all {
		if len(c) < len(p.cfg.Inputs) {
			continue // kgo asks again for those that are missing
		}
		err := s.own(ctx, partition, c)
		if ctx.Err() != nil {
			return ctx.Err() // kgo fetches again
		}
		if err != nil {
			p.mu.Lock()
			s.broken = err
			p.mu.Unlock()
			return err
		}
	}
	return nil
}

// own makes the unit of a partition, or keeps the one there is where the group's commits are its own.
func (s *session) own(ctx context.Context, partition int32, c commits) error {
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.closed {
		return nil
	}
	if u := p.units[partition]; u != nil {
		if u.owned {
			delete(s.awaited, partition)
			return nil // nobody else has committed: it knows more than any fetch
		}
		if u.is(c) {
			return s.adopt(u)
		}
		if core, ok := u.core.(AsyncCore); ok {
			core.Revoking()
		}
		delete(p.units, partition)
	}
	u, err := p.restore(ctx, partition, c)
	if err != nil {
		return fmt.Errorf("restore %s partition %d: %w", p.cfg.Stage, partition, err)
	}
	p.units[partition] = u
	return s.adopt(u)
}

// adopt makes a unit this instance's and tells it what the tables hold. The patience with the others begins anew: it is
// for offsets that do not come, not for the time that the building of many cores takes.
func (s *session) adopt(u *unit) error {
	u.owned = true
	delete(s.awaited, u.partition)
	for n := range s.awaited {
		s.awaited[n] = time.Now()
	}
	if s.p.table == nil {
		return nil
	}
	return tell(u.core, s.p.table.records)
}

// is reports whether a unit is what the commits describe: its last transaction, or one whose end it did not learn.
func (u *unit) is(c commits) bool {
	for _, in := range u.inputs {
		switch metadata := c[in.topic]; {
		case metadata == in.metadata:
		case in.pending != "" && metadata == in.pending:
			in.metadata = in.pending
		default:
			return false
		}
		in.pending, in.position = "", unread
	}
	return true
}

// positions starts every partition where its core goes on.
func (s *session) positions(_ context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for topic, parts := range offsets {
		for partition := range parts {
			u := p.units[partition]
			if u == nil {
				delete(parts, partition) // its offsets could not be fetched; kgo asks again
				continue
			}
			in := u.input(p.rt.BaseName(topic))
			in.position = in.set.next
			parts[partition] = kgo.NewOffset().At(in.set.next)
		}
	}
	return offsets, nil
}

// assigned hears which partitions have come with a join. Units that were kept for a return of their partitions, and are
// neither among them nor among those that came before and whose offsets are still to come, are another's now: what they
// have not begun is not theirs to begin.
func (s *session) assigned(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.closed {
		return
	}
	if !s.joined {
		s.joined, s.looked = true, time.Time{} // a predecessor may have given up what nobody has got
	}
	for _, list := range parts {
		for _, n := range list {
			s.looked = time.Time{} // who had it may have left something open
			s.awaited[n] = time.Now()
		}
	}
	for n, u := range p.units {
		if _, mine := s.awaited[n]; u.owned || mine {
			continue
		}
		if core, ok := u.core.(AsyncCore); ok {
			core.Revoking()
		}
		delete(p.units, n)
	}
}

// revoked gives partitions away. No transaction is open: rebalances are held while one is.
func (s *session) revoked(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.closed {
		return
	}
	gone := map[int32]*unit{} // a partition of several inputs is named once for each
	for _, list := range parts {
		for _, n := range list {
			if u := p.units[n]; u != nil && u.owned {
				gone[n] = u
			}
		}
	}
	if err := s.handOver(slices.Collect(maps.Values(gone))); err != nil {
		s.broken = err
	}
	for _, list := range parts {
		for _, n := range list {
			delete(s.awaited, n)
		}
	}
	for n := range gone {
		delete(p.units, n)
	}
	if len(gone) > 0 {
		Crash(p.cfg.Group + ".revoked")
	}
}

// lost drops partitions that may be another's already. Until it has joined again, the stage does no work.
func (s *session) lost(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	s.joined = false
	for _, list := range parts {
		for _, n := range list {
			delete(s.awaited, n)
			if u := p.units[n]; u != nil {
				if u.owned = false; !u.async() {
					delete(p.units, n)
				}
			}
		}
	}
}
