package packer

import (
	"encoding/json"

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
	Fates   map[string]int64
	Rewards map[string]mean // by environment
}

type mean struct {
	Sum float64
	N   int64
}

func (t *tally) count(env, fate string, rollouts []schemas.RolloutFate) {
	if t.Fates == nil {
		t.Fates, t.Rewards = map[string]int64{}, map[string]mean{}
	}
	t.Fates[fate]++
	m := t.Rewards[env]
	for _, r := range rollouts {
		if r.Reward != nil {
			m.Sum += *r.Reward
			m.N++
		}
	}
	if m.N > 0 {
		t.Rewards[env] = m
	}
}
