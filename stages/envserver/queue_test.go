package envserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
)

// of makes a core of an environment of that name.
func (s *shell) of(env string) *core {
	s.Helper()
	g := &game{}
	g.info.Name = env
	c, err := newCore(s.pool, testPlayer(s.T, g, nil), nil)
	if err != nil {
		s.Fatal(err)
	}
	return c
}

// give gives a core tasks of its environment.
func (s *shell) give(c *core, offsets ...int64) {
	s.Helper()
	for _, o := range offsets {
		t := testTask()
		t.Env, t.GroupID = c.player.info.Name, o
		if err := c.Process(pipeline.Record{Ref: pipeline.Ref{Topic: "tasks", Offset: o}, Value: t}, nil); err != nil {
			s.Fatal(err)
		}
		s.tick(c) // so that they came in this order
	}
}

// runs is the names of tasks in the order of their starts; what starts in one commit has no order.
func (s *shell) runs(what string, want ...string) {
	s.Helper()
	equal(s, what, s.started, want)
}

// An environment with room for one rollout has one at a time, in order; the others neither run nor take slots, and another
// environment's pass them.
func TestInvariant_RoomIsRespected(t *testing.T) {
	for name, limit := range map[string]func(*pool){
		"by configuration": func(p *pool) { p.atMost("small", 1) },
		"by its own word":  func(p *pool) { p.hasRoom("small", 1) },
		"by the smaller":   func(p *pool) { p.hasRoom("small", 5); p.atMost("small", 1) },
		"by the other":     func(p *pool) { p.hasRoom("small", 1); p.atMost("small", 5) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 3, func(s *shell) {
				limit(s.pool)
				small, free := s.of("small"), s.of("free")
				s.give(small, 0, 1, 2, 3, 4, 5, 6, 7)
				s.commit(small)
				s.runs("the first of the small one", "0")
				s.give(free, 10, 11, 12)
				s.commit(free)
				if len(s.started) != 3 || s.pool.used != 3 {
					t.Fatalf("%q run, %d slots are taken", s.started, s.pool.used)
				}
				if n := s.pool.concurrency("small"); n != 1 || s.pool.concurrency("free") != 3 {
					t.Errorf("the small one says that %d run at once", n)
				}
				s.end("10")
				s.tick(free)
				s.commit(free)
				s.end("11", "12")
				for i := range 8 {
					s.runs("of the small one", append([]string{"0", s.started[1], s.started[2], "12"}, names(1, i)...)...)
					s.end(fmt.Sprint(i))
					s.commit(small)
				}
				if len(s.published) != 11 || s.pool.used != 0 || s.pool.queue("small").used != 0 {
					t.Errorf("%d traces, %d slots taken", len(s.published), s.pool.used)
				}
			})
		})
	}
}

func names(from, to int) (out []string) {
	for i := from; i <= to; i++ {
		out = append(out, fmt.Sprint(i))
	}
	return out
}

// Room that grows is used, by the oldest; where it shrinks what runs runs on, and nothing begins before there is room again.
func TestRoomChanges(t *testing.T) {
	bubble(t, 8, func(s *shell) {
		s.pool.hasRoom("game", 0)
		c := s.core(nil)
		for o := range int64(8) {
			s.task(c, o)
			s.tick(c)
		}
		if _, changed := s.tick(c); changed || len(s.started) > 0 {
			t.Fatal("there is no room, and something is to start")
		}
		for _, step := range []struct{ room, end, runs int }{
			{1, -1, 1}, {3, -1, 3}, {1, 0, 2}, {1, 1, 1}, {-1, 2, 0}, {0, -1, 0}, {2, -1, 2}, {100, -1, 5},
		} {
			s.pool.hasRoom("game", step.room)
			if step.end >= 0 {
				s.end(fmt.Sprint(step.end))
			}
			s.commit(c)
			s.commit(c)
			if n := len(s.started) - len(s.published); n != step.runs || s.pool.used != n {
				t.Fatalf("room for %d after %d has ended: %d run, want %d", step.room, step.end, n, step.runs)
			}
		}
	})
}

