package envserver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/inference"
)

// shell drives cores of one pool by hand, as pipeline.Processor does. What runs is a function of the test's; it is for
// use within a synctest bubble.
type shell struct {
	*testing.T
	pool      *pool
	player    *player
	started   []string // names of jobs in the order of their starts
	published []*schemas.Trace
	finish    map[string]chan struct{} // ends a job that runs
}

func newShell(t *testing.T, slots int) *shell {
	s := &shell{T: t, pool: newPool(slots, 5), player: testPlayer(t, &game{}, nil), finish: map[string]chan struct{}{}}
	s.pool.open = true
	s.pool.play = func(ctx context.Context, j *job) []*schemas.Trace {
		s.pool.mu.Lock()
		s.started = append(s.started, name(j.task))
		end := make(chan struct{})
		s.finish[name(j.task)] = end
		s.pool.mu.Unlock()
		select {
		case <-end:
			return []*schemas.Trace{newTrace(j.task, 0, "", "", "", "")}
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, errStopped) {
				return s.player.refuse(j.task, cause)
			}
			return nil
		}
	}
	s.pool.publish = func(_ context.Context, traces []*schemas.Trace) error {
		s.pool.mu.Lock()
		defer s.pool.mu.Unlock()
		s.published = append(s.published, traces...)
		return nil
	}
	return s
}

func name(t *schemas.Task) string { return fmt.Sprint(t.GroupID) }

func (s *shell) core(state []byte) *core {
	s.Helper()
	c, err := newCore(s.pool, s.player, state)
	if err != nil {
		s.Fatal(err)
	}
	return c
}

// task gives a core a task, whose group is its offset.
func (s *shell) task(c *core, offsets ...int64) {
	s.Helper()
	for _, o := range offsets {
		t := testTask()
		t.GroupID = o
		if err := c.Process(pipeline.Record{Ref: pipeline.Ref{Topic: "tasks.game", Offset: o}, Value: t}, nil); err != nil {
			s.Fatal(err)
		}
	}
}

// tick moves a core and gives what it finished, and whether there is something to commit.
func (s *shell) tick(c *core) (finished []int64, changed bool) {
	s.Helper()
	var out pipeline.Out
	if err := c.Tick(time.Now(), &out); err != nil {
		s.Fatal(err)
	}
	for _, r := range out.Finished {
		finished = append(finished, r.Offset)
	}
	return finished, out.Changed()
}

func (s *shell) state(c *core) []byte {
	s.Helper()
	b, err := c.State()
	if err != nil {
		s.Fatal(err)
	}
	return b
}

// commit is a tick and a transaction; it returns when nothing moves any more.
func (s *shell) commit(c *core) []byte {
	s.Helper()
	s.tick(c)
	b := s.state(c)
	c.Committed()
	synctest.Wait()
	return b
}

func (s *shell) end(names ...string) {
	for _, n := range names {
		close(s.finish[n])
	}
	synctest.Wait()
}

// stopped ends what still runs.
func (s *shell) stopped() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s.pool.drain(ctx)
}

func bubble(t *testing.T, slots int, f func(s *shell)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newShell(t, slots)
		defer s.stopped()
		f(s)
	})
}

