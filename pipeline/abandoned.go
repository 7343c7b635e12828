package pipeline

import (
	"context"
	"errors"
	"fmt"
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
)

// endAbandoned aborts the transactions of instances that are no longer in the group; it is called when partitions have
// come, and while their offsets do not. One that was killed and does not come back leaves its transaction open, and until
// that ends, nobody can read what was written behind it, nor the offsets of its partitions. Left to the brokers that takes
// the transaction's time-out, and ten seconds more. One that only sleeps is fenced by it, which it would
// be anyway. Where it fails, the time-out does it.
func (s *session) endAbandoned(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, abandonedDeadline)
	defer cancel()
	p := s.p
	cl, err := p.rt.Client()
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	open, err := adm.ListTransactions(ctx, nil, []string{"Ongoing"})
	if err != nil {
		return fmt.Errorf("list the open transactions: %w", err)
	}
	groups, err := adm.DescribeGroups(ctx, p.group())
	if err == nil {
		err = groups.Error()
	}
	if err != nil {
		return fmt.Errorf("look who is in group %s: %w", p.group(), err)
	}
	var members []string
	for _, m := range groups[p.group()].Members {
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