// A task for which there was no room is no failure: it waits again where it was, is listed as not started, and no more of its
// environment run than do now before that has said how much room there is.
func TestFullIsNoFailure(t *testing.T) {
	bubble(t, 4, func(s *shell) {
		full := map[string]bool{"1": true, "2": true}
		play := s.pool.play
		refused := 0
		s.pool.play = func(ctx context.Context, j *job) []*schemas.Trace {
			s.pool.mu.Lock()
			no := full[name(j.task)]
			if no {
				refused++
			}
			s.pool.mu.Unlock()
			if no {
				return nil
			}
			return play(ctx, j)
		}
		s.pool.hasRoom("game", 3)
		c := s.core(nil)
		for o := range int64(5) {
			s.task(c, o)
			s.tick(c)
		}
		s.commit(c)
		s.runs("those with room", "0")
		if _, changed := s.tick(c); !changed {
			t.Error("that two have not started is not committed")
		}
		equal(t, "listed", entries(t, s.commit(c)), []entry{{0, true, 0}})
		if refused != 2 || s.pool.used != 1 || s.pool.busy != 1 {
			t.Fatalf("%d were refused, %d slots are used, %d are busy", refused, s.pool.used, s.pool.busy)
		}
		clear(full)
		s.commit(c)
		s.runs("before the environment has said more", "0")
		for i := range 3 {
			s.end(fmt.Sprint(i))
			s.commit(c)
			s.runs("in their old order", names(0, i+1)...)
		}
		s.pool.hasRoom("game", 2)
		s.commit(c)
		s.runs("when it has said more", names(0, 4)...)
		s.end("3", "4")
		for _, trace := range s.published {
			if len(trace.Errors) > 0 {
				t.Errorf("group %d failed: %v", trace.GroupID, trace.Errors)
			}
		}
		if len(s.published) != 5 {
			t.Errorf("%d traces", len(s.published))
		}
	})
}

// Who waits for room is not forgotten by all else that ends a task: its outcome, a rebalance, a stop.
func TestWaitsForRoomAndEnds(t *testing.T) {
	bubble(t, 4, func(s *shell) {
		hold := make(chan struct{})
		s.pool.play = func(context.Context, *job) []*schemas.Trace { <-hold; return nil }
		s.pool.hasRoom("game", 2)
		c, gone := s.core(nil), s.core(nil)
		s.task(c, 0)
		s.task(gone, 1)
		s.commit(c)
		s.commit(gone)
		gone.Revoking()
		close(hold)
		synctest.Wait()
		if len(s.pool.jobs) != 1 || s.pool.used != 0 || s.pool.busy != 0 {
			t.Fatalf("%d jobs, %d slots, %d busy", len(s.pool.jobs), s.pool.used, s.pool.busy)
		}
		s.pool.outcome(&schemas.GroupOutcome{Env: "game", GroupID: 0, Fate: schemas.FateTimedOut})
		synctest.Wait()
		failed(t, s.published[0], schemas.ErrorCancelled, "outcome is known")
		finished, _ := s.tick(c)
		equal(t, "finished", finished, []int64{0})

		s.pool.hasRoom("game", 1)
		hold = make(chan struct{})
		s.task(c, 2, 3)
		s.commit(c)
		drained := make(chan struct{})
		go func() {
			s.pool.drain(context.Background())
			close(drained)
		}()
		synctest.Wait()
		close(hold)
		<-drained
		if _, changed := s.tick(c); !changed {
			t.Error("that it has not started is not committed")
		}
		equal(t, "listed", entries(t, s.state(c)), nil)
	})
}

