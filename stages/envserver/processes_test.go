package envserver

import (
	"context"
	"crypto/rand"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prl-project/prl/deploy/kafka/kafkatest"
	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// mostTwice is the share of rollouts that one fault may make run twice: what was running on the server it hits and on
// the partitions that move, with the slots and the number of tasks of these tests.
const mostTwice = 0.15

// fireTasks is how many tasks these tests play around a fault.
const fireTasks = 240

// A battle is a run whose servers are processes.
type battle struct {
	*testing.T
	rt     *pipeline.Runtime
	config childConfig
	tasks  int // written
	traces *pipeline.Follower
	seen   map[rolloutID]int
	by     map[string]int            // traces by instance
	from   map[int64]map[string]bool // instances that a group has traces of
	good   map[int64]bool
	crash  []*schemas.Trace // that say their task was given up
}

// fight runs f on every broker, while each of the named servers plays.
func fight(t *testing.T, servers []string, f func(b *battle, children map[string]*child)) {
	t.Parallel()
	kafkatest.Each(t, func(t *testing.T, broker kafkatest.Broker) {
		b := newBattle(t, broker.Addrs)
		children := map[string]*child{}
		for _, name := range servers {
			children[name] = b.start(name)
		}
		b.busyUntil("traces of every server", func() bool { return len(b.by) == len(servers) })
		b.produce(fireTasks)
		f(b, children)
	})
}

func newBattle(t *testing.T, brokers []string) *battle {
	t.Helper()
	dir := t.TempDir()
	rt, err := runtimeAt(brokers, dir, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	rt.Run.Name, rt.Run.TaskPartitions = "fire-"+strings.ToLower(rand.Text()), 8
	if err := rt.SetUp(t.Context(), []string{"game"}); err != nil {
		t.Fatal(err)
	}
	publishPolicy(t, rt)
	traces, err := rt.Follow(pipeline.TopicTraces)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(traces.Close)
	return &battle{T: t, rt: rt, traces: traces, seen: map[rolloutID]int{}, by: map[string]int{}, from: map[int64]map[string]bool{}, good: map[int64]bool{},
		config: childConfig{Brokers: brokers, Dir: dir, Run: rt.Run.Name, Partitions: rt.Run.TaskPartitions, Slots: 8, Takes: 150 * time.Millisecond}}
}

func (b *battle) start(instance string) *child {
	b.Helper()
	c := b.config
	c.Instance, c.Leave = instance, true
	return startChild(b.T, c)
}

// produce writes tasks of one rollout each, of groups of their own.
func (b *battle) produce(n int) {
	b.Helper()
	produce(b, b.rt, pipeline.TopicTasks("game"), tasks(n, func(i int, t *schemas.Task) {
		t.GroupID, t.TaskIndex = int64(b.tasks+i), int64(b.tasks+i)
	})...)
	b.tasks += n
}

// busyUntil writes tasks as they are played, until there is what the test wants.
func (b *battle) busyUntil(what string, there func() bool) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), deadline)
	defer cancel()
	for !there() && ctx.Err() == nil {
		b.produce(b.config.Partitions * 3)
		b.read(ctx, func() bool { return there() || len(b.good) > b.tasks-b.config.Partitions })
	}
	if !there() {
		b.Fatalf("no %s: %d groups of %d have a trace, by instance %v", what, len(b.good), b.tasks, b.by)
	}
}

// await reads traces until there is what the test wants.
func (b *battle) await(what string, there func() bool) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), deadline)
	defer cancel()
	b.read(ctx, there)
	if !there() {
		b.Fatalf("no %s: %d groups have a trace, by instance %v", what, len(b.good), b.by)
	}
}

// read reads traces until there is what the test wants, or ctx ends.
func (b *battle) read(ctx context.Context, there func() bool) {
	b.Helper()
	for !there() && ctx.Err() == nil {
		recs, err := b.traces.Poll(ctx)
		if err != nil {
			b.Fatal(err)
		}
		for _, r := range recs {
			t := r.Value.(*schemas.Trace)
			b.seen[rolloutID{t.GroupID, t.RolloutIndex, t.Attempt}]++
			b.by[t.Instance]++
			if b.from[t.GroupID] == nil {
				b.from[t.GroupID] = map[string]bool{}
			}
			b.from[t.GroupID][t.Instance] = true
			if len(t.Errors) == 0 {
				b.good[t.GroupID] = true
			} else {
				b.crash = append(b.crash, t)
			}
		}
	}
}

// all waits until every group has a trace without error.
func (b *battle) all() {
	b.Helper()
	b.await("traces of all tasks", func() bool { return len(b.good) == b.tasks })
}

// share is what part of the rollouts came twice.
func (b *battle) share() float64 {
	twice := 0
	for _, n := range b.seen {
		twice += n - 1
	}
	b.Logf("%d traces of %d rollouts came twice, by instance %v", twice, len(b.seen), b.by)
	return float64(twice) / float64(len(b.seen))
}

// fewTwice fails where more rollouts came twice than a fault explains.
func (b *battle) fewTwice() {
	b.Helper()
	if share := b.share(); share > mostTwice {
		b.Errorf("%.3f of the rollouts came twice, at most %v may", share, mostTwice)
	}
	for _, t := range b.crash {
		b.Errorf("group %d failed: %+v", t.GroupID, t.Errors)
	}
}

