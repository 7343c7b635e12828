package pipeline

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/prl-project/prl/deploy/kafka"
	"github.com/prl-project/prl/deploy/kafka/kafkatest"
)

// outage is a run on three nodes of Apache Kafka, with a stage at work and somebody who follows what it writes.
type outage struct {
	rt      *Runtime
	cluster *kafka.Cluster
	log     *words
	ended   chan struct{} // closed when the stage has
	err     error         // of its end
	other   *toy          // another instance of it
	groups  int64
	produce func(first, last int64)
	mu      sync.Mutex
	seen    int
}

func startOutage(t *testing.T) *outage {
	t.Helper()
	cluster := kafkatest.Start(t, kafka.Config{Nodes: 3})
	rt := runOn(t, cluster.Addrs())
	rt.Health = &Health{}
	o := &outage{rt: rt, cluster: cluster, log: listen(rt)}
	write := producer(t, rt)
	o.produce = func(first, last int64) { t.Helper(); write(pairsOf(first, last)...) }
	p, err := NewProcessor(rt, toyConfig())
	if err != nil {
		t.Fatal(err)
	}
	stop, ended := launch(t, p)
	o.ended = make(chan struct{})
	go func() { o.err = <-ended; close(o.ended) }()
	o.other = startToy(t, rt, "b")
	f, err := rt.Follow(TopicSamples)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	followed := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			recs, err := f.Poll(ctx)
			if err != nil {
				followed <- err
				return
			}
			o.mu.Lock()
			o.seen += len(recs)
			o.mu.Unlock()
		}
		followed <- nil
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-followed; err != nil {
			t.Errorf("the follower ended: %v", err)
		}
		f.Close()
		stop()
		select {
		case <-o.ended:
			if o.err != nil {
				t.Error(o.err)
			}
		case <-time.After(20 * time.Second):
			t.Error("the stage does not stop")
		}
		if t.Failed() {
			t.Log(o.log.String())
		}
	})
	return o
}

// works writes ten groups and waits until all are decided, the follower, which has read all the time, has seen it, and
// the stage says that it works: the other instance alone would do.
func (o *outage) works(t *testing.T) {
	t.Helper()
	o.produce(o.groups, o.groups+9)
	o.groups += 10
	o.await(t, fmt.Sprintf("%d groups", o.groups), func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.seen >= int(o.groups)
	})
	o.await(t, "the stage to say that it works", func() bool {
		_, ready := o.rt.Health.snapshot()
		return ready
	})
}

// await is await while both instances live.
func (o *outage) await(t *testing.T, what string, there func() bool) {
	t.Helper()
	await(t, what, func() bool {
		select {
		case <-o.ended:
			t.Fatalf("waiting for %s: the stage has ended: %v", what, o.err)
		case <-o.other.done:
			t.Fatalf("waiting for %s: the other instance has ended: %s", what, o.other.last)
		default:
		}
		return there()
	})
}

func (o *outage) kill(t *testing.T, node int) {
	t.Helper()
	if err := o.cluster.Kill(node); err != nil {
		t.Fatal(err)
	}
}

func (o *outage) restart(t *testing.T, nodes ...int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() {
			if err := o.cluster.Restart(ctx, n); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// TestOutages kills nodes of a cluster under a stage and a follower: the coordinator of the stage's group, that of its
// transactions, then all of them. Each time both go on; while no node is there the stage says so.
func TestOutages(t *testing.T) {
	o := startOutage(t)
	o.works(t)
	adm := kadm.NewClient(client(t, o.rt))
	group, id := o.rt.TopicName("scorer"), o.rt.TopicName("scorer")+".one"
	down := -1
	for _, c := range []struct {
		name string
		find func() kadm.FindCoordinatorResponses
	}{
		{"group", func() kadm.FindCoordinatorResponses { return adm.FindGroupCoordinators(t.Context(), group) }},
		{"transaction", func() kadm.FindCoordinatorResponses { return adm.FindTxnCoordinators(t.Context(), id) }},
	} {
		if !t.Run(c.name+" coordinator moves", func(t *testing.T) {
			if down >= 0 {
				o.restart(t, down)
			}
			down = -1
			await(t, "a coordinator", func() bool {
				for _, found := range c.find() {
					if found.Err == nil {
						down = int(found.NodeID)
					}
				}
				return down >= 0
			})
			o.kill(t, down)
			o.works(t)
		}) {
			return
		}
	}
	if !t.Run("all brokers restart", func(t *testing.T) {
		before := o.log.count("stage starts over")
		for n := range 3 {
			if n != down {
				o.kill(t, n)
			}
		}
		o.await(t, "the stage to say that it does not work", func() bool {
			_, ready := o.rt.Health.snapshot()
			return !ready && o.log.count("stage starts over") > before
		})
		o.restart(t, 0, 1, 2)
		o.works(t)
	}) {
		return // the brokers may be gone
	}
	oncePerGroup(t, committed(t, o.rt, TopicSamples, int(o.groups)), int(o.groups))
	noMore(t, o.rt, TopicSamples, int(o.groups))
}
