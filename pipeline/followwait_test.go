package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/deploy/kafka/kafkatest"
	"github.com/prl-project/prl/schemas"
)

// However long a broker keeps a fetch that finds nothing, one who follows a topic hears of a record when it is written or committed, and
// stops when he is told to. Here it keeps fetches longer than the test waits.
func TestFollowerNeedNotAsk(t *testing.T) {
	kafkatest.Each(t, func(t *testing.T, b kafkatest.Broker) {
		rt := runOn(t, b.Addrs, func(run *RunConfig) { run.Name = fmt.Sprintf("follow-%08x", rand.Uint32()) })
		rt.Options = []kgo.Opt{kgo.FetchMaxWait(10 * time.Minute)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		f, err := rt.Follow(TopicOutcomes)
		if err != nil {
			t.Fatal(err)
		}
		hears := make(chan int64)
		done := make(chan error, 1)
		go func() {
			defer close(hears)
			for ctx.Err() == nil {
				recs, err := f.Poll(ctx)
				if err != nil {
					done <- err
					return
				}
				for _, r := range recs {
					select {
					case hears <- r.Value.(*schemas.GroupOutcome).GroupID:
					case <-ctx.Done():
						done <- errors.New("more came than was committed")
						return
					}
				}
			}
			done <- nil
		}()
		cl := client(t, rt, kgo.TransactionalID(rt.TopicName("writer")))
		transaction := func(group int64, end kgo.TransactionEndTry) {
			t.Helper()
			if err := cl.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			r, err := rt.Encode(ctx, Emission{TopicOutcomes, AutoPartition, &schemas.GroupOutcome{Env: "toy", GroupID: group, Fate: schemas.FateStale}})
			if err == nil {
				err = cl.ProduceSync(ctx, r).FirstErr() // it lies there, and nobody may see it
			}
			if err == nil {
				err = cl.EndTransaction(ctx, end)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for group := range int64(3) {
			transaction(-group, kgo.TryAbort)
			transaction(group, kgo.TryCommit)
			select {
			case got := <-hears:
				if got != group {
					t.Errorf("group %d came, want %d", got, group)
				}
			case <-ctx.Done():
				t.Fatalf("group %d is committed, and who follows does not hear of it", group)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		closed := make(chan struct{})
		go func() { f.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(time.Minute):
			t.Error("it does not stop")
		}
	})
}

// TestCostFollow: a broker keeps the fetches of those who follow one partition for long, and no others.
func TestCostFollow(t *testing.T) {
	for name, c := range map[string]struct {
		topics []string
		want   time.Duration
	}{
		"one partition": {[]string{TopicPolicies}, followWait},
		"several":       {[]string{TopicPolicies, TopicEnvs}, fetchWait},
	} {
		t.Run(name, func(t *testing.T) {
			rt, cluster := testRuntime(t)
			kept := make(chan time.Duration, 1)
			cluster.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
				kept <- time.Duration(req.(*kmsg.FetchRequest).MaxWaitMillis) * time.Millisecond
				return nil, nil, false
			})
			f, err := rt.Follow(c.topics...)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			select {
			case got := <-kept:
				if got != c.want {
					t.Errorf("a fetch is kept for %v, want %v", got, c.want)
				}
			case <-time.After(time.Minute):
				t.Fatal("nothing is fetched")
			}
		})
	}
}
