package envserver

import (
	"context"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
)

// costs are what f allocates, on average.
func costs(f func()) (allocs, bytes float64) {
	const runs = 20
	f()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		f()
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / runs, float64(after.TotalAlloc-before.TotalAlloc) / runs
}

// talk is an environment of so many turns, in each of which it says a text and the policy another.
func talk(turns, hears, says int) trial {
	text := strings.Repeat("x", hears)
	g := &game{info: env.Info{MaxTurns: turns}, prompt: []env.Message{env.User(text)}, reply: func(context.Context, int, env.Message) (env.Turn, error) {
		return env.Turn{Messages: []env.Message{env.User(text)}}, nil
	}}
	return trial{name: "talk", environment: g, says: strings.Repeat("y", says), turns: turns}
}

// What a rollout of a simple environment allocates.
func TestCostOfARollout(t *testing.T) {
	most := map[string]float64{"single-turn": 290, "tools": 1150}
	for _, tr := range trials(t) {
		p, task := testPlayer(t, tr.environment, tr.model(t)), tr.tasks(1)[0]
		allocs, bytes := costs(func() { tr.played(t, p, task) })
		t.Logf("%s: %.0f allocations of %.1f KiB", tr.name, allocs, bytes/1024)
		if allocs > most[tr.name] {
			t.Errorf("%s: a rollout allocates %.0f times", tr.name, allocs)
		}
	}
}

// What a rollout allocates does not grow in number with its tokens, and in bytes in proportion to them.
func TestCostOfTokens(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection would empty pools, more often for more tokens
	const tokens = 4096
	cost := func(n int) (allocs, bytes float64) {
		tr := talk(1, n, n)
		p, task := testPlayer(t, tr.environment, tr.model(t)), tr.tasks(1)[0]
		task.MaxTokens, task.MaxRolloutTokens = 1<<20, 1<<20
		return costs(func() { tr.played(t, p, task) })
	}
	few, small := cost(tokens)
	many, large := cost(8 * tokens)
	t.Logf("%.0f and %.0f allocations of %.0f and %.0f KiB for %d and %d tokens", few, many, small/1024, large/1024, 2*tokens, 16*tokens)
	if many > few+16 {
		t.Errorf("a rollout of %d tokens allocates %.0f times, one of %d tokens %.0f times", 2*tokens, few, 16*tokens, many)
	}
	if perToken := (large - small) / (14 * tokens); perToken > 60 {
		t.Errorf("%.1f bytes are allocated for each token", perToken)
	}
}

// A turn costs the same whatever was said before it: the conversation is not copied, nor looked through, for each.
func TestCostOfTurns(t *testing.T) {
	cost := func(turns int) (allocs, bytes float64) {
		tr := talk(turns, 256, 64)
		p, task := testPlayer(t, tr.environment, tr.model(t)), tr.tasks(1)[0]
		return costs(func() { tr.played(t, p, task) })
	}
	allocs, bytes := cost(40)
	allocs2, bytes2 := cost(80)
	t.Logf("%.0f and %.0f allocations of %.0f and %.0f KiB for 40 and 80 turns", allocs, allocs2, bytes/1024, bytes2/1024)
	if allocs2 > 2.2*allocs || bytes2 > 2.6*bytes { // what is appended to grows by doubling
		t.Errorf("40 turns allocate %.0f times %.0f bytes, 80 turns %.0f times %.0f bytes", allocs, bytes, allocs2, bytes2)
	}
	if each := (allocs2 - allocs) / 40; each > 65 {
		t.Errorf("a turn allocates %.0f times", each)
	}
}

