package emitter

import (
	"fmt"
	"slices"

	"github.com/prl-project/prl/stages/internal/schedule"
)

// GateConfig is a section [envs.<name>.curriculum.gate].
//
// The range of a group is its largest reward less its smallest. Where all rollouts earn the same, advantages are zero and
// the group teaches nothing; DAPO's dynamic sampling (arXiv:2503.14476, section 3.2) draws on until the batch has none of
// them. Here a task whose last group had a range outside the bounds is passed over for a few epochs: it is then that the
// policy has changed enough for the task to be worth another try.
type GateConfig struct {
	// MinRange is the range that a group must exceed.
	MinRange float64 `toml:"min_range"`
	// MaxRange is the largest range that a group may have; 0 for no bound.
	MaxRange float64 `toml:"max_range"`
	// PassOver is the number of epochs in which a task outside the bounds does not come.
	PassOver int `toml:"pass_over"`
}

// DefaultGateConfig passes over what all rollouts did equally well, twice.
func DefaultGateConfig() GateConfig { return GateConfig{PassOver: 2} }

func (c GateConfig) validate(path string) error {
	switch {
	case !(c.MinRange >= 0 && c.MaxRange >= 0 && c.MinRange < 1e9 && c.MaxRange < 1e9) || c.MaxRange != 0 && c.MaxRange <= c.MinRange:
		return fmt.Errorf("%s: min_range = %v, max_range = %v: 0 or more, and max_range 0 or above min_range", path, c.MinRange, c.MaxRange)
	case c.PassOver < 1 || c.PassOver > 1000:
		return fmt.Errorf("%s.pass_over = %d: 1 to 1000", path, c.PassOver)
	}
	return nil
}

// gate is CurriculumGate.
type gate struct {
	*cursor
	cfg GateConfig
	// until is the epoch in which a task comes again.
	until memory
}

func newGate(cfg CurriculumConfig, c *cursor) *gate {
	return &gate{cursor: c, cfg: cfg.Gate, until: memory{most: cfg.Remember}}
}

// next passes over tasks until their epoch has come. Where it would pass over all, it serves them as they come.
func (g *gate) next(n int64) int64 {
	closed := int64(0)
	for _, r := range g.until.tasks {
		if r.task < n && r.value > g.epoch {
			closed++
		}
	}
	for {
		task := g.cursor.next(n)
		switch until, ok := g.until.get(task); {
		case !ok || closed >= n:
			return task
		case until <= g.epoch:
			g.until.forget(task)
			return task
		}
	}
}

func (g *gate) learn(task int64, rewards []float64) {
	if len(rewards) < 2 {
		return
	}
	span := slices.Max(rewards) - slices.Min(rewards)
	if span > g.cfg.MinRange && (g.cfg.MaxRange == 0 || span <= g.cfg.MaxRange) {
		g.until.forget(task)
		return
	}
	g.until.set(task, g.epoch+int64(g.cfg.PassOver)+1, schedule.Mix(g.key, schedule.Word("forget"), uint64(task), uint64(g.epoch), uint64(g.pos)))
}

func (g *gate) appendState(b []byte) []byte { return g.until.appendState(b) }

func (g *gate) restore(r *reader) { g.until.restore(r) }
