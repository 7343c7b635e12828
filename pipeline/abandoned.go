package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// heirPatience is how long offsets are waited for before those who have left the group are looked for once more.
	heirPatience = 2 * time.Second
	// abandonedDeadline bounds the look.
	abandonedDeadline = 3 * time.Second
	// memberPause is what each member adds to the pause between two looks of every other: the answer names all of them, and so
	// a group of any size looks no more than a hundred times a second.
	memberPause = 10 * time.Millisecond
)

// pauseAmong is how long a member of a group waits before it looks again. Half of it is chance: members that were all stirred up at once
// do not ask all at once.
func pauseAmong(members int) time.Duration {
	whole := heirPatience + time.Duration(members)*memberPause
	return whole/2 + rand.N(whole)
}

// inherit sees to what instances that were killed have left behind: open transactions, and partitions that nobody has. A look
// that found such partitions, or could not see who has what, is done again.
func (s *session) inherit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, abandonedDeadline)
	defer cancel()
	p := s.p
	s.again, s.pause = true, pauseAmong(0)
	cl, err := p.rt.Client()
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	// First the transactions: who has begun one by now is a member when the group is looked at, or is gone.
	open, listing := adm.ListTransactions(ctx, nil, []string{"Ongoing"})
	groups, err := adm.DescribeGroups(ctx, p.group())
	if err == nil {
		err = groups.Error()
	}
	if err != nil {
		return fmt.Errorf("look who is in group %s: %w", p.group(), err)
	}
	s.pause = pauseAmong(len(groups[p.group()].Members))
	s.claimOrphans(groups[p.group()])
	s.again = s.orphans || groups[p.group()].State != "Stable"
	if listing != nil {
		return fmt.Errorf("list the open transactions: %w", listing)
	}
	return s.endAbandoned(ctx, open, groups[p.group()])
}

// claimOrphans asks for a rebalance where partitions are nobody's. A rebalance has two joins: members give up in the first what
// others get in the second. One that was killed between them, and is back in time, gets what it had kept, and nobody is asked to
// join again: what it gave up would have to wait for the next rebalance. Between the joins of members that live it looks alike,
// so it takes two looks to tell.
func (s *session) claimOrphans(group kadm.DescribedGroup) {
	before := s.orphans
	s.orphans = group.State == "Stable" && s.unassigned(group) > 0
	if before && s.orphans {
		s.p.rt.Log.Warn("nobody in the group has some partitions: asking for a rebalance", "stage", s.p.cfg.Stage, "partitions", s.unassigned(group))
		s.cl.ForceRebalance()
	}
}

// unassigned is how many partitions of the inputs no member has.
func (s *session) unassigned(group kadm.DescribedGroup) int {
	p := s.p
	assigned := group.AssignedPartitions()
	n := 0
	for _, t := range p.cfg.Inputs {
		n += int(p.rt.Partitions(t)) - len(assigned[p.rt.TopicName(t)])
	}
	return n
}

// endAbandoned aborts the transactions of instances that are no longer in the group; it is called when partitions have
// come, and while their offsets do not. One that was killed and does not come back leaves its transaction open, and until
// that ends, nobody can read what was written behind it, nor the offsets of its partitions. Left to the brokers that takes
// the transaction's time-out, and ten seconds more. One that only sleeps is fenced by it, which it would
// be anyway. Where it fails, the time-out does it.
func (s *session) endAbandoned(ctx context.Context, open kadm.ListedTransactions, group kadm.DescribedGroup) error {
	p := s.p
	var members []string
	for _, m := range group.Members {
		if m.InstanceID != nil {
			members = append(members, *m.InstanceID)
		}
	}
	var failed []error
	for _, id := range slices.Sorted(slices.Values(open.TransactionalIDs())) {
		instance, ours := strings.CutPrefix(id, p.group()+".")
		if !ours || open[id].State != "Ongoing" || slices.Contains(members, instance) {
			continue
		}
		if err := p.rt.abort(ctx, id, p.cfg.TransactionTimeout); err != nil {
			failed = append(failed, err)
			continue
		}
		p.rt.Log.Warn("the transaction of an instance that has left the group is aborted", "stage", p.cfg.Stage, "of", instance)
	}
	return errors.Join(failed...)
}

// abort ends what is open under a transactional id, and fences who has it.
func (rt *Runtime) abort(ctx context.Context, id string, timeout time.Duration) error {
	cl, err := rt.Client(kgo.TransactionalID(id), kgo.TransactionTimeout(timeout))
	if err != nil {
		return err
	}
	defer cl.Close()
	_, _, err = cl.ProducerID(ctx)
	if errors.Is(err, kerr.InvalidTransactionTimeout) {
		return Fatal("the brokers refuse transactions of %v: raise their transaction.max.timeout.ms", timeout)
	}
	if err != nil {
		return fmt.Errorf("claim transactional id %s: %w", id, Denied(err, WriteTransactionalID(id)))
	}
	return nil
}