// A rollout that waits for the policy is one goroutine and little more than what its trace will have.
func TestCostOfWaiting(t *testing.T) {
	const rollouts, tokens = 500, 2000
	synctest.Test(t, func(t *testing.T) {
		tr := talk(3, tokens/4, tokens/4)
		m := tr.model(t)
		p := testPlayer(t, tr.environment, nil)
		ctx, cancel := context.WithCancel(t.Context())
		p.caller.model = &model{answer: func(ctx context.Context, _ int, r inference.Request) (inference.Completion, error) {
			if len(r.Tokens) > tokens/2 {
				<-ctx.Done() // in the second turn
			}
			return m.answers, ctx.Err()
		}}
		memory := func() uint64 {
			var s runtime.MemStats
			runtime.GC()
			runtime.GC() // what pools hold goes with the second
			runtime.ReadMemStats(&s)
			return s.HeapAlloc + s.StackInuse
		}
		before, goroutines := memory(), runtime.NumGoroutine()
		var all sync.WaitGroup
		for _, task := range tr.tasks(rollouts) {
			all.Go(func() { p.play(ctx, task, nil) })
		}
		synctest.Wait()
		waiting, held := runtime.NumGoroutine()-goroutines, float64(memory()-before)/rollouts
		t.Logf("%d goroutines and %.1f KiB a rollout of %d tokens", waiting, held/1024, tokens*3/4)
		if waiting > rollouts {
			t.Errorf("%d goroutines for %d rollouts that wait", waiting, rollouts)
		}
		if held > 38<<10 && !raced { // of which 8 are its stack
			t.Errorf("a rollout that waits holds %.1f KiB", held/1024)
		}
		cancel()
		all.Wait()
	})
}

// asked counts what is asked of brokers.
type asked struct {
	mu    sync.Mutex
	times map[kmsg.Key]int
}

func (a *asked) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.times[kmsg.Key(key)]++
}

// What is asked of the brokers follows time and not the number of rollouts: those that begin and end together share requests.
func TestCostOfRequests(t *testing.T) {
	const slots, rounds = 500, 4
	onField(t, usual, func(f *field) {
		h := enter(f, f.runtime("driver", nil), talk(1, 100, 100))
		count := &asked{times: map[kmsg.Key]int{}}
		f.options = append(f.options, kgo.WithHooks(count))
		s := f.serve("one", false, slots, 10*time.Second)
		h.write(f, h.records(f, h.tasks(slots*rounds)))
		h.traces(f, slots*rounds)
		s.stop()
		count.mu.Lock()
		defer count.mu.Unlock()
		for _, of := range []struct {
			what string
			keys []kmsg.Key
			most int
		}{
			{"traces and states", []kmsg.Key{kmsg.Produce}, slots * rounds / 2},
			{"commits", []kmsg.Key{kmsg.TxnOffsetCommit, kmsg.EndTxn, kmsg.AddPartitionsToTxn, kmsg.AddOffsetsToTxn}, slots * rounds / 10},
		} {
			n := 0
			for _, key := range of.keys {
				n += count.times[key]
			}
			f.Logf("%d requests for %s of %d rollouts", n, of.what, slots*rounds)
			if n == 0 || n > of.most {
				f.Errorf("%d requests for %s of %d rollouts", n, of.what, slots*rounds)
			}
		}
	})
}

// Of a busy server, to which tasks come and in which rollouts end all the time, transactions follow time, and not the number of
// rollouts: no two begin within usual.start.
func TestCostOfTransactions(t *testing.T) {
	const rollouts, atOnce = 4000, 4
	onField(t, usual, func(f *field) {
		h := enter(f, f.runtime("driver", nil), talk(1, 100, 100))
		count := &asked{times: map[kmsg.Key]int{}}
		f.options = append(f.options, kgo.WithHooks(count))
		begun := time.Now()
		s := f.serveTimed("one", false, 500, func(r inference.Request) time.Duration {
			return 500*time.Millisecond + time.Duration(uint64(r.Seed)%1000)*time.Millisecond
		})
		for tasks := h.records(f, h.tasks(rollouts)); len(tasks) > 0; tasks = tasks[atOnce:] {
			h.write(f, tasks[:atOnce])
			time.Sleep(8 * time.Millisecond) // 500 a second, which end out of order
		}
		h.traces(f, rollouts)
		s.stop()
		took := time.Since(begun)
		count.mu.Lock()
		defer count.mu.Unlock()
		n, most := count.times[kmsg.EndTxn], int(took/usual.start)+2 // that of the start, and that of the stop
		f.Logf("%d transactions for %d rollouts in %v", n, rollouts, took)
		if n == 0 || n > most || most > rollouts/8 {
			f.Errorf("%d transactions for %d rollouts in %v, at most %d", n, rollouts, took, most)
		}
	})
}
