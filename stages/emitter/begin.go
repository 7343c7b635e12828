package emitter

import (
	"fmt"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/internal/schedule"
)

// Before reports whether a state of another run's emitter is from before a step's end: before anything was asked for that
// comes behind it, in ordered mode, and before the step was known to be packed otherwise.
func Before(run pipeline.RunConfig, cfg Config, envs map[string]EnvConfig, state []byte, step int64) (bool, error) {
	c, err := another(run, cfg, envs, state)
	if err != nil {
		return false, err
	}
	if c.waves.step > 0 {
		return c.waves.step <= step, nil
	}
	return c.packed < step, nil
}

// Begin is the state of the emitter of a run that begins after a step of another one, whose state it was then (nil where
// there is none): generator, ids and the environments' cursors go on from there, so that in ordered mode the same settings
// make the same tasks. What was open there is not asked for again. next is the first id.
func Begin(run pipeline.RunConfig, cfg Config, envs map[string]EnvConfig, state []byte, after int64) (begun []byte, next int64, err error) {
	c, err := another(run, cfg, envs, state)
	if err != nil {
		return nil, 0, err
	}
	c.open, c.held, c.clock = nil, 0, schedule.Clock{}
	c.packed, c.waves = after, waves{}
	if run.Ordered() {
		c.waves.step = after
	}
	begun, err = c.State()
	return begun, c.nextID, err
}

// another is an emitter with what it can use of the state of another run's.
func another(run pipeline.RunConfig, cfg Config, envs map[string]EnvConfig, state []byte) (*Core, error) {
	if err := Validate(run, cfg, envs); err != nil {
		return nil, err
	}
	c, err := newCore(run, cfg, envs, nil)
	if err != nil || state == nil {
		return c, err
	}
	c.another = true
	if err := c.restore(state); err != nil {
		return nil, fmt.Errorf("state of the other run's emitter: %w", err)
	}
	return c, nil
}
