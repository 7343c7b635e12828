package emitter

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/prl-project/prl/stages/internal/schedule"
)

// PoolsConfig is a section [envs.<name>.curriculum.pools].
//
// A task's solve rate is the mean reward of its groups in parts of SolvedAt, cut to [0, 1], as a moving average. It says
// whether the task is easy, normal or hard; a task that was never played is normal. For each group a pool is drawn by the
// three shares, and from the pool the next task: none again before all of the pool have come. Where the pool is empty,
// normal, hard and easy are tried in this order.
type PoolsConfig struct {
	// Easy, Normal and Hard are the shares of groups, in any unit.
	Easy   float64 `toml:"easy"`
	Normal float64 `toml:"normal"`
	Hard   float64 `toml:"hard"`
	// EasyAt is the least solve rate of an easy task, HardAt the highest of a hard one.
	EasyAt float64 `toml:"easy_at"`
	HardAt float64 `toml:"hard_at"`
	// SolvedAt is the reward of a solved rollout.
	SolvedAt float64 `toml:"solved_at"`
	// Rate is the weight of the newest group in a task's average; 1 for no average. The average is kept in steps of 1/127.
	Rate float64 `toml:"rate"`
}

// DefaultPoolsConfig spends a fifth of the groups on what is mastered and on what is out of reach (pools of this kind
// trained INTELLECT-3, arXiv:2512.16144).
func DefaultPoolsConfig() PoolsConfig {
	return PoolsConfig{Easy: 0.1, Normal: 0.8, Hard: 0.1, EasyAt: 0.8, HardAt: 0.2, SolvedAt: 1, Rate: 0.5}
}

func (c PoolsConfig) validate(path string) error {
	switch {
	case !(c.Easy >= 0 && c.Normal >= 0 && c.Hard >= 0 && c.Easy+c.Normal+c.Hard > 0 && c.Easy+c.Normal+c.Hard < 1e9):
		return fmt.Errorf("%s: easy = %v, normal = %v, hard = %v: 0 or more, and not all 0", path, c.Easy, c.Normal, c.Hard)
	case !(c.HardAt >= 0 && c.HardAt < c.EasyAt && c.EasyAt <= 1):
		return fmt.Errorf("%s: hard_at = %v, easy_at = %v: 0 ≤ hard_at < easy_at ≤ 1", path, c.HardAt, c.EasyAt)
	case !(c.SolvedAt > 0 && c.SolvedAt < 1e9):
		return fmt.Errorf("%s.solved_at = %v: above 0", path, c.SolvedAt)
	case !(c.Rate >= 0.05 && c.Rate <= 1):
		return fmt.Errorf("%s.rate = %v: 0.05 to 1", path, c.Rate)
	}
	return nil
}

// solved is the value in memory of a solve rate of 1. It takes one byte.
const solved = 127

type pool int

const (
	normal pool = iota
	hard
	easy
)

// pools is CurriculumPools.
//
// The normal pool is what the cursor comes to and is not in another one, so that it costs nothing to hold a million tasks
// never played. The others are searched for the next task in the order of a hash of the epoch of their own.
type pools struct {
	*cursor
	cfg   PoolsConfig
	draws int64      // groups so far
	turns [3]turn    // of hard and easy
	rates memory     // of the tasks played; solved for 1
	share [3]float64 // of each pool
}

// turn is how far a pool has been served.
type turn struct {
	epoch int64
	at    int64 // hash of the task served last
}

func newPools(cfg CurriculumConfig, c *cursor) *pools {
	return &pools{
		cursor: c, cfg: cfg.Pools, rates: memory{most: cfg.Remember},
		share: [3]float64{normal: cfg.Pools.Normal, hard: cfg.Pools.Hard, easy: cfg.Pools.Easy},
	}
}

// of is the pool of a solve rate in parts of solved.
func (p *pools) of(rate int64) pool {
	switch r := float64(rate) / solved; {
	case r >= p.cfg.EasyAt:
		return easy
	case r <= p.cfg.HardAt:
		return hard
	default:
		return normal
	}
}

func (p *pools) next(n int64) int64 {
	for _, which := range []pool{p.draw(), normal, hard, easy} {
		if task, ok := p.from(which, n); ok {
			return task
		}
	}
	return p.cursor.next(n) // not reached: every task is in one of the pools
}

func (p *pools) draw() pool {
	p.draws++
	u := float64(schedule.Mix(p.key, schedule.Word("pool"), uint64(p.draws))>>11) / (1 << 53) * (p.share[normal] + p.share[hard] + p.share[easy])
	for _, which := range []pool{normal, hard} {
		if u < p.share[which] {
			return which
		}
		u -= p.share[which]
	}
	return easy
}

// from is the next task of a pool, if it has one.
func (p *pools) from(which pool, n int64) (int64, bool) {
	if which == normal {
		return p.fromNormal(n)
	}
	t, word := &p.turns[which], schedule.Word("turn")
	for range 2 { // the second time from the start of the next epoch
		task, least := int64(-1), int64(math.MaxInt64)
		for _, r := range p.rates.tasks {
			at := int64(schedule.Mix(p.key, word, uint64(which), uint64(t.epoch), uint64(r.task)) >> 2)
			if r.task < n && p.of(r.value) == which && at > t.at && at < least {
				task, least = r.task, at
			}
		}
		if task >= 0 {
			t.at = least
			return task, true
		}
		*t = turn{epoch: t.epoch + 1}
	}
	return 0, false
}

func (p *pools) fromNormal(n int64) (int64, bool) {
	others := int64(0)
	for _, r := range p.rates.tasks {
		if r.task < n && p.of(r.value) != normal {
			others++
		}
	}
	if others == n {
		return 0, false
	}
	for {
		task := p.cursor.next(n)
		if rate, ok := p.rates.get(task); !ok || p.of(rate) == normal {
			return task, true
		}
	}
}

func (p *pools) learn(task int64, rewards []float64) {
	if len(rewards) == 0 {
		return
	}
	rate := solved * min(1, max(0, mean(rewards)/p.cfg.SolvedAt))
	if before, ok := p.rates.get(task); ok {
		rate = float64(before) + p.cfg.Rate*(rate-float64(before))
	}
	p.rates.set(task, int64(math.Round(rate)), schedule.Mix(p.key, schedule.Word("forget"), uint64(task), uint64(p.draws)))
}

// mean of at least one number; it does not overflow.
func mean(values []float64) float64 {
	m := 0.0
	for _, v := range values {
		m += v / float64(len(values))
	}
	return m
}

func (p *pools) appendState(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(p.draws))
	for _, t := range []turn{p.turns[hard], p.turns[easy]} {
		b = binary.AppendUvarint(b, uint64(t.epoch))
		b = binary.AppendUvarint(b, uint64(t.at))
	}
	return p.rates.appendState(b)
}

func (p *pools) restore(r *reader) {
	p.draws = r.uint()
	for _, which := range []pool{hard, easy} {
		p.turns[which] = turn{r.uint(), r.uint()}
	}
	p.rates.restore(r)
}
