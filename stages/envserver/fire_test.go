package envserver

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
)

// A field is a broker and servers of one environment in simulated time: minutes of it pass in seconds.
type field struct {
	*testing.T
	brokers []string
	options []kgo.Opt
	dir     string
	pace    pace
	wg      sync.WaitGroup
}

// onField runs f within a synctest bubble, in a run whose policy version 3 is published.
func onField(t *testing.T, often pace, f func(*field)) {
	t.Helper()
	// One processor: two may run timers of a bubble at the same instant, which brings down the race detector (golang/go#78156).
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		var network kfake.VirtualNetwork
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(9092), kfake.ListenFn(network.Listen))
		if err != nil {
			t.Fatal(err)
		}
		defer cluster.Close()
		fd := &field{T: t, brokers: cluster.ListenAddrs(), dir: t.TempDir(), pace: often,
			options: []kgo.Opt{kgo.Dialer(network.DialContext), kgo.FetchMaxWait(max(often.tick, 500*time.Millisecond))}}
		rt := fd.runtime("test", nil)
		if err := rt.SetUp(t.Context(), []string{"game"}); err != nil {
			t.Fatal(err)
		}
		publishPolicy(t, rt)
		f(fd)
		fd.wg.Wait()
	})
}

func (f *field) runtime(instance string, change func(*pipeline.RunConfig)) *pipeline.Runtime {
	f.Helper()
	rt, err := runtimeAt(f.brokers, f.dir, slog.New(slog.NewTextHandler(f.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		f.Fatal(err)
	}
	rt.Instance, rt.Options = instance, f.options
	rt.Run.TaskPartitions = 16
	if change != nil {
		change(&rt.Run)
	}
	return rt
}

// A fighter is one server of the field.
type fighter struct {
	server *Server
	stop   func() // in order; returns when it has stopped
}

// serve starts a server whose model takes so long for an answer.
func (f *field) serve(instance string, leave bool, slots int, takes time.Duration) *fighter {
	f.Helper()
	return f.serveTimed(instance, leave, slots, func(inference.Request) time.Duration { return takes })
}

// serveTimed starts a server whose model is asked how long it takes for an answer.
func (f *field) serveTimed(instance string, leave bool, slots int, takes func(inference.Request) time.Duration) *fighter {
	f.Helper()
	rt := f.runtime(instance, nil)
	rt.Leave, rt.Registry = leave, prometheus.NewRegistry()
	tok := tokenizer(f)
	m := &model{answer: func(ctx context.Context, _ int, r inference.Request) (inference.Completion, error) {
		select {
		case <-ctx.Done():
			return inference.Completion{}, ctx.Err()
		case <-time.After(takes(r)):
			return spoken(tok, "hi", r), nil
		}
	}}
	cfg := DefaultConfig()
	cfg.Concurrency = slots
	s, err := newServer(rt, cfg, map[string]env.Environment{"game": &game{}}, m, nil, f.pace)
	if err != nil {
		f.Fatal(err)
	}
	return &fighter{s, f.run(s.Run)}
}

// run runs a part of the pipeline until the returned function is called.
func (f *field) run(part func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan struct{})
	f.wg.Go(func() {
		defer close(done)
		if err := part(ctx); err != nil {
			f.Error(err)
		}
	})
	return func() {
		cancel()
		<-done
	}
}

// reruns reads from the server's metrics how many rollouts were begun again, by why.
func (f *field) reruns(s *fighter) map[string]int {
	f.Helper()
	families, err := s.server.rt.Registry.(*prometheus.Registry).Gather()
	if err != nil {
		f.Fatal(err)
	}
	counts := map[string]int{}
	for _, family := range families {
		if family.GetName() != "prl_envserver_reruns_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetName() == "why" {
					counts[label.GetValue()] = int(m.GetCounter().GetValue())
				}
			}
		}
	}
	return counts
}

// emit starts the emitter, with groups of eight.
func (f *field) emit() (stop func()) {
	f.Helper()
	rt := f.runtime("emitter", nil)
	envs := map[string]emitter.EnvConfig{"game": emitter.DefaultEnvConfig()}
	run := rt.Run
	run.BatchSize, run.MaxOffPolicySteps = 128, 9
	core, err := emitter.New(run, emitter.DefaultConfig(), envs)
	if err != nil {
		f.Fatal(err)
	}
	p, err := pipeline.NewProcessor(rt, pipeline.ProcessorConfig{
		Stage: "emitter", Inputs: []string{pipeline.TopicOutcomes, pipeline.TopicRequests},
		Tables: []string{pipeline.TopicPolicies, pipeline.TopicEnvs, pipeline.TopicState}, New: core,
	})
	if err != nil {
		f.Fatal(err)
	}
	return f.run(p.Run)
}

// A referee stands for all stages behind the servers: it decides every group all of whose rollouts have come, and counts.
type referee struct {
	mu      sync.Mutex
	traces  map[rolloutID]int
	missing map[int64]int
	first   int // traces of rollouts that had none
	twice   int // all others
	decided int
}

// A rolloutID names one attempt at one rollout.
type rolloutID struct {
	group          int64
	index, attempt int
}