// A group for which there is too little room is played in parts, once its environment has nothing else.
func TestGroupInParts(t *testing.T) {
	bubble(t, 8, func(s *shell) {
		s.pool.atMost("game", 2)
		c := s.core(nil)
		s.task(c, 0)
		s.commit(c)
		group := groupTask() // three rollouts
		group.GroupID = 1
		if err := c.Process(pipeline.Record{Ref: pipeline.Ref{Offset: 1}, Value: group}, nil); err != nil {
			t.Fatal(err)
		}
		s.commit(c)
		s.task(c, 2)
		s.commit(c)
		s.runs("before it", "0")
		s.end("0")
		s.commit(c)
		s.runs("then", "0", "1")
		if s.pool.used != 2 {
			t.Errorf("it takes %d slots", s.pool.used)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int32
		g := &contest{game{reply: func(context.Context, int, env.Message) (env.Turn, error) {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			time.Sleep(time.Second)
			return env.Turn{Done: true}, nil
		}}}
		p := testPlayer(t, g, says(tokenizer(t), "a"))
		p.atOnce = func() int { return 2 }
		for _, trace := range p.play(t.Context(), groupTask(), nil) {
			scored(t, trace)
		}
		if most.Load() != 2 {
			t.Errorf("%d rollouts at once", most.Load())
		}
	})
}

// Only an environment that says how much room it has may be full; of others it is an error like any other.
func TestErrFull(t *testing.T) {
	full := func() error { return fmt.Errorf("wait for a session: %w", env.ErrFull) }
	limited := &roomy{game: game{start: full}}
	if traces := testPlayer(t, limited, says(tokenizer(t), "x")).play(t.Context(), testTask(), nil); traces != nil {
		t.Errorf("%d traces of a rollout that has not begun", len(traces))
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	limited.start = func() error { cancel(errDecided); return full() }
	failed(t, testPlayer(t, limited, says(tokenizer(t), "x")).play(ctx, testTask(), nil)[0], schemas.ErrorCancelled, "outcome is known")
	failed(t, playOne(t, testPlayer(t, &game{start: full}, says(tokenizer(t), "x")), testTask()), errorEnvironment, "no room")
	limited.start = func() error { return errors.New("on fire") }
	failed(t, playOne(t, testPlayer(t, limited, says(tokenizer(t), "x")), testTask()), errorEnvironment, "on fire")
}

// roomy is a game that says how much room it has.
type roomy struct {
	game
	capacity func() int
}

func (r *roomy) Capacity() int { return r.capacity() }

// An environment is asked for its room again and again; where it panics, what it said last holds.
func TestRoomIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		r := &roomy{capacity: func() int {
			if n.Load() < 0 {
				panic("no idea")
			}
			return int(n.Load())
		}}
		var said strings.Builder
		s := &Server{rt: &pipeline.Runtime{Log: slog.New(slog.NewTextHandler(&said, nil))}, pool: newPool(8, 5)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.heed(ctx, testPlayer(t, r, nil), r) }()
		for _, step := range []struct{ says, want int32 }{{3, 3}, {5, 5}, {-1, 5}, {-1, 5}, {2, 2}, {0, 0}, {100, 8}} {
			n.Store(step.says)
			time.Sleep(2 * askEvery)
			synctest.Wait()
			if got := s.pool.concurrency("game"); got != int(step.want) {
				t.Errorf("it says %d: %d", step.says, got)
			}
		}
		if strings.Count(said.String(), "does not say") != 1 {
			t.Errorf("it was said: %s", said.String())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// One that hangs is not asked again before it has answered, and is no more than one call that hangs.
func TestRoomThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var asked atomic.Int32
		r := &roomy{capacity: func() int {
			asked.Add(1)
			<-hang
			return 4
		}}
		s := &Server{rt: &pipeline.Runtime{Log: slog.New(slog.DiscardHandler)}, pool: newPool(8, 5)}
		s.pool.hasRoom("game", 2)
		p := testPlayer(t, r, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.heed(ctx, p, r) }()
		time.Sleep(time.Hour)
		if n, stuck, room := asked.Load(), p.overdue.calls.Load(), s.pool.concurrency("game"); n != 1 || stuck != 1 || room != 2 {
			t.Errorf("it was asked %d times while it hung, %d calls hang, room for %d", n, stuck, room)
		}
		close(hang)
		time.Sleep(2 * askEvery)
		synctest.Wait()
		if s.pool.concurrency("game") != 4 || p.overdue.calls.Load() != 0 {
			t.Errorf("room for %d, %d calls hang", s.pool.concurrency("game"), p.overdue.calls.Load())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// narrow is an environment with one place, which an episode has from its start until it is closed. It thinks that it has three
// until it was full.
type narrow struct {
	game
	mu    sync.Mutex
	taken bool
	once  sync.Once
	full  chan struct{} // closed when it was
}

func (n *narrow) Capacity() int {
	select {
	case <-n.full:
		return 1
	default:
		return 3
	}
}

func (n *narrow) Start(ctx context.Context, task json.RawMessage, seed int64) (env.Episode, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.taken {
		n.once.Do(func() { close(n.full) })
		return nil, fmt.Errorf("wait for a place: %w", env.ErrFull)
	}
	n.taken = true
	e, err := n.game.Start(ctx, task, seed)
	return &guest{e, n}, err
}

type guest struct {
	env.Episode
	in *narrow
}

func (g *guest) Reply(ctx context.Context, m env.Message) (env.Turn, error) {
	select {
	case <-g.in.full: // somebody has come meanwhile
		return g.Episode.Reply(ctx, m)
	case <-ctx.Done():
		return env.Turn{}, errors.New("nobody else has come")
	}
}

func (g *guest) Close() error {
	g.in.mu.Lock()
	defer g.in.mu.Unlock()
	g.in.taken = false
	return nil
}

// A server plays all tasks of an environment with one place, and tells the emitter how many it plays at once.
func TestServerOfANarrowEnvironment(t *testing.T) {
	rt, _, _ := testRun(t)
	produce(t, rt, pipeline.TopicTasks("game"), tasks(12, nil)...)
	n := &narrow{full: make(chan struct{})}
	limit := func(c *Config) { c.Limits = map[string]int{"game": 7} }
	stop := serveAll(t, rt, map[string]env.Environment{"game": n}, says(tokenizer(t), "hi"), nil, limit)
	for _, r := range read(t, rt, pipeline.TopicTraces, covers(12)) {
		scored(t, r.Value.(*schemas.Trace))
	}
	stop()
	for key, state := range states(t, rt) {
		if state.Concurrency != 1 {
			t.Errorf("%s: concurrency %d", key, state.Concurrency)
		}
	}
}
