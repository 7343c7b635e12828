package fleet

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Processes says how many of each stage there are; 1 of those it does not name. Environment servers are those of the fleet.
type Processes map[string]int

// A Result is what a simulation saw, after the pipeline had filled.
type Result struct {
	Rate float64 // rollouts/s that were trained
	// Idle is the part of the time in which the trainer waited for a step.
	Idle float64
	// Busy is the part of the time that the processes of a stage worked, and the brokers.
	Busy map[string]float64
	// Scored is how long, in seconds, rollouts took from their end until they were scored; Packed how long a step took from the end of
	// its last rollout until the trainer had it; Refilled how long tasks took from the cut of a step until a server had them.
	Scored, Packed, Refilled Spread
}

// A Spread is a middle and a tail.
type Spread struct{ P50, P99 float64 }

// warmUp is the number of steps that are not counted.
const warmUp = 4

// Simulate plays a number of steps.
func (f Fleet) Simulate(p Processes, steps int, seed uint64) Result {
	s := &simulation{Fleet: f, rng: rand.New(rand.NewPCG(seed, 0)), pools: map[string]*pool{}, steps: steps}
	machine := newPool(f.Cores)
	for _, stage := range f.Stages {
		switch n := p[stage.Name]; {
		case f.Cores > 0:
			s.pools[stage.Name] = machine
		case stage.Name == EnvServer:
			s.pools[stage.Name] = newPool(f.Servers)
		default:
			s.pools[stage.Name] = newPool(n)
		}
	}
	if s.brokers = machine; f.Cores == 0 {
		s.brokers = newPool(f.Brokers)
	}
	s.emit()
	s.clock.run(func() bool { return s.version == warmUp+steps })
	return s.result()
}

type simulation struct {
	Fleet
	clock
	rng     *rand.Rand
	pools   map[string]*pool
	brokers *pool
	steps   int

	groups, open    int // emitted in all; rollouts of those that are open
	running         int
	waiting         []*group // of which a rollout has no slot
	held            int      // rollouts the packer holds
	packed, version int
	cut             float64 // when the newest step was cut
	trained         float64 // when the trainer is done with what it has

	began                    float64 // when the pipeline had filled
	idle                     float64
	busy                     map[*pool]float64 // when it had filled
	scored, handed, refilled []float64
}

type group struct {
	id, left int
}

// do gives a stage n rollouts' work, to the process that a key falls to, and calls then when it is done.
func (s *simulation) do(stage string, key, n int, then func()) {
	if s.Cores > 0 {
		key = anyone
	}
	s.at(s.pools[stage].work(s.now, key, float64(n)*s.stage(stage).CPU), then)
}

// send takes n rollouts' records, or a part of one's, over the broker that leads the partition that a key falls to.
func (s *simulation) send(topic string, key int, n float64, then func()) {
	t, leader := s.topic(topic), anyone
	if s.Cores == 0 {
		leader = key % t.Partitions
	}
	s.at(s.brokers.work(s.now, leader, n*s.leads(t))+s.Hop, then)
	for copy := 1; copy < s.Replicas; copy++ {
		s.brokers.work(s.now, leader+copy, n*t.Bytes/s.broker())
	}
}

// emit writes tasks as the emitter does: while there are permits, and the trainer keeps up.
func (s *simulation) emit() {
	for s.open+s.Group <= s.permits() && s.packed-s.version <= s.Ahead {
		s.open += s.Group
		g := &group{s.groups, s.Group}
		s.groups++
		s.do(Emitter, 0, s.Group, func() {
			s.send(Tasks, g.id, float64(s.Group), func() {
				s.refilled = append(s.refilled, s.now-s.cut)
				for range s.Group {
					s.play(g)
				}
			})
		})
	}
}

// play runs a rollout, in its turn.
func (s *simulation) play(g *group) {
	if s.running == s.Servers*s.Slots {
		s.waiting = append(s.waiting, g)
		return
	}
	s.running++
	takes := s.Mean * math.Exp(s.Sigma*s.rng.NormFloat64()-s.Sigma*s.Sigma/2)
	s.at(s.now+takes, func() {
		s.running--
		if len(s.waiting) > 0 {
			s.play(s.waiting[0])
			s.waiting = s.waiting[1:]
		}
		ended := s.now
		s.do(EnvServer, s.rng.IntN(s.Servers), 1, func() { s.send(Traces, g.id, 1, func() { s.score(g, ended) }) })
	})
}

func (s *simulation) score(g *group, ended float64) {
	s.do(Scorer, g.id, 1, func() {
		s.scored = append(s.scored, s.now-ended)
		if g.left--; g.left == 0 {
			s.send(Samples, g.id, float64(s.Group), func() { s.pack(ended) })
		}
	})
	for _, stage := range s.Stages { // those for which no rollout waits
		if !slices.Contains([]string{Emitter, EnvServer, Scorer, Packer}, stage.Name) {
			s.do(stage.Name, g.id, 1, func() {})
		}
	}
}

// pack takes a group, and cuts a step when there is enough for one. It is taken to do all its work at the cut, which is the worst case
// for who waits for the step. Its outcomes give the permits back.
func (s *simulation) pack(ended float64) {
	if s.held += s.Group; s.held < s.Batch {
		return
	}
	step := s.held
	s.held = 0
	s.do(Packer, 0, step, func() {
		s.packed++
		s.cut = s.now
		s.send(Outcomes, s.packed, float64(step), func() { s.open -= step; s.emit() })
		ranks := s.topic(Batches).Partitions
		missing := ranks
		for rank := range ranks {
			s.send(Batches, rank, float64(step)/float64(ranks), func() {
				if missing--; missing == 0 {
					s.handed = append(s.handed, s.now-ended)
					s.train()
				}
			})
		}
	})
}

func (s *simulation) train() {
	s.idle += max(0, s.now-s.trained)
	s.trained = max(s.now, s.trained) + s.Step
	s.at(s.trained, func() {
		if s.version++; s.version == warmUp {
			s.count()
		}
		s.emit()
	})
}

// count begins to count.
func (s *simulation) count() {
	s.began, s.idle, s.busy = s.now, 0, map[*pool]float64{s.brokers: s.brokers.busy}
	for _, p := range s.pools {
		s.busy[p] = p.busy
	}
	s.scored, s.handed, s.refilled = nil, nil, nil
}

func (s *simulation) result() Result {
	took := s.now - s.began
	part := func(p *pool) float64 { return (p.busy - s.busy[p]) / took / float64(len(p.free)) }
	r := Result{Rate: float64(s.steps*s.Batch) / took, Idle: s.idle / took, Busy: map[string]float64{"brokers": part(s.brokers)},
		Scored: spread(s.scored), Packed: spread(s.handed), Refilled: spread(s.refilled)}
	for name, p := range s.pools {
		r.Busy[name] = part(p)
	}
	return r
}

func spread(all []float64) Spread {
	if len(all) == 0 {
		return Spread{}
	}
	slices.Sort(all)
	return Spread{all[len(all)/2], all[len(all)*99/100]}
}
