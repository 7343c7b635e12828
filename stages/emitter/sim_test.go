package emitter

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// sim is a run in time around an emitter: rollouts of long-tailed durations, a packer that sweeps and cuts, a trainer,
// servers that are behind, and outcomes that arrive late.
type sim struct {
	*world
	rng     *rand.Rand
	cfg     Config
	train   time.Duration // of a step
	slots   int           // rollouts that play at once
	filters float64       // share of groups without a sample

	clock    time.Duration
	queue    []*simRollout // waits for a slot
	playing  []*simRollout
	groups   map[int64]*simGroup
	held     []*simGroup
	packed   int64
	trained  int64 // newest version
	busy     time.Duration
	outcomes []simOutcome

	packedRollouts, stale, cancelled int
	oldest                           int64         // most off-policy steps of a packed sample
	length                           time.Duration // of all packed rollouts together
}

type simRollout struct {
	group  *simGroup
	length time.Duration
	end    time.Duration
	start  int64
}

type simGroup struct {
	id      int64
	size    int
	missing int
	length  time.Duration // of its rollouts together
	start   int64         // lowest policy version
	frozen  bool
	decided bool
}

type simOutcome struct {
	at    time.Duration
	group int64
	fate  string
	step  int64
}

const simTick = 100 * time.Millisecond

// newSim is a run of one environment, and with frozen of another one that a frozen policy plays.
func newSim(t *testing.T, seed uint64, run pipeline.RunConfig, cfg Config, size int, frozen bool) *sim {
	env := DefaultEnvConfig()
	env.GroupSize = size
	envs := map[string]EnvConfig{"catch": env}
	if frozen {
		env.Policy = "base"
		envs["wordle"] = env
	}
	s := &sim{
		world: newWorld(t, run, cfg, envs), rng: rand.New(rand.NewPCG(seed, 77)), cfg: cfg,
		train: 4 * time.Second, slots: 1 << 20, filters: 0.2, groups: map[int64]*simGroup{},
	}
	s.table(policy(0, false))
	return s
}

// pareto is a duration of at least two seconds: half are above 3.2 s, one in a hundred above 43 s.
func (s *sim) pareto() time.Duration {
	return time.Duration(math.Min(120, 2*math.Pow(1-s.rng.Float64(), -1/1.5)) * float64(time.Second))
}

// advance plays a tick.
func (s *sim) advance() {
	s.clock += simTick
	s.table(info("catch", 1000))
	s.table(info("wordle", 500))
	for len(s.outcomes) > 0 && s.outcomes[0].at <= s.clock {
		o := s.outcomes[0]
		s.outcomes = s.outcomes[1:]
		rec := &schemas.GroupOutcome{Env: s.world.groups[o.group].Env, GroupID: o.group, Fate: o.fate}
		if o.fate == schemas.FatePacked {
			rec.Step = &o.step
		}
		s.feed(pipeline.TopicOutcomes, s.offset(), rec)
	}
	for _, e := range s.tick(simTick) {
		task, ok := e.Value.(*schemas.Task)
		if !ok {
			s.t.Fatalf("%T after %v", e.Value, s.clock)
		}
		g := s.groups[task.GroupID]
		if g == nil {
			g = &simGroup{id: task.GroupID, size: task.GroupSize, missing: task.GroupSize, start: math.MaxInt64, frozen: task.Policy != ""}
			s.groups[task.GroupID] = g
		}
		s.queue = append(s.queue, &simRollout{group: g})
	}
	s.play()
	if s.busy > 0 {
		if s.busy -= simTick; s.busy <= 0 {
			s.trained++
			s.table(policy(s.trained, false))
		}
	}
	if s.busy <= 0 && s.packed > s.trained {
		s.busy = s.train
	}
}

// play starts rollouts, cancels those whose samples would all be stale, as an environment server does, and ends others.
func (s *sim) play() {
	for len(s.playing) < s.slots && len(s.queue) > 0 {
		r := s.queue[0]
		s.queue = s.queue[1:]
		if r.group.decided {
			continue
		}
		r.length = s.pareto()
		r.end = s.clock + r.length
		r.start = max(0, s.trained-s.rng.Int64N(int64(s.cfg.ServingLag)+1))
		s.playing = append(s.playing, r)
	}
	slices.SortFunc(s.playing, func(a, b *simRollout) int { return cmp.Compare(a.end, b.end) })
	still := s.playing[:0]
	for _, r := range s.playing {
		switch {
		case r.group.decided:
		case !r.group.frozen && s.trained-r.start > int64(s.run.MaxOffPolicySteps):
			s.cancelled++
			s.decide(r.group, schemas.FateStale)
		case r.end <= s.clock:
			r.group.start = min(r.group.start, r.start)
			r.group.length += r.length
			if r.group.missing--; r.group.missing == 0 {
				s.finish(r.group)
			}
		default:
			still = append(still, r)
		}
	}
	s.playing = still
}