// unclean are the groups of tasks of whose ends without warning the states tell.
func (b *battle) unclean() []int64 {
	b.Helper()
	f, err := b.rt.Follow(pipeline.TopicState)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	recs, err := f.Load(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	type task struct {
		partition int
		offset    int64
	}
	counted := map[task]bool{}
	for _, r := range recs {
		s := r.Value.(*schemas.StageState)
		for _, e := range entries(b, s.Core) {
			if e.crashes > 0 {
				counted[task{s.Partition, e.offset}] = true
			}
		}
	}
	var groups []int64
	for _, r := range read(b, b.rt, pipeline.TopicTasks("game"), count(b.tasks)) {
		if counted[task{int(r.Ref.Partition), r.Ref.Offset}] {
			groups = append(groups, r.Value.(*schemas.Task).GroupID)
		}
	}
	if len(groups) != len(counted) {
		b.Fatalf("the states count %d tasks, of which %d were written", len(counted), len(groups))
	}
	return groups
}

func TestKilledServer(t *testing.T) {
	fight(t, []string{"a", "b", "c"}, func(b *battle, children map[string]*child) {
		first := int64(b.tasks - fireTasks)
		b.await("trace of the server that is to be killed, of the last tasks", func() bool {
			for group := first; group < int64(b.tasks); group++ {
				if b.from[group]["b"] {
					return true
				}
			}
			return false
		})
		children["b"].signal(b.T, syscall.SIGKILL)
		children["b"].killed(b.T)
		b.all()
		// What had ended since the last commit counts as running, too: it is listed as started. The rest was running.
		counted, running := b.unclean(), 0
		for _, group := range counted {
			if !b.from[group]["b"] {
				running++
			}
		}
		if len(counted) == 0 || running > b.config.Slots {
			b.Errorf("unclean ends of %d tasks are counted, %d of which had not ended; want some, and at most %d that were running", len(counted), running, b.config.Slots)
		}
		b.fewTwice()
	})
}

// A server that is stopped for longer than its session loses its tasks; when it wakes it goes on as a server like any
// other, or ends because its transaction was taken from it.
func TestPausedServer(t *testing.T) {
	fight(t, []string{"a", "b", "c"}, func(b *battle, children map[string]*child) {
		paused := children["b"]
		paused.signal(b.T, syscall.SIGSTOP)
		b.all()
		paused.signal(b.T, syscall.SIGCONT)
		b.produce(fireTasks / 4)
		b.all()
		paused.signal(b.T, syscall.SIGTERM)
		if status := paused.ended(b.T); status.ExitStatus() != 0 && status.ExitStatus() != 3 {
			b.Errorf("the server that was paused ended with %v", paused.cmd.ProcessState)
		}
		b.fewTwice()
	})
}

func TestAddedServer(t *testing.T) {
	fight(t, []string{"a", "b"}, func(b *battle, _ map[string]*child) {
		b.start("c")
		b.busyUntil("traces of the one that was added", func() bool { return b.by["c"] > 0 })
		b.all()
		if n := len(b.unclean()); n > 0 {
			b.Errorf("%d unclean ends are counted, and none was", n)
		}
		b.fewTwice()
	})
}

// A server that is taken away ends what it plays, and gives the rest up at once.
func TestLeavingServer(t *testing.T) {
	fight(t, []string{"a", "b", "c"}, func(b *battle, children map[string]*child) {
		children["c"].signal(b.T, syscall.SIGTERM)
		if status := children["c"].ended(b.T); status.ExitStatus() != 0 {
			b.Fatalf("the server that left ended with %v", children["c"].cmd.ProcessState)
		}
		b.all()
		if n := len(b.unclean()); n > 0 {
			b.Errorf("%d unclean ends are counted, and none was", n)
		}
		b.fewTwice()
	})
}

// A task that kills every process that starts it is given up after max_crashes of them, and takes no other with it.
func TestTaskThatKills(t *testing.T) {
	t.Parallel()
	kafkatest.Each(t, func(t *testing.T, broker kafkatest.Broker) {
		const n, poison = 60, 7
		b := newBattle(t, broker.Addrs)
		b.config.Lethal = poison
		b.produce(n)
		deaths := 0
		for {
			c := b.start("a")
			over := make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				defer close(over)
				select {
				case <-c.done:
					cancel()
				case <-ctx.Done():
				}
			}()
			b.read(ctx, func() bool { return len(b.crash) > 0 && len(b.good) == n-1 })
			cancel()
			<-over
			if len(b.crash) > 0 && len(b.good) == n-1 {
				break
			}
			c.killed(t)
			if deaths++; deaths > 2*DefaultConfig().MaxCrashes {
				t.Fatalf("%d processes died, and %d tasks have ended", deaths, len(b.good))
			}
		}
		if deaths != DefaultConfig().MaxCrashes {
			t.Errorf("%d processes died, want %d", deaths, DefaultConfig().MaxCrashes)
		}
		for _, trace := range b.crash {
			failed(t, trace, schemas.ErrorCrashed, "without warning")
			if trace.GroupID != poison {
				t.Errorf("group %d was given up", trace.GroupID)
			}
		}
	})
}
