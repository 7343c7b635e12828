package emitter

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func poolsConfig(change func(*PoolsConfig)) CurriculumConfig {
	c := DefaultCurriculumConfig()
	c.Kind = CurriculumPools
	if change != nil {
		change(&c.Pools)
	}
	return c
}

func gateConfig(change func(*GateConfig)) CurriculumConfig {
	c := DefaultCurriculumConfig()
	c.Kind = CurriculumGate
	if change != nil {
		change(&c.Gate)
	}
	return c
}

func newCurriculum(cfg CurriculumConfig) curriculum {
	return curricula[cfg.Kind](cfg, &cursor{key: 42})
}

// serve lists the next tasks.
func serve(c curriculum, n int64, times int) []int64 {
	tasks := make([]int64, times)
	for i := range tasks {
		tasks[i] = c.next(n)
	}
	return tasks
}

func TestUnplayedTasksComeAsTheyAreShuffled(t *testing.T) {
	want := serve(newCurriculum(DefaultCurriculumConfig()), 50, 120)
	for _, cfg := range []CurriculumConfig{poolsConfig(nil), gateConfig(nil)} {
		if got := serve(newCurriculum(cfg), 50, 120); !slices.Equal(got, want) {
			t.Errorf("%s serves %v, want %v", cfg.Kind, got, want)
		}
	}
}

func TestSolveRateMovesATaskBetweenPools(t *testing.T) {
	cfg := poolsConfig(func(c *PoolsConfig) { c.SolvedAt = 4 })
	for name, c := range map[string]struct {
		groups [][]float64
		want   pool
	}{
		"never played":                  {nil, normal},
		"no reward":                     {[][]float64{{}}, normal},
		"solved":                        {[][]float64{{4, 4}}, easy},
		"better than solved":            {[][]float64{{40, 0}}, easy},
		"never solved":                  {[][]float64{{0, 0, 0}}, hard},
		"worse than nothing":            {[][]float64{{-9, 9, -9}}, hard},
		"half solved":                   {[][]float64{{4, 0}}, normal},
		"at the upper bound":            {[][]float64{{4, 4, 4, 4, 0}}, easy},
		"below it":                      {[][]float64{{4, 4, 4, 0, 0}}, normal},
		"at the lower bound":            {[][]float64{{4, 0, 0, 0, 0}}, hard},
		"solved once after failing":     {[][]float64{{0}, {4}}, normal},
		"solved twice after failing":    {[][]float64{{0}, {4}, {4}}, normal},
		"solved thrice after failing":   {[][]float64{{0}, {4}, {4}, {4}}, easy},
		"failed after it had been easy": {[][]float64{{4}, {0}, {0}, {0}}, hard},
	} {
		p := newPools(cfg, &cursor{key: 42})
		for _, rewards := range c.groups {
			p.learn(3, rewards)
		}
		got := normal
		if rate, ok := p.rates.get(3); ok {
			got = p.of(rate)
		}
		if got != c.want {
			t.Errorf("%s: pool %d, want %d", name, got, c.want)
		}
	}
}

// learnt is pools in which the first tens of tasks are easy and hard.
func learnt(cfg CurriculumConfig, easy, hard int) *pools {
	p := newPools(cfg, &cursor{key: 42})
	for i := range easy {
		p.learn(int64(i), []float64{1})
	}
	for i := range hard {
		p.learn(int64(easy+i), []float64{0})
	}
	return p
}

