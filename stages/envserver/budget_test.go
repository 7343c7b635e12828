package envserver

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prl-project/prl/pipeline"
)

// A tenant is a run in a fleet, driven by hand.
type tenant struct {
	*shell
	name  string
	cores map[string]*core
	next  int64
}

// fleet drives several runs on the slots of one process. It is for use within a synctest bubble.
type fleet struct {
	*Fleet
	t       *testing.T
	tenants []*tenant
}

func newFleet(t *testing.T, slots int) *fleet {
	return &fleet{Fleet: &Fleet{newBudget(slots, 5)}, t: t}
}

// join lets a run in, with its environments, which are its own unless same says otherwise.
func (f *fleet) join(name string, share float64, same map[string]string, envs ...string) *tenant {
	f.t.Helper()
	seat, err := f.Seat(share, same)
	if err != nil {
		f.t.Fatal(err)
	}
	s := newShell(f.t, 1)
	play, publish := s.pool.play, s.pool.publish
	s.pool = newSeat(seat)
	s.pool.play, s.pool.publish, s.pool.open = play, publish, true
	n := &tenant{shell: s, name: name, cores: map[string]*core{}}
	for _, e := range envs {
		n.cores[e] = s.of(e)
	}
	f.tenants = append(f.tenants, n)
	return n
}

// give gives a run so many tasks of an environment.
func (n *tenant) give(env string, tasks int) {
	n.Helper()
	for range tasks {
		t := testTask()
		t.Env, t.GroupID, t.MaxOffPolicySteps = env, n.next, -1
		if err := n.cores[env].Process(pipeline.Record{Ref: pipeline.Ref{Topic: "tasks." + env, Offset: n.next}, Value: t}, nil); err != nil {
			n.Fatal(err)
		}
		n.next++
	}
}

// move lets the shells of all runs move until nothing changes.
func (f *fleet) move() {
	for range 3 {
		for _, n := range f.tenants {
			for _, name := range slices.Sorted(maps.Keys(n.cores)) {
				n.commit(n.cores[name])
			}
		}
	}
}

// running is how many rollouts of the run run.
func (n *tenant) running() int { return len(n.finish) }

// endOne ends a rollout that runs.
func (n *tenant) endOne(rng *rand.Rand) {
	var names []string
	for name := range n.finish {
		names = append(names, name)
	}
	slices.Sort(names)
	if len(names) == 0 {
		return
	}
	name := names[rng.IntN(len(names))]
	close(n.finish[name])
	delete(n.finish, name)
	synctest.Wait()
}

func (f *fleet) stop() {
	for _, n := range f.tenants {
		n.stopped()
	}
}

func inFleet(t *testing.T, slots int, do func(f *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, slots)
		defer f.stop()
		do(f)
	})
}

// While runs have a backlog each has the slots of its share, whoever came first and however many tasks it has; alone it has all.
func TestInvariant_RunsShareFairly(t *testing.T) {
	for _, c := range []struct {
		shares [2]float64
		tasks  [2]int
		want   [2]int
	}{
		{[2]float64{1, 1}, [2]int{300, 30}, [2]int{6, 6}},
		{[2]float64{2, 1}, [2]int{30, 300}, [2]int{8, 4}},
		{[2]float64{1, 2}, [2]int{300, 300}, [2]int{4, 8}},
	} {
		t.Run(fmt.Sprint(c.shares), func(t *testing.T) {
			inFleet(t, 12, func(f *fleet) {
				rng := rand.New(rand.NewPCG(1, 2))
				first, second := f.join("first", c.shares[0], nil, "game"), f.join("second", c.shares[1], nil, "game")
				first.give("game", c.tasks[0])
				f.move()
				if first.running() != 12 {
					t.Fatalf("alone it has %d of 12 slots", first.running())
				}
				second.give("game", c.tasks[1])
				f.move()
				if first.running() != 12 {
					t.Fatal("a rollout was stopped for another run's sake")
				}
				for range 12 { // as soon as what runs has ended
					first.endOne(rng)
					f.move()
				}
				if first.running() != c.want[0] || second.running() != c.want[1] {
					t.Fatalf("they have %d and %d slots, want %v", first.running(), second.running(), c.want)
				}
				for first.backlog() > 0 && second.backlog() > 0 { // and for as long as both wait
					f.tenants[rng.IntN(2)].endOne(rng)
					f.move()
					if first.backlog() > 0 && second.backlog() > 0 && (first.running() != c.want[0] || second.running() != c.want[1]) {
						t.Fatalf("they have %d and %d slots, want %v", first.running(), second.running(), c.want)
					}
				}
				for range 100 { // what one has no tasks for the other has
					first.endOne(rng)
					second.endOne(rng)
					f.move()
				}
				if first.running()+second.running() != 12 && first.backlog()+second.backlog() > 0 {
					t.Errorf("%d and %d run", first.running(), second.running())
				}
			})
		})
	}
}

