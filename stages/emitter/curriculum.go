package emitter

import (
	"fmt"
	"maps"
	"slices"
)

// A curriculum chooses which task of an environment comes next. All of them go through the tasks by the environment's
// cursor; what they add is learnt from the outcomes of groups.
//
// What it chooses follows from its state and the calls alone, so that a restart changes nothing. In ordered mode it is
// the same in every run of a seed: the packer writes the outcomes of a step together, in the order of the group ids, and
// the emitter has read them all before the next step begins.
type curriculum interface {
	// next is the index of the next task of n, at least 1. n may change between calls.
	next(n int64) int64
	// learn takes the rewards of a group that was scored: of the rollouts that have one; far from infinite.
	learn(task int64, rewards []float64)
	// appendState adds all but the cursor to b.
	appendState(b []byte) []byte
	// restore reads what appendState wrote.
	restore(r *reader)
}

// Kinds of curricula.
const (
	// CurriculumShuffled serves all tasks in a random order, then all in another one.
	CurriculumShuffled = "shuffled"
	// CurriculumPools mixes easy, normal and hard tasks by shares (pools.go).
	CurriculumPools = "pools"
	// CurriculumGate passes over tasks whose rollouts had nothing to tell apart (gate.go).
	CurriculumGate = "gate"
)

var curricula = map[string]func(CurriculumConfig, *cursor) curriculum{
	CurriculumShuffled: func(_ CurriculumConfig, c *cursor) curriculum { return shuffled{c} },
	CurriculumPools:    func(cfg CurriculumConfig, c *cursor) curriculum { return newPools(cfg, c) },
	CurriculumGate:     func(cfg CurriculumConfig, c *cursor) curriculum { return newGate(cfg, c) },
}

// CurriculumConfig is a section [envs.<name>.curriculum].
type CurriculumConfig struct {
	// Kind is CurriculumShuffled, CurriculumPools or CurriculumGate.
	Kind string `toml:"kind"`
	// Remember is the largest number of tasks that pools and gate remember something of: 2 to 4 bytes each in every record
	// of the emitter's state. Beyond it a random one is forgotten, and is as if it had never been played.
	Remember int         `toml:"remember"`
	Pools    PoolsConfig `toml:"pools"`
	Gate     GateConfig  `toml:"gate"`
}

// maxRemember keeps a state record far below the size of a record.
const maxRemember = 1 << 16

// DefaultCurriculumConfig shuffles.
func DefaultCurriculumConfig() CurriculumConfig {
	return CurriculumConfig{Kind: CurriculumShuffled, Remember: 4096, Pools: DefaultPoolsConfig(), Gate: DefaultGateConfig()}
}

// validate checks the section at the given path.
func (c CurriculumConfig) validate(path string, groupSize int) error {
	d := DefaultCurriculumConfig()
	switch {
	case curricula[c.Kind] == nil:
		return fmt.Errorf("%s.kind = %q: one of %q", path, c.Kind, slices.Sorted(maps.Keys(curricula)))
	case c.Remember < 1 || c.Remember > maxRemember:
		return fmt.Errorf("%s.remember = %d: 1 to %d", path, c.Remember, maxRemember)
	case c.Remember != d.Remember && c.Kind == CurriculumShuffled:
		return fmt.Errorf("%s.remember: only with kind = %q or %q", path, CurriculumPools, CurriculumGate)
	case c.Pools != d.Pools && c.Kind != CurriculumPools:
		return fmt.Errorf("%s.pools: only with kind = %q", path, CurriculumPools)
	case c.Gate != d.Gate && c.Kind != CurriculumGate:
		return fmt.Errorf("%s.gate: only with kind = %q", path, CurriculumGate)
	case c.Kind == CurriculumGate && groupSize < 2:
		return fmt.Errorf("%s.kind = %q with group_size = %d: a rollout alone has no range of rewards", path, c.Kind, groupSize)
	}
	if err := c.Pools.validate(path + ".pools"); err != nil {
		return err
	}
	return c.Gate.validate(path + ".gate")
}

// shuffled is the cursor and nothing else.
type shuffled struct{ *cursor }

func (shuffled) learn(int64, []float64)      {}
func (shuffled) appendState(b []byte) []byte { return b }
func (shuffled) restore(*reader)             {}
