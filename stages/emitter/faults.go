package emitter

import (
	"fmt"
	"time"

	"github.com/prl-project/prl/pipeline/faults"
)

// Faults implements pipeline.FaultKeeper: environments that none of whose servers has been heard of for env_lost.
func (c *Core) Faults() (kinds []faults.Fault, has []faults.Report) {
	kinds = []faults.Fault{faults.EnvServerDead}
	if c.final || !c.tables.Announced() {
		return kinds, nil // nothing is to be played; or the run has not begun, and Waiting says so
	}
	for _, env := range c.envs {
		if quiet := c.ticked.Sub(env.heard); !env.heard.IsZero() && quiet > time.Duration(c.cfg.EnvLost) {
			has = append(has, faults.Report{Fault: faults.EnvServerDead, About: env.Name,
				Why: fmt.Sprintf("no server of %s has been heard of for %v (emitter.env_lost), and %d of its rollouts are open", env.Name, quiet.Round(time.Second), env.held)})
		}
	}
	return kinds, has
}
