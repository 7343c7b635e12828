package flowbench

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"golang.org/x/sync/errgroup"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/envserver"
	"github.com/prl-project/prl/stages/envserver/env"
)

// BenchmarkIdle says how many requests an environment server makes to which nobody gives anything to do: what ten thousand of them ask
// the brokers for, all the time.
func BenchmarkIdle(b *testing.B) {
	const counted = 6 * time.Second // it tells that it lives every five
	q := &requests{}
	w := newWorld(b, fake(b), usual, 64, q)
	served, err := envserver.New(w.rt.For("envserver"), w.app.Config.EnvServer, map[string]env.Environment{drillName: &drill{w.shape, nil}}, parrot{w.shape}, nil)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- served.Run(ctx) }()
	for end := time.Now().Add(deadline); !w.rt.Health.Ready("envserver." + drillName); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatal("the environment server is not ready")
		}
	}
	time.Sleep(time.Second) // what it asks at its start is over
	for b.Loop() {
		q.take()
		time.Sleep(counted) // that is what is counted
		took := q.take()
		b.Log(took.count)
		b.ReportMetric(float64(took.all())/counted.Seconds(), "requests/s")
	}
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

// BenchmarkRequests says what a small request takes of the CPU, of kfake and of the client that makes it together: a bound for what it
// takes of a broker, which does not depend on what else the machine does.
func BenchmarkRequests(b *testing.B) {
	const clients, counted = 8, 2 * time.Second
	q := &requests{}
	w := newWorld(b, fake(b), usual, 0, q)
	for b.Loop() {
		ctx, cancel := context.WithTimeout(b.Context(), deadline)
		defer cancel()
		g, ctx := errgroup.WithContext(ctx)
		var all []*kadm.Client
		for range clients {
			all = append(all, kadm.NewClient(w.client()))
		}
		q.take()
		end, took := time.Now().Add(counted), -cpuSeconds()
		for _, adm := range all {
			g.Go(func() error {
				for time.Now().Before(end) {
					if _, err := adm.ListEndOffsets(ctx, w.rt.TopicName(pipeline.TopicTraces)); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(1e6*(took+cpuSeconds())/float64(q.take().all()), "cpu-µs/request")
	}
}