// backlog is how many tasks wait.
func (n *tenant) backlog() (waits int) {
	n.pool.mu.Lock()
	defer n.pool.mu.Unlock()
	for j := range n.pool.jobs {
		if j.phase == waiting {
			waits++
		}
	}
	return waits
}

// The room of an environment that two runs have is divided between them, also where one of them has most of the slots with
// another environment; an environment of another key is another one.
func TestRoomIsShared(t *testing.T) {
	inFleet(t, 40, func(f *fleet) {
		rng := rand.New(rand.NewPCG(1, 2))
		same := map[string]string{"small": "the same"}
		a, b := f.join("a", 1, same, "small", "free"), f.join("b", 1, same, "small")
		c := f.join("c", 1, map[string]string{"small": "another"}, "small")
		a.pool.hasRoom("small", 4)
		a.give("free", 30)
		b.give("small", 100)
		f.move()
		if a.running() != 30 || b.running() != 4 {
			t.Fatalf("%d and %d run", a.running(), b.running())
		}
		a.give("small", 100)
		c.give("small", 2)
		for range 4 {
			b.endOne(rng)
			f.move()
		}
		if used := a.pool.queue("small").used; used != 2 || b.running() != 2 || c.running() != 2 {
			t.Errorf("in room for 4, a has %d and b %d; c, of another room, has %d of 2", used, b.running(), c.running())
		}
		b.pool.atMost("small", 1)
		a.pool.atMost("small", 3)
		b.pool.hasRoom("small", 100)
		for range 4 {
			b.endOne(rng)
			f.move()
		}
		if used := a.pool.queue("small").used; used != 2 || b.running() != 1 {
			t.Errorf("with room for 3 and 1 at most, a has %d and b %d: together the larger of their limits", used, b.running())
		}
	})
}

// A run that has older tasks of another environment keeps nobody out of one that both have: the other has its share of the slots
// meanwhile, whether the room is large or small.
func TestOlderTasksElsewhereKeepNobodyOut(t *testing.T) {
	for _, room := range []int{0, 3} {
		t.Run(fmt.Sprint(room), func(t *testing.T) {
			inFleet(t, 8, func(f *fleet) {
				rng := rand.New(rand.NewPCG(1, 2))
				same := map[string]string{"game": "the same"}
				a, b := f.join("a", 1, same, "game", "other"), f.join("b", 1, same, "game")
				want := 4
				if room > 0 {
					a.pool.hasRoom("game", room)
					want = room
				}
				a.give("other", 100)
				a.tick(a.cores["other"]) // they are the older ones
				a.give("game", 10)
				b.give("game", 100)
				for range 40 {
					f.move()
					a.endOne(rng)
				}
				f.move()
				if b.running() != want || a.running() != 8-want {
					t.Errorf("%d and %d run, want %d and %d", a.running(), b.running(), 8-want, want)
				}
			})
		})
	}
}

