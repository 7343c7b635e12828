package emitter

// Staleness.
//
// A sample may be trained in step s if (s-1) - policy_start ≤ max_off_policy_steps (I3). Who emits far ahead finds some
// rollouts too old when their step comes. StalenessDrop lets the packer drop those: the trainer never waits for a slow
// rollout, but what it sees is biased against long ones. StalenessWait paces the emission so that nothing goes stale: no
// rollout is lost, and the trainer waits for stragglers.
//
// The bound of StalenessWait. All groups have n rollouts, a step takes B = batch_size. P is the newest packed step, H the
// rollouts of the open groups, among them those the packer holds. A step is cut when it holds B rollouts, and takes all
// that are held. So before an open group g is packed, others of now can fill at most ⌊(H - n) / B⌋ steps, whatever
// finishes first, and g is trained in step P + ⌊(H - n) / B⌋ + 1 at the latest. With v the newest version at its
// emission, its policy_start is at least v - serving_lag (and 0), so it is not stale if
//
//	⌊(H - n) / B⌋ ≤ slack(g) = max_off_policy_steps + max(0, v - serving_lag) - P.   (1)
//
// A cut takes at least B of H and adds 1 to P, and any other outcome lowers H: (1) goes on to hold. Only an emission adds
// n to H, so a group is emitted when ⌊H / B⌋ ≤ slack(g) for each open g, and for itself. That P and H are read off the
// outcomes late changes nothing: steps that have been cut meanwhile are among those counted.
//
// There is no deadlock: with H < B, (1) says slack(g) ≥ 0 and every emission is allowed as soon as the trainer has caught
// up with P; with H ≥ B a step comes when the open groups end, and each has a deadline. That needs groups of one size: if
// a group of more rollouts than n could come, it could fill g's last step without g, and if it must not come, g could
// wait in the packer for a step that is never full.
//
// A group for which (1) is broken holds nothing up: it may be stale already, or it is in the step whose first outcome has
// just been read. It is also how groups from a state of format 1 are seen, which does not know their versions.
//
// An inference server that is more than serving_lag versions behind breaks the assumption on policy_start, and a group_size
// that was changed while groups are open that on n. Then I3 is kept as it is under StalenessDrop: by dropping.

// fits reports whether a group of env that is emitted now is in time for its step, and leaves the open ones so.
func (c *Core) fits(env *environment) bool {
	ahead := int64(c.held / c.run.BatchSize) // steps that what is open will fill
	if !env.cfg.Frozen() && ahead > c.slack(c.version) {
		return false
	}
	if c.cfg.Staleness != StalenessWait {
		return true
	}
	for _, g := range c.open {
		if slack := c.slack(g.version); !g.env.cfg.Frozen() && slack >= 0 && ahead > slack {
			return false
		}
	}
	return true
}

// slack is the number of steps that may still be cut without a group that was emitted at a version.
func (c *Core) slack(version int64) int64 {
	if c.cfg.Staleness == StalenessWait {
		version = max(0, version-int64(c.cfg.ServingLag))
	}
	return int64(c.run.MaxOffPolicySteps) + version - c.packed
}