func entries(t testing.TB, state []byte) []entry {
	t.Helper()
	list, err := decodeState(state)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestInvariant_ListedBeforeStarted(t *testing.T) {
	bubble(t, 2, func(s *shell) {
		t := s.T
		c := s.core(nil)
		s.task(c, 0, 1, 2)
		if _, changed := s.tick(c); !changed {
			t.Fatal("a start that waits commits nothing")
		}
		state := s.state(c) // its transaction aborts
		synctest.Wait()
		equal(t, "listed", entries(t, state), []entry{{0, true, 0}, {1, true, 0}})
		equal(t, "started before the commit", s.started, nil)
		if _, changed := s.tick(c); changed {
			t.Fatal("nothing happened, and there is something to commit")
		}
		s.commit(c)
		slices.Sort(s.started)
		equal(t, "started by the commit", s.started, []string{"0", "1"})
		s.commit(c)
		s.end("0")
		equal(t, "published", []int{len(s.published)}, []int{1})
		finished, _ := s.tick(c)
		equal(t, "finished", finished, []int64{0})
		equal(t, "listed next", entries(t, s.commit(c)), []entry{{1, true, 0}, {2, true, 0}})
		equal(t, "started next", s.started, []string{"0", "1", "2"})
	})
}

func TestCrashesAreCounted(t *testing.T) {
	bubble(t, 64, func(s *shell) {
		t := s.T
		var state []byte
		for crash := range 5 {
			c := s.core(state)
			s.task(c, 3)
			s.tick(c)
			state = s.state(c) // and the process is killed
			equal(t, "state", entries(t, state), []entry{{3, true, crash}})
		}
		c := s.core(state)
		s.task(c, 3)
		s.commit(c)
		equal(t, "started", s.started, nil)
		finished, _ := s.tick(c)
		equal(t, "finished", finished, []int64{3})
		failed(t, s.published[0], schemas.ErrorCrashed, "5 times")
		equal(t, "state", entries(t, s.state(c)), nil)
	})
}

// Of tasks with c >= 2 crashes few run at a time, and they hold nobody else back.
func TestCrashingTasksAreHeldBack(t *testing.T) {
	for crashes, want := range []int{64, 64, 16, 4, 1} {
		bubble(t, 64, func(s *shell) {
			t := s.T
			var list []entry
			var offsets []int64
			for o := range int64(80) {
				list, offsets = append(list, entry{o, false, crashes}), append(offsets, o)
			}
			c := s.core(encodeState(list))
			s.task(c, offsets...)
			s.commit(c)
			if len(s.started) != want {
				t.Fatalf("%d tasks with %d crashes run, want %d", len(s.started), crashes, want)
			}
			other := s.core(nil)
			s.task(other, 100, 101)
			s.commit(other)
			if n := min(64-want, 2); len(s.started) != want+n {
				t.Fatalf("%d of 2 other tasks run beside %d", len(s.started)-want, want)
			}
		})
	}
}

func TestInvariant_HandOver(t *testing.T) {
	bubble(t, 2, func(s *shell) {
		t := s.T
		c := s.core(encodeState([]entry{{1, true, 0}}))
		s.task(c, 0, 1, 2)
		s.commit(c)
		s.task(c, 3)
		s.end("0") // acknowledged, and not finished yet
		s.tick(c)
		s.pool.mu.Lock()
		granted := s.pool.used
		s.pool.mu.Unlock()
		c.Revoking()
		equal(t, "handed over", entries(t, s.state(c)), []entry{{1, false, 1}})
		c.Committed()
		synctest.Wait()
		slices.Sort(s.started)
		equal(t, "started", s.started, []string{"0", "1"})
		if granted != 2 || s.pool.used != 1 {
			t.Fatalf("%d slots used before, %d after: only one task runs on", granted, s.pool.used)
		}
		// Whoever has the partition now (here: the same process) plays it again; what runs on writes its trace.
		next := s.core([]byte{stateFormat})
		s.task(next, 2)
		s.commit(next)
		s.end("1", "2")
		if len(s.published) != 3 {
			t.Fatalf("%d traces, want 3", len(s.published))
		}
		finished, _ := s.tick(next)
		equal(t, "finished", finished, []int64{2})
		if s.pool.busy != 0 || s.pool.used != 0 || len(s.pool.jobs) != 0 || len(s.pool.groups) != 0 {
			t.Fatalf("%d busy, %d slots, %d jobs, %d groups are left", s.pool.busy, s.pool.used, len(s.pool.jobs), len(s.pool.groups))
		}
	})
}

func TestRecordsThatComeAgainAreSkipped(t *testing.T) {
	bubble(t, 4, func(s *shell) {
		t := s.T
		c := s.core(nil)
		s.task(c, 0, 1)
		s.commit(c)
		s.task(c, 0, 1)
		s.commit(c)
		slices.Sort(s.started)
		equal(t, "started", s.started, []string{"0", "1"})
	})
}

func TestOldestStartsFirst(t *testing.T) {
	bubble(t, 1, func(s *shell) {
		t := s.T
		a, b := s.core(nil), s.core(nil)
		for o := range int64(3) {
			s.task(a, 2*o)
			s.tick(a)
			s.task(b, 2*o+1)
			s.tick(b)
		}
		for i := range 6 {
			s.commit(a)
			s.commit(b)
			s.end(fmt.Sprint(i))
		}
		equal(t, "started", s.started, []string{"0", "1", "2", "3", "4", "5"})
	})
}

// Tasks that crashed once wait in the same order as the others.
func TestOldestStartsFirstAfterACrash(t *testing.T) {
	bubble(t, 1, func(s *shell) {
		t := s.T
		c := s.core(encodeState([]entry{{1, true, 0}}))
		s.task(c, 0, 1, 2)
		for i := range 3 {
			s.commit(c)
			s.end(fmt.Sprint(i))
		}
		equal(t, "started", s.started, []string{"0", "1", "2"})
	})
}

// A group takes a slot for each of its rollouts; the oldest task is not overtaken by smaller ones.
func TestGroupTakesItsSlots(t *testing.T) {
	bubble(t, 4, func(s *shell) {
		t := s.T
		c := s.core(nil)
		s.task(c, 0, 1)
		s.commit(c)
		group := groupTask() // three rollouts
		group.GroupID = 2
		if err := c.Process(pipeline.Record{Ref: pipeline.Ref{Topic: "tasks.game", Offset: 2}, Value: group}, nil); err != nil {
			t.Fatal(err)
		}
		s.task(c, 3)
		s.commit(c)
		s.commit(c)
		slices.Sort(s.started)
		equal(t, "started", s.started, []string{"0", "1"})
		s.end("0")
		s.commit(c)
		s.commit(c)
		equal(t, "started", s.started, []string{"0", "1", "2"})
	})
}

func TestStaleAndDecidedAreCancelled(t *testing.T) {
	bubble(t, 3, func(s *shell) {
		t := s.T
		c := s.core(nil)
		s.task(c, 0, 1, 2, 3, 4)
		s.commit(c)
		for j := range s.pool.jobs {
			if j.phase == running && j.ref.Offset < 2 {
				s.pool.sampled(j, 5+j.ref.Offset)
			}
		}
		s.pool.policy(7)
		synctest.Wait()
		equal(t, "published with version 7", []int{len(s.published)}, []int{0})
		s.pool.policy(8) // the bound is 2
		synctest.Wait()
		if len(s.published) != 1 || s.published[0].GroupID != 0 {
			t.Fatalf("%d traces, want that of group 0", len(s.published))
		}
		failed(t, s.published[0], schemas.ErrorStale, "moved on")
		for _, group := range []int64{2, 3, 9} {
			s.pool.outcome(&schemas.GroupOutcome{Env: "game", GroupID: group, Fate: schemas.FateTimedOut})
			s.pool.outcome(&schemas.GroupOutcome{Env: "game", Eval: "e", GroupID: 1, Fate: schemas.FateEvaluated})
		}
		s.task(c, 9)
		s.commit(c)
		s.commit(c)
		var groups []int64
		for _, trace := range s.published[1:] {
			failed(t, trace, schemas.ErrorCancelled, "outcome is known")
			groups = append(groups, trace.GroupID)
		}
		slices.Sort(groups)
		equal(t, "cancelled", groups, []int64{2, 3, 9})
		slices.Sort(s.started)
		equal(t, "started", s.started, []string{"0", "1", "2", "4"})
	})
}

func TestDrain(t *testing.T) {
	bubble(t, 2, func(s *shell) {
		t := s.T
		c := s.core(nil)
		s.task(c, 0, 1, 2)
		s.commit(c)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		drained := make(chan struct{})
		go func() {
			s.pool.drain(ctx)
			close(drained)
		}()
		synctest.Wait()
		s.end("0")
		finished, _ := s.tick(c)
		equal(t, "finished while draining", finished, []int64{0})
		s.commit(c)
		select {
		case <-drained:
			t.Fatal("drained while a task runs")
		default:
		}
		cancel()
		<-drained
		c.Revoking()
		slices.Sort(s.started)
		equal(t, "started", s.started, []string{"0", "1"})
		equal(t, "traces", []int{len(s.published)}, []int{1})
		equal(t, "handed over", entries(t, s.state(c)), nil)
	})
}

// A stop lists what was about to start as not started, at once.
func TestDrainGivesUpWhatWasAboutToStart(t *testing.T) {
	bubble(t, 2, func(s *shell) {
		t := s.T
		c := s.core(nil)
		s.task(c, 0)
		s.commit(c)
		s.task(c, 1)
		s.tick(c)
		equal(t, "listed", entries(t, s.state(c)), []entry{{0, true, 0}, {1, true, 0}})
		ctx, cancel := context.WithCancel(context.Background())
		drained := make(chan struct{})
		go func() {
			s.pool.drain(ctx)
			close(drained)
		}()
		synctest.Wait()
		if _, changed := s.tick(c); !changed {
			t.Fatal("nothing to commit while it drains")
		}
		equal(t, "listed while it drains", entries(t, s.state(c)), []entry{{0, true, 0}})
		c.Committed()
		cancel()
		<-drained
		equal(t, "started", s.started, []string{"0"})
	})
}

// Whose trace is acknowledged did not kill the process, even where it is not finished yet; and until then the next task
// that may kill it waits.
func TestAcknowledgedTracesAreNoCrash(t *testing.T) {
	bubble(t, 8, func(s *shell) {
		t := s.T
		acknowledge := make(chan struct{})
		publish := s.pool.publish
		s.pool.publish = func(ctx context.Context, traces []*schemas.Trace) error {
			<-acknowledge
			return publish(ctx, traces)
		}
		c := s.core(encodeState([]entry{{0, false, 3}, {1, false, 3}}))
		s.task(c, 0, 1)
		s.commit(c)
		s.end("0")
		equal(t, "listed before the trace is acknowledged", entries(t, s.commit(c)), []entry{{0, true, 3}, {1, false, 3}})
		equal(t, "started", s.started, []string{"0"})
		close(acknowledge)
		synctest.Wait()
		equal(t, "listed then", entries(t, s.state(c)), []entry{{0, false, 3}, {1, false, 3}})
		finished, _ := s.tick(c)
		equal(t, "finished", finished, []int64{0})
		equal(t, "listed next", entries(t, s.state(c)), []entry{{1, true, 3}})
		c.Committed()
		synctest.Wait()
		equal(t, "started then", s.started, []string{"0", "1"})
	})
}

func TestRerunsAreCounted(t *testing.T) {
	bubble(t, 8, func(s *shell) {
		t := s.T
		var reruns []string
		s.pool.rerun = func(j *job, why string) { reruns = append(reruns, name(j.task)+" "+why) }
		c := s.core(encodeState([]entry{{0, true, 0}, {1, true, 4}, {2, false, 1}}))
		s.task(c, 0, 1, 2, 3)
		equal(t, "reruns after a crash (the limit is 5)", reruns, []string{"0 crashed"})
		s.commit(c)
		reruns = nil
		s.end("2")
		c.Revoking()
		slices.Sort(reruns)
		equal(t, "reruns when the partition goes", reruns, []string{"0 moved", "3 moved"})
		reruns = nil
		other := s.core(nil)
		s.task(other, 9)
		s.commit(other)
		s.stopped()
		equal(t, "reruns by a stop", reruns, []string{"9 stopped"})
	})
}

// A model that goes while the server stops is not waited for: the rollout is handed over as not started, in place of a failure.
// One that has too much to do, or is gone while nothing stops, is asked again.
func TestModelIsGoneWhileTheServerStops(t *testing.T) {
	away := &inference.Error{Code: inference.CodeConnection, Message: "no reply"}
	for _, c := range []struct {
		what     string
		err      error
		stops    bool
		released int // traces
	}{
		{"gone, and the server stops", away, true, 0},
		{"stopping, and the server stops", &inference.Error{Status: 503, Code: inference.CodeStopping}, true, 0},
		{"gone, and it goes on", away, false, 1},
		{"overloaded, and the server stops", &inference.Error{Status: 503, Code: inference.CodeOverloaded}, true, 1},
	} {
		t.Run(c.what, func(t *testing.T) {
			bubble(t, 2, func(s *shell) {
				t := s.T
				asked := make(chan struct{})
				m := &model{answer: func(ctx context.Context, call int, _ inference.Request) (inference.Completion, error) {
					if call == 0 {
						<-asked
					}
					return inference.Completion{}, c.err
				}}
				p := testPlayer(t, &game{}, m)
				p.caller.stops = s.pool.stops
				s.pool.play = func(ctx context.Context, j *job) []*schemas.Trace { return p.play(ctx, j.task, nil) }
				var reruns []string
				s.pool.rerun = func(_ *job, why string) { reruns = append(reruns, why) }
				core := s.core(nil)
				s.task(core, 0)
				s.commit(core)
				ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
				defer cancel()
				drained := make(chan struct{})
				if c.stops {
					go func() { s.pool.drain(ctx); close(drained) }()
				}
				synctest.Wait()
				close(asked)
				time.Sleep(time.Minute) // of the bubble: past all tries
				finished, _ := s.tick(core)
				equal(t, "traces", []int{len(s.published), len(finished)}, []int{c.released, c.released})
				if c.released == 1 {
					failed(t, s.published[0], errorModel, "try 3 of 3")
				} else {
					equal(t, "handed over", entries(t, s.state(core)), nil)
					equal(t, "reruns", reruns, []string{rerunStopped})
				}
				if c.stops {
					<-drained
					equal(t, "not all drain time was needed", []error{ctx.Err()}, []error{nil})
				}
			})
		})
	}
}

func TestUnplayableTasksAreRefused(t *testing.T) {
	for name, change := range map[string]func(*schemas.Task){
		"environment": func(t *schemas.Task) { t.Env = "other" },
		"split":       func(t *schemas.Task) { t.Split = "dev" },
		"tokens":      func(t *schemas.Task) { t.MaxTokens = 0 },
		"greedy":      func(t *schemas.Task) { t.Temperature = 0 },
		"top_p":       func(t *schemas.Task) { t.TopP = 0.9 },
		"temperature": func(t *schemas.Task) { t.Temperature = math.Inf(1) },
		"time":        func(t *schemas.Task) { t.TimeoutMs = math.MaxInt64 },
		"group":       func(t *schemas.Task) { t.GroupSize, t.RolloutIndex = math.MaxInt32, -1 },
	} {
		c, err := newCore(newPool(1, 5), testPlayer(t, &game{}, nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		task := testTask()
		change(task)
		if err := c.Process(pipeline.Record{Value: task}, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if name == "greedy" || name == "top_p" {
			task.Eval = "e"
			if err := c.Process(pipeline.Record{Value: task}, nil); err != nil {
				t.Errorf("%s in an eval: %v", name, err)
			}
		}
	}
}

func FuzzState(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(encodeState([]entry{{0, true, 0}, {7, false, 3}, {1 << 40, true, 1}}))
	f.Add([]byte{9})
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := decodeState(b)
		if err != nil {
			return
		}
		again, err := decodeState(encodeState(list))
		if err != nil || !slices.Equal(list, again) {
			t.Fatalf("%v became %v, %v", list, again, err)
		}
	})
}