// An environment whose room is known is not closed to those that have it because another run joins.
func TestRoomStaysWhenARunJoins(t *testing.T) {
	inFleet(t, 8, func(f *fleet) {
		same := map[string]string{"game": "the same"}
		a := f.join("a", 1, same, "game")
		a.pool.asksRoom("game")
		a.give("game", 10)
		f.move()
		if a.running() != 0 {
			t.Errorf("%d run before it is known what room there is", a.running())
		}
		a.pool.hasRoom("game", 4)
		f.join("b", 1, same, "game").pool.asksRoom("game")
		f.move()
		if a.running() != 4 {
			t.Errorf("%d run", a.running())
		}
	})
}

// What an emitter hears is its run's share while others play, and everything while they do not.
func TestAnnouncedShare(t *testing.T) {
	inFleet(t, 30, func(f *fleet) {
		same := map[string]string{"small": "the same"}
		a, b := f.join("a", 2, same, "game", "small"), f.join("b", 1, same, "game", "small")
		a.pool.hasRoom("small", 6)
		check := func(what string, n *tenant, env string, want int) {
			t.Helper()
			if got := n.pool.expected(env); got != want {
				t.Errorf("%s: run %s expects %d of %s, want %d", what, n.name, got, env, want)
			}
		}
		check("alone", a, "game", 30)
		check("alone", a, "small", 6)
		b.give("game", 1)
		f.move()
		check("beside another", a, "game", 20)
		check("beside another", a, "small", 4)
		check("alone", b, "game", 30)
		a.give("game", 1)
		f.move()
		check("beside another", b, "game", 10)
		check("beside another", b, "small", 2)
		b.pool.setShare(2)
		check("with another share", b, "game", 15)
	})
}

// A run whose shells stand still (its topics are gone) keeps no slots that it has not begun to use, and gets none; when they
// move again its tasks are played, each once.
func TestSilentRunHoldsNothing(t *testing.T) {
	inFleet(t, 4, func(f *fleet) {
		rng := rand.New(rand.NewPCG(1, 2))
		dead, other := f.join("dead", 1, nil, "game"), f.join("other", 1, nil, "game")
		dead.give("game", 6)
		dead.tick(dead.cores["game"]) // it has slots, and then nothing is committed
		other.give("game", 8)
		f.tenants = []*tenant{other}
		f.move()
		if other.running() != 0 {
			t.Fatalf("%d run: the other has all slots", other.running())
		}
		time.Sleep(silent + time.Millisecond)
		f.move()
		if other.running() != 4 || dead.pool.party.Held() != 0 {
			t.Fatalf("%d run, the silent run holds %d", other.running(), dead.pool.party.Held())
		}
		f.tenants = []*tenant{dead, other}
		for range 14 {
			f.move()
			dead.endOne(rng)
			other.endOne(rng)
		}
		f.move()
		if len(dead.published) != 6 || len(other.published) != 8 {
			t.Errorf("%d and %d traces", len(dead.published), len(other.published))
		}
		if f.Running() != 0 {
			t.Errorf("%d slots are taken", f.Running())
		}
	})
}

// A run that ends leaves its slots to the others, and whoever still plays for it takes nothing of theirs.
func TestRunLeaves(t *testing.T) {
	inFleet(t, 4, func(f *fleet) {
		a, b := f.join("a", 1, nil, "game"), f.join("b", 1, nil, "game")
		a.give("game", 100)
		f.move()
		b.give("game", 100)
		now, cancel := context.WithCancel(context.Background())
		cancel()
		a.pool.drain(now)
		a.pool.leave()
		f.tenants = []*tenant{b}
		f.move()
		if b.running() != 4 || f.Running() != 4 || len(f.pools) != 1 {
			t.Errorf("%d run on %d slots, of %d runs", b.running(), f.Running(), len(f.pools))
		}
		if got := b.pool.expected("game"); got != 4 {
			t.Errorf("the last one expects %d", got)
		}
	})
}

