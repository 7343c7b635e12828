package packer

import (
	"encoding/json"
	"math"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/idset"
)

// state is what finished groups have left behind.
type state struct {
	// Step is the last one cut; 0 before the first.
	Step int64
	// Next is the first group id of the next step, and Size the rollouts of a group of the last; ordered mode only.
	Next int64
	Size int
	// Decided is the bytes of decided.
	Decided []byte
	Since   tally

	decided idset.Set
}

func readState(b []byte) (s state, err error) {
	if len(b) > 0 {
		if err := json.Unmarshal(b, &s); err != nil {
			return s, err
		}
	}
	s.decided, err = idset.FromBytes(s.Decided)
	return s, err
}

func (s *state) bytes() ([]byte, error) {
	s.Decided = s.decided.Bytes()
	return json.Marshal(s)
}

// A tally is what the metrics of the next step count: everything decided since the last one.
type tally struct {
	Fates     map[string]int64
	Rewards   map[string]mean  // by environment
	Monitored map[string]int64 // SampleGroup.monitored, by filter
	Packed    map[string]kind  // rollouts that were packed, by environment
	Stale     map[string]kind  // rollouts that went stale, by environment
}

type mean struct {
	Sum float64
	N   int64
}

// largest is the largest value that counts, so that no sum of them is infinite: a state holds none that JSON cannot.
const largest = 1e100

func (m *mean) add(v float64) {
	if math.Abs(v) <= largest {
		m.Sum += v
		m.N++
	}
}

// value is of one value at least.
func (m mean) value() float64 { return m.Sum / float64(m.N) }

// A kind says what rollouts of one fate are like.
type kind struct {
	Rollouts int64
	Tokens   mean // of those that came to their end
	Reward   mean // of those that have one
}

// count adds a group whose rollouts have their fates.
func (t *tally) count(g *schemas.SampleGroup, fate string, rollouts []schemas.RolloutFate) {
	t.Fates = change(t.Fates, fate, func(n *int64) { *n++ })
	for filter, samples := range g.Monitored {
		t.Monitored = change(t.Monitored, filter, func(n *int64) { *n += samples })
	}
	for i := range rollouts {
		r := &rollouts[i]
		if r.Reward != nil {
			t.Rewards = change(t.Rewards, g.Env, func(m *mean) { m.add(*r.Reward) })
		}
		switch r.Fate {
		case schemas.FatePacked:
			t.Packed = change(t.Packed, g.Env, func(k *kind) { k.add(r) })
		case schemas.FateStale:
			t.Stale = change(t.Stale, g.Env, func(k *kind) { k.add(r) })
		}
	}
}

func (k *kind) add(r *schemas.RolloutFate) {
	k.Rollouts++
	if r.Error == "" {
		k.Tokens.add(float64(r.Tokens))
	}
	if r.Reward != nil {
		k.Reward.add(*r.Reward)
	}
}

// change changes the value of a key, in a map that may not be there yet.
func change[V any](m map[string]V, key string, by func(*V)) map[string]V {
	if m == nil {
		m = map[string]V{}
	}
	v := m[key]
	by(&v)
	m[key] = v
	return m
}
