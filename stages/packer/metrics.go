package packer

import (
	"maps"
	"slices"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// stepFigures are what the metrics of a step say about its batch.
type stepFigures struct {
	step          int64
	rollouts      int   // with a sample in the step
	tokens, room  int   // packed, and that the micro-batches could hold
	trained       int64 // tokens
	offPolicyMost int64
	offPolicySum  int64 // over samples of a policy with versions
	versioned     int64 // number of those
}

// countRollouts counts the rollouts of a group's samples, which are in the order of rollouts.
func (f *stepFigures) countRollouts(samples []schemas.Sample) {
	for i := range samples {
		if i == 0 || samples[i].RolloutIndex != samples[i-1].RolloutIndex {
			f.rollouts++
		}
	}
}

// emitMetrics writes the figures of a step:
//
//	reward {env}      mean reward of all rollouts decided since the last step, whatever became of them
//	groups {fate}     groups decided since the last step
//	rollouts          that have a sample in the step
//	tokens            in the step
//	trained_tokens    of those, that carry loss
//	padding           share of the micro-batches' room (seq_len each) that holds no token
//	off_policy_max    off-policy steps of the step's samples
//	off_policy_mean
func (c *Core) emitMetrics(f stepFigures, out *pipeline.Out) {
	emit := func(name string, value float64, labels map[string]string) {
		out.Emit(pipeline.TopicMetrics, &schemas.MetricPoint{Name: name, Stage: "packer", Step: &f.step, Value: value, Labels: labels})
	}
	for _, env := range slices.Sorted(maps.Keys(c.state.Since.Rewards)) {
		m := c.state.Since.Rewards[env]
		emit("reward", m.Sum/float64(m.N), map[string]string{"env": env})
	}
	for _, fate := range slices.Sorted(maps.Keys(c.state.Since.Fates)) {
		emit("groups", float64(c.state.Since.Fates[fate]), map[string]string{"fate": fate})
	}
	emit("rollouts", float64(f.rollouts), nil)
	emit("tokens", float64(f.tokens), nil)
	emit("trained_tokens", float64(f.trained), nil)
	emit("padding", float64(f.room-f.tokens)/float64(f.room), nil)
	emit("off_policy_max", float64(f.offPolicyMost), nil)
	if f.versioned > 0 {
		emit("off_policy_mean", float64(f.offPolicySum)/float64(f.versioned), nil)
	}
}