// finish hands a group to the packer.
func (s *sim) finish(g *simGroup) {
	switch {
	case s.rng.Float64() < s.filters:
		s.decide(g, schemas.FateFiltered)
		return
	case !g.frozen && s.packed-g.start > int64(s.run.MaxOffPolicySteps):
		s.decide(g, schemas.FateStale)
		return
	}
	s.held = append(s.held, g)
	rollouts := 0
	for _, g := range s.held {
		rollouts += g.size
	}
	if rollouts < s.run.BatchSize {
		return
	}
	s.packed++
	for _, g := range s.held {
		s.packedRollouts += g.size
		s.length += g.length
		if !g.frozen {
			s.oldest = max(s.oldest, s.packed-1-g.start)
		}
		s.decide(g, schemas.FatePacked)
	}
	s.held = nil
}

func (s *sim) decide(g *simGroup, fate string) {
	if fate == schemas.FateStale {
		s.stale++
	}
	g.decided = true
	at := s.clock + time.Duration(s.rng.IntN(1000))*time.Millisecond
	if n := len(s.outcomes); n > 0 {
		at = max(at, s.outcomes[n-1].at)
	}
	s.outcomes = append(s.outcomes, simOutcome{at, g.id, fate, s.packed})
}

// TestInvariant_NothingStale: under StalenessWait no rollout is dropped or cancelled for its age, whatever finishes first,
// and the run gets to its end; under StalenessDrop the same rollouts go stale.
func TestInvariant_NothingStale(t *testing.T) {
	lost := 0
	for seed := range uint64(16) {
		rng := rand.New(rand.NewPCG(seed, 78))
		run, cfg := testRun(), DefaultConfig()
		size := 1 + rng.IntN(9)
		run.BatchSize = 1 + rng.IntN(60)
		run.MaxAsyncLevel = 1 + rng.IntN(2)
		run.MaxOffPolicySteps = run.MaxAsyncLevel + rng.IntN(3)
		run.MaxSteps = 50
		cfg.Staleness, cfg.ServingLag = StalenessWait, rng.IntN(run.MaxOffPolicySteps+1)
		if rng.IntN(2) == 0 {
			cfg.Permits = run.BatchSize + size + rng.IntN(200)
		}
		setting := func() *sim {
			s := newSim(t, seed, run, cfg, size, seed%3 == 2)
			s.train = time.Duration(1+rng.IntN(6)) * time.Second
			s.slots = 4 + rng.IntN(100)
			return s
		}
		s := setting()
		for s.packed < run.MaxSteps {
			s.advance()
			if rng.IntN(500) == 0 {
				s.r.Restart(t)
			}
			if s.clock > 3*time.Hour {
				t.Fatalf("seed %d: stuck after %d steps with %d rollouts open", seed, s.packed, s.core().held)
			}
		}
		if s.stale > 0 || s.cancelled > 0 || s.oldest > int64(run.MaxOffPolicySteps) {
			t.Errorf("seed %d: %d groups stale, %d rollouts cancelled, samples up to %d steps old of %d", seed, s.stale, s.cancelled, s.oldest, run.MaxOffPolicySteps)
		}
		cfg.Staleness, cfg.ServingLag = StalenessDrop, DefaultConfig().ServingLag
		for s = setting(); s.packed < run.MaxSteps && s.clock < time.Hour; {
			s.advance()
		}
		if s.stale > 0 {
			lost++
		}
	}
	if lost < 8 {
		t.Errorf("dropping lost a group in %d of 16 runs: the durations are no challenge", lost)
	}
}

// TestWaitingCosts measures what StalenessWait trades: the table in README.md.
func TestWaitingCosts(t *testing.T) {
	for _, most := range []int{1, 2, 4, 8} {
		for _, staleness := range []string{StalenessDrop, StalenessWait} {
			run, cfg := testRun(), DefaultConfig()
			run.BatchSize, run.MaxAsyncLevel, run.MaxOffPolicySteps, run.MaxSteps = 64, 1, most, 1<<30
			cfg.Staleness = staleness
			s := newSim(t, 1, run, cfg, 8, false)
			for s.clock < 1000*time.Second {
				s.advance()
			}
			started := len(s.world.groups) * 8
			t.Logf("max_off_policy_steps %d, %s: %d steps, %d of %d rollouts trained, of %.1f s each, %d groups stale",
				most, staleness, s.packed, s.packedRollouts, started, s.length.Seconds()/float64(s.packedRollouts), s.stale)
			if staleness == StalenessWait && s.stale > 0 {
				t.Errorf("%d groups stale", s.stale)
			}
		}
	}
}
