package emitter

import "github.com/prl-project/prl/pipeline"

// Open reads from an emitter's state how many groups have no outcome, and how many rollouts they have.
func Open(run pipeline.RunConfig, cfg Config, envs map[string]EnvConfig, state []byte) (groups, rollouts int, err error) {
	c, err := newCore(run, cfg, envs, state)
	if err != nil {
		return 0, 0, err
	}
	return len(c.open), c.held, nil
}
