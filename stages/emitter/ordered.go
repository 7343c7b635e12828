package emitter

import (
	"math/rand/v2"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// waves are the waves of the step that is being made in ordered mode.
type waves struct {
	step    int64      // 0 before the first
	ranges  [][2]int64 // first and last group id of each wave
	missing int        // rollouts that the next wave must cover; 0 for no wave
}

// request takes the packer's request for the next wave of the current step. Any other has been honoured or is over.
func (w *waves) request(step int64, wave, rollouts int) {
	if step == w.step && wave == len(w.ranges)+1 && w.missing == 0 && step > 0 && rollouts > 0 {
		w.missing = rollouts
	}
}

// mark writes the wave of a task's group into the task. Outside ordered mode there is none.
func (w *waves) mark(t *schemas.Task) {
	for i, r := range w.ranges {
		if r[0] <= t.GroupID && t.GroupID <= r[1] {
			pin := w.step - 1
			t.PinVersion, t.Step, t.Wave, t.WaveFirst, t.WaveLast = &pin, w.step, i+1, r[0], r[1]
		}
	}
}

// emitWave emits the first wave of step s once version s-1 is there and every group of step s-1 has its outcome, and
// further waves when they are asked for: whole groups until they cover the missing rollouts. What is emitted is a
// function of the ids before it, so the mix is as configured: an environment that is silent is waited for.
func (c *Core) emitWave(out *pipeline.Out) error {
	if c.waves.missing == 0 {
		if len(c.open) > 0 || c.version < c.waves.step || c.waves.step >= c.run.MaxSteps {
			return nil
		}
		c.waves = waves{step: c.waves.step + 1, missing: c.run.BatchSize}
	}
	weights, err := c.weights()
	if err != nil {
		return err
	}
	var groups []*group
	rng := rand.New(c.pcg)
	for c.waves.missing > 0 {
		g := c.begin(c.envs[c.mix.Pick(weights, rng)])
		c.waves.missing -= g.size
		groups = append(groups, g)
	}
	c.waves.missing = 0
	c.waves.ranges = append(c.waves.ranges, [2]int64{groups[0].id, groups[len(groups)-1].id})
	for _, g := range groups {
		c.write(g, out)
	}
	return nil
}