func TestPoolsAreServedByTheirShares(t *testing.T) {
	const n, draws = 100, 20000
	for _, shares := range [][3]float64{{0.1, 0.8, 0.1}, {1, 2, 1}, {0, 1, 0}, {0.5, 0, 0.5}} {
		p := learnt(poolsConfig(func(c *PoolsConfig) { c.Easy, c.Normal, c.Hard = shares[0], shares[1], shares[2] }), 20, 30)
		var count [3]float64
		for _, task := range serve(p, n, draws) {
			switch {
			case task < 20:
				count[0]++
			case task < 50:
				count[2]++
			default:
				count[1]++
			}
		}
		for i, share := range shares {
			want := share / (shares[0] + shares[1] + shares[2])
			if got, sigma := count[i]/draws, math.Sqrt(want*(1-want)/draws); math.Abs(got-want) > 4*sigma {
				t.Errorf("shares %v: pool %d is drawn %v of the time, want %v", shares, i, got, want)
			}
		}
	}
}

func TestEmptyPoolsFallBack(t *testing.T) {
	for name, c := range map[string]struct {
		easy, hard int
		drawn      pool
		want       pool
	}{
		"hard, all is normal":  {0, 0, hard, normal},
		"easy, all is normal":  {0, 0, easy, normal},
		"normal, all is hard":  {0, 10, normal, hard},
		"normal, all is easy":  {10, 0, normal, easy},
		"normal, half of each": {5, 5, normal, hard},
		"easy, all is hard":    {0, 10, easy, hard},
	} {
		p := learnt(poolsConfig(nil), c.easy, c.hard)
		p.share = [3]float64{}
		p.share[c.drawn] = 1
		for range 100 {
			task := p.next(10)
			got := normal
			if rate, ok := p.rates.get(task); ok {
				got = p.of(rate)
			}
			if got != c.want || task < 0 || task >= 10 {
				t.Fatalf("%s: task %d of pool %d, want %d", name, task, got, c.want)
			}
		}
	}
}

func TestAPoolServesAllBeforeAnyAgain(t *testing.T) {
	p := learnt(poolsConfig(nil), 40, 40)
	for _, which := range []pool{easy, hard, normal} {
		p.share = [3]float64{}
		p.share[which] = 1
		var last []int64
		for range 5 {
			got := serve(p, 120, 40)
			if slices.Equal(got, last) {
				t.Errorf("pool %d comes in the same order again", which)
			}
			last = slices.Clone(got)
			slices.Sort(got)
			if len(slices.Compact(got)) != 40 {
				t.Fatalf("pool %d serves %v", which, got)
			}
		}
	}
}

func TestGatePassesOverWhatTellsNothing(t *testing.T) {
	epochs := func(g curriculum, task int64, n int) (in []bool) {
		for range n {
			in = append(in, slices.Contains(serve(g, 10, 10), task))
		}
		return in
	}
	for name, c := range map[string]struct {
		change  func(*GateConfig)
		rewards []float64
		passed  int // epochs
	}{
		"all equal":          {nil, []float64{1, 1, 1}, 2},
		"not equal":          {nil, []float64{1, 1, 0.9}, 0},
		"one reward":         {nil, []float64{1}, 0},
		"none":               {nil, nil, 0},
		"longer":             {func(c *GateConfig) { c.PassOver = 5 }, []float64{0, 0}, 5},
		"at the lower bound": {func(c *GateConfig) { c.MinRange = 0.5 }, []float64{1, 0.5}, 2},
		"above it":           {func(c *GateConfig) { c.MinRange = 0.5 }, []float64{1, 0.25}, 0},
		"at the upper bound": {func(c *GateConfig) { c.MaxRange = 2 }, []float64{1, -1}, 0},
		"above that":         {func(c *GateConfig) { c.MaxRange = 2 }, []float64{1, -1.5}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate(gateConfig(c.change), &cursor{key: 42})
			serve(g, 10, 10)
			g.learn(7, c.rewards)
			// Epochs are shorter by the task that is passed over.
			for range c.passed {
				if got := serve(g, 10, 9); slices.Contains(got, 7) {
					t.Fatalf("%v", got)
				}
			}
			if in := epochs(g, 7, 2); !in[0] || !in[1] {
				t.Errorf("the task comes in the epochs after that: %v", in)
			}
			if len(g.until.tasks) != 0 {
				t.Errorf("%v is still remembered", g.until.tasks)
			}
		})
	}
}