// One that is held back for its crashes is held back for all runs: the next crash would be everybody's.
func TestCrashesAreIsolatedTogether(t *testing.T) {
	inFleet(t, 16, func(f *fleet) {
		a, b := f.join("a", 1, nil), f.join("b", 1, nil)
		for _, n := range f.tenants {
			var suspects []entry
			for o := range int64(20) {
				suspects = append(suspects, entry{o, true, 1})
			}
			c, err := newCore(n.pool, testPlayer(t, &game{}, nil), encodeState(suspects))
			if err != nil {
				t.Fatal(err)
			}
			n.cores["game"] = c
			n.give("game", 20)
		}
		f.move()
		rng := rand.New(rand.NewPCG(1, 2))
		for range 3 {
			if n := a.running() + b.running(); n != 4 {
				t.Errorf("%d run; of tasks with two ends without warning a quarter of 16 slots may, 4 in all", n)
			}
			a.endOne(rng)
			f.move()
		}
		if a.running() != 2 || b.running() != 2 {
			t.Errorf("%d and %d run", a.running(), b.running())
		}
	})
}

// FuzzFleet lets runs come and go with tasks of several environments, some with a room that they share: no more than the slots
// and the rooms have is ever used, every task is played once, and in the end nothing is taken.
func FuzzFleet(f *testing.F) {
	for i := range 8 {
		f.Add(uint64(i))
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		inFleet(t, 7, func(f *fleet) {
			rng := rand.New(rand.NewPCG(seed, 5))
			given := map[*tenant]int{}
			for i := range 3 {
				n := f.join(fmt.Sprint(i), 0.5+rng.Float64()*3, map[string]string{"small": "the same"}, "small", "game")
				n.pool.hasRoom("small", 3)
			}
			for range 150 {
				n := f.tenants[rng.IntN(len(f.tenants))]
				switch rng.IntN(4) {
				case 0:
					k := rng.IntN(6)
					n.give([]string{"small", "game"}[rng.IntN(2)], k)
					given[n] += k
				case 1:
					n.commit(n.cores[[]string{"small", "game"}[rng.IntN(2)]])
				case 2:
					n.endOne(rng)
				case 3:
					n.pool.hasRoom("small", 1+rng.IntN(4))
				}
				held, room := 0, 0
				for _, n := range f.tenants {
					held += n.pool.party.Held()
					room += n.pool.queue("small").used
				}
				if held != f.used || f.used > f.size || room != f.tenants[0].pool.queue("small").room.used {
					t.Fatalf("%d slots are held, %d used, of %d; %d of the room", held, f.used, f.size, room)
				}
			}
			for range 300 {
				for _, n := range f.tenants {
					n.endOne(rng)
				}
				f.move()
			}
			for i, n := range f.tenants {
				if len(n.published) != given[n] || n.pool.party.Held() != 0 {
					t.Errorf("run %d: %d traces of %d tasks, %d slots held", i, len(n.published), given[n], n.pool.party.Held())
				}
			}
		})
	})
}

// BenchmarkGrant is what a task costs to be found, given a slot and through, of one run and of several.
func BenchmarkGrant(b *testing.B) {
	for _, runs := range []int{1, 3} {
		b.Run(fmt.Sprint(runs), func(b *testing.B) {
			shared, player := newBudget(1, 5), testPlayer(b, &game{}, nil)
			waits := func(p *pool, c *core) {
				shared.seq++
				p.queue("game").push(&job{core: c, player: player, task: testTask(), queue: p.queue("game"), seq: shared.seq})
			}
			cores := map[*pool]*core{}
			for range runs {
				p := newSeat(&Seat{budget: shared, share: 1})
				c, err := newCore(p, player, nil)
				if err != nil {
					b.Fatal(err)
				}
				p.open, cores[p] = true, c
				for range 1000 {
					waits(p, c)
				}
			}
			for b.Loop() {
				shared.grant()
				for p, c := range cores {
					if j := p.head; j != nil && j.slots > 0 {
						p.release(j)
						waits(p, c)
					}
				}
			}
		})
	}
}
