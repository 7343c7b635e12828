package emitter

import (
	"math/rand/v2"
	"time"

	"github.com/prl-project/prl/pipeline"
)

// emitFree emits groups while there are permits, nothing goes stale by it (pace.go) and the trainer keeps up: not while
// more than max_async_level packed steps wait for it, and not when all steps are packed.
func (c *Core) emitFree(now time.Time, out *pipeline.Out) error {
	if c.packed-c.version > int64(c.run.MaxAsyncLevel) || c.packed >= c.run.MaxSteps {
		return nil
	}
	base, err := c.weights()
	if err != nil {
		return err
	}
	for tasks := 0; ; {
		weights := c.available(now, base)
		if weights == nil {
			return nil
		}
		before := *c.pcg
		env := c.envs[c.mix.Pick(weights, rand.New(c.pcg))]
		n := env.cfg.GroupSize
		if env.Info.GroupScoring {
			n = 1
		}
		// The draw is kept for later where there is no room for the group, so that large groups are not starved.
		if !c.fits(env) || c.held+env.cfg.GroupSize > c.permits || tasks > 0 && tasks+n > c.cfg.TasksPerTick {
			*c.pcg = before
			return nil
		}
		tasks += n
		c.write(c.begin(env), out)
	}
}

// weights is the mix as configured.
func (c *Core) weights() ([]float64, error) {
	envs := make([]MixEnv, len(c.envs))
	for i, env := range c.envs {
		envs[i] = MixEnv{Name: env.Name, Ratio: env.cfg.Ratio, TrainTasks: env.Info.TrainTasks}
	}
	return c.mix.Weights(envs)
}

// available is the mix of the environments that may get a group now: not lost, and not holding more than twice their
// share of the permits, one group at least, where the share is among those that are not lost. So they are never all
// above their bounds before the permits are used up. It is nil where no environment may.
func (c *Core) available(now time.Time, base []float64) []float64 {
	weights, alive, some := make([]float64, len(base)), 0.0, false
	for i, env := range c.envs {
		if now.Sub(env.heard) <= time.Duration(c.cfg.EnvLost) {
			weights[i] = base[i]
			alive += base[i]
		}
	}
	for i, env := range c.envs {
		most := max(2*weights[i]/alive*float64(c.permits), float64(env.cfg.GroupSize))
		if weights[i] > 0 && float64(env.held+env.cfg.GroupSize) > most {
			weights[i] = 0
		}
		some = some || weights[i] > 0
	}
	if !some {
		return nil
	}
	return weights
}
