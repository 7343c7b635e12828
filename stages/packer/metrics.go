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
	trained       int64 // tokens in a loss
	offPolicyMost int64
	offPolicySum  int64 // over samples of a policy with versions
	versioned     int64 // number of those
}

// countRollouts counts the rollouts of a group's samples, which are in the order of rollouts.
func (f *stepFigures) countRollouts(samples []*schemas.Sample) {
	for i := range samples {
		if i == 0 || samples[i].RolloutIndex != samples[i-1].RolloutIndex {
			f.rollouts++
		}
	}
}

// emitMetrics writes the figures of a step:
//
//	reward {env}              mean reward of all rollouts decided since the last step, whatever became of them
//	groups {fate}             groups decided since the last step
//	monitored {filter}        samples of those that the filter took: all where it only monitors, else those of groups that
//	                          are trained
//	fate_rollouts {env, fate} rollouts decided since the last step, of fate packed or stale: dropping the stale leans
//	                          towards what is quick, and these three say how far
//	fate_tokens {env, fate}   mean tokens of those that came to their end
//	fate_reward {env, fate}   mean reward of those that have one
//	rollouts                  that have a sample in the step
//	tokens                    in the step
//	trained_tokens            of those, that are in a loss
//	padding                   share of the micro-batches' room (seq_len each) that holds no token
//	off_policy_max            off-policy steps of the step's samples
//	off_policy_mean
func (c *Core) emitMetrics(f stepFigures, out *pipeline.Out) {
	emit := func(name string, value float64, labels map[string]string) {
		out.Emit(pipeline.TopicMetrics, &schemas.MetricPoint{Name: name, Stage: "packer", Step: &f.step, Value: value, Labels: labels})
	}
	since := &c.state.Since
	for _, env := range slices.Sorted(maps.Keys(since.Rewards)) {
		if r := since.Rewards[env]; r.N > 0 {
			emit("reward", r.value(), map[string]string{"env": env})
		}
	}
	for _, fate := range slices.Sorted(maps.Keys(since.Fates)) {
		emit("groups", float64(since.Fates[fate]), map[string]string{"fate": fate})
	}
	for _, filter := range slices.Sorted(maps.Keys(since.Monitored)) {
		emit("monitored", float64(since.Monitored[filter]), map[string]string{"filter": filter})
	}
	for _, by := range []struct {
		fate  string
		kinds map[string]kind
	}{{schemas.FatePacked, since.Packed}, {schemas.FateStale, since.Stale}} {
		for _, env := range slices.Sorted(maps.Keys(by.kinds)) {
			k, labels := by.kinds[env], map[string]string{"env": env, "fate": by.fate}
			emit("fate_rollouts", float64(k.Rollouts), labels)
			if k.Tokens.N > 0 {
				emit("fate_tokens", k.Tokens.value(), labels)
			}
			if k.Reward.N > 0 {
				emit("fate_reward", k.Reward.value(), labels)
			}
		}
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