func TestGateThatWouldPassOverAllServesAll(t *testing.T) {
	g := newGate(gateConfig(nil), &cursor{key: 42})
	for task := range int64(10) {
		g.learn(task, []float64{1, 1})
	}
	got := serve(g, 10, 10)
	slices.Sort(got)
	if len(slices.Compact(got)) != 10 {
		t.Errorf("serves %v", got)
	}
	g.learn(4, []float64{0, 1})
	if got := serve(g, 10, 2); got[0] != 4 || got[1] != 4 {
		t.Errorf("serves %v, want the one task that is not passed over", got)
	}
}

// TestCurriculaAreRestartExact plays random groups and compares a curriculum with one that is restored before each.
func TestCurriculaAreRestartExact(t *testing.T) {
	for _, cfg := range []CurriculumConfig{DefaultCurriculumConfig(), poolsConfig(nil), gateConfig(nil)} {
		for seed := range uint64(10) {
			rng := rand.New(rand.NewPCG(seed, 3))
			if cfg.Kind != CurriculumShuffled {
				cfg.Remember = 1 + rng.IntN(60)
			}
			c, other := &cursor{key: 42}, &cursor{key: 42}
			one := curricula[cfg.Kind](cfg, c)
			again := curricula[cfg.Kind](cfg, other)
			n := int64(1 + rng.IntN(80))
			for range 400 {
				state := again.appendState(nil)
				other = &cursor{key: 42, epoch: other.epoch, pos: other.pos}
				again = curricula[cfg.Kind](cfg, other)
				if err := restoreCurriculum(again, string(state)); err != nil {
					t.Fatal(err)
				}
				if rng.IntN(100) == 0 {
					n = int64(1 + rng.IntN(80)) // another version of the environment
				}
				task := one.next(n)
				if got := again.next(n); got != task || task < 0 || task >= n {
					t.Fatalf("%s, seed %d: task %d of %d, and %d after a restart", cfg.Kind, seed, task, n, got)
				}
				rewards := make([]float64, rng.IntN(4))
				for i := range rewards {
					rewards[i] = float64(rng.IntN(2))
				}
				one.learn(task, rewards)
				again.learn(task, rewards)
			}
		}
	}
}

func TestMemoryIsBounded(t *testing.T) {
	for _, cfg := range []CurriculumConfig{poolsConfig(nil), gateConfig(nil)} {
		cfg.Remember = 1000
		c := newCurriculum(cfg)
		for i := range 20_000 { // of a million tasks
			c.learn(c.next(1e6), []float64{float64(i % 2), float64(i % 2)})
		}
		state := c.appendState(nil)
		t.Logf("%s: %.2f bytes a task", cfg.Kind, float64(len(state))/1000)
		if len(state) > 4*1000 {
			t.Errorf("%s: %d bytes for 1000 tasks", cfg.Kind, len(state))
		}
	}
	m := memory{most: 3}
	for i := range int64(100) {
		m.set(i, i, uint64(7*i))
		if v, ok := m.get(i); !ok || v != i || len(m.tasks) > 3 || !slices.IsSortedFunc(m.tasks, func(a, b remembered) int { return int(a.task - b.task) }) {
			t.Fatalf("after %d: %v", i, m.tasks)
		}
	}
	m.set(99, 5, 0)
	if v, _ := m.get(99); v != 5 || len(m.tasks) != 3 {
		t.Errorf("a task that is known takes another's place: %v", m.tasks)
	}
}

func BenchmarkPoolsNext(b *testing.B) {
	for _, n := range []int{1000, DefaultCurriculumConfig().Remember, maxRemember} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			cfg := poolsConfig(nil)
			cfg.Remember = n
			p := learnt(cfg, n/2, n/2)
			for b.Loop() {
				p.next(1e6)
			}
		})
	}
}