func (f *field) referee() (*referee, func()) {
	f.Helper()
	rt := f.runtime("referee", nil)
	r := &referee{traces: map[rolloutID]int{}, missing: map[int64]int{}}
	follower, err := rt.Follow(pipeline.TopicTraces)
	if err != nil {
		f.Fatal(err)
	}
	cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		f.Fatal(err)
	}
	return r, f.run(func(ctx context.Context) error {
		defer cl.Close()
		defer follower.Close()
		for ctx.Err() == nil {
			recs, err := follower.Poll(ctx)
			if err != nil {
				return err
			}
			for _, rec := range recs {
				o := r.see(rec.Value.(*schemas.Trace))
				if o == nil {
					continue
				}
				out, err := rt.Encode(ctx, pipeline.Emission{Topic: pipeline.TopicOutcomes, Partition: pipeline.AutoPartition, Value: o})
				if err != nil {
					return err
				}
				if err := cl.ProduceSync(ctx, out).FirstErr(); err != nil && ctx.Err() == nil {
					return err
				}
			}
		}
		return nil
	})
}

// see takes a trace and gives the outcome of its group where it is the last.
func (r *referee) see(t *schemas.Trace) *schemas.GroupOutcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := rolloutID{t.GroupID, t.RolloutIndex, t.Attempt}
	if r.traces[id]++; r.traces[id] > 1 {
		r.twice++
		return nil
	}
	r.first++
	if _, known := r.missing[t.GroupID]; !known {
		r.missing[t.GroupID] = t.GroupSize
	}
	if r.missing[t.GroupID]--; r.missing[t.GroupID] > 0 {
		return nil
	}
	r.decided++
	return &schemas.GroupOutcome{Env: t.Env, GroupID: t.GroupID, Fate: schemas.FateFiltered}
}

func (r *referee) counts() (first, twice, decided int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first, r.twice, r.decided
}

// TestSlowServerStarvesNobody runs the emitter and four servers of eight slots each, one of them ten times slower. What the
// slow one took before the others had joined keeps whole groups, and so permits, back for up to a minute (the less it took,
// the shorter); the share is of the time after.
func TestSlowServerStarvesNobody(t *testing.T) {
	onField(t, usual, func(f *field) {
		stopEmitter := f.emit()
		referee, stopReferee := f.referee()
		var servers []*fighter
		capacity := 0.0 // rollouts a second
		for i := range 4 {
			takes := time.Second
			if i == 3 {
				takes *= 10
			}
			servers = append(servers, f.serve(fmt.Sprint("server-", i), false, 8, takes))
			capacity += 8 / takes.Seconds()
		}
		time.Sleep(2 * time.Minute)
		before, _, _ := referee.counts()
		start := time.Now()
		time.Sleep(time.Minute)
		after, twice, _ := referee.counts()
		share := float64(after-before) / (capacity * time.Since(start).Seconds())
		f.Logf("%.2f of capacity; %d of %d rollouts came twice", share, twice, after)
		if share < 0.8 {
			f.Errorf("%.2f of capacity", share)
		}
		stopEmitter()
		for _, s := range servers {
			s.stop()
		}
		stopReferee()
	})
}

// TestSixHoursSurviveRebalances plays rollouts of six hours on a server that stays, while others come and go: each is run
// to its end there, is played to its end once, and its task is finished.
func TestSixHoursSurviveRebalances(t *testing.T) {
	const takes, n = 6 * time.Hour, 32
	onField(t, pace{commit: time.Second, tick: 10 * time.Second, heartbeat: 5 * time.Minute}, func(f *field) {
		referee, stopReferee := f.referee()
		stays := f.serve("stays", false, n, takes)
		produce(f, f.runtime("test", nil), pipeline.TopicTasks("game"), tasks(n, func(_ int, t *schemas.Task) {
			t.TimeoutMs = (8 * time.Hour).Milliseconds()
		})...)
		start := time.Now()
		time.Sleep(time.Hour)
		comes := f.serve("comes", true, n, takes)
		time.Sleep(time.Hour)
		if f.reruns(stays)[rerunMoved] == 0 {
			f.Fatal("no rollout moved: nothing was rebalanced")
		}
		late := f.serve("late", false, n, takes)
		time.Sleep(time.Hour)
		comes.stop()
		if f.reruns(comes)[rerunStopped] == 0 {
			f.Fatal("the server that left had no rollout")
		}
		time.Sleep(takes - time.Since(start) + time.Minute)
		first, _, _ := referee.counts()
		if first != n {
			f.Errorf("%d of %d rollouts ended %v after they began", first, n, time.Since(start))
		}
		time.Sleep(time.Hour)
		_, twice, decided := referee.counts()
		if decided != n {
			f.Errorf("%d groups decided, want %d", decided, n)
		}
		f.Logf("%d moved from the one that stays, %d from the one that left, %d traces came twice", f.reruns(stays)[rerunMoved], f.reruns(comes)[rerunMoved], twice)
		stays.stop()
		late.stop()
		stopReferee()
		for key, s := range states(f, f.runtime("test", nil)) {
			if s.LowOffset != s.NextOffset {
				f.Errorf("%s: unfinished from offset %d to %d", key, s.LowOffset, s.NextOffset)
			}
		}
	})
}
