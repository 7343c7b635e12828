package stages

import (
	"fmt"
	"maps"
	"slices"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/scorer"
	"github.com/prl-project/prl/stages/scorer/advantage"
)

// validateScoring checks the section [scorer], holds it to the run, and each environment to its algorithm.
func (c *Config) validateScoring() error {
	if err := scorer.Validate(c.Run, c.Scorer); err != nil {
		return err
	}
	for _, env := range slices.Sorted(maps.Keys(c.Scorer.Envs)) {
		if _, ok := c.Envs[env]; !ok && len(c.Envs) > 0 {
			return fmt.Errorf("scorer.envs.%s: there is no section [envs.%s]", env, env)
		}
	}
	for _, env := range slices.Sorted(maps.Keys(c.Envs)) {
		if err := c.validateScoringOf(env); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) validateScoringOf(env string) error {
	s, err := c.Scorer.Of(env)
	if err != nil {
		return err
	}
	e, needs := c.Envs[env], s.Needs()
	switch {
	case needs.Teacher && e.Teacher == "":
		what := fmt.Sprintf("scorer.advantage = %q", s.Advantage)
		if s.RefKL > 0 {
			what = fmt.Sprintf("scorer.ref_kl = %v", s.RefKL)
		}
		return fmt.Errorf("envs.%s.teacher = %q: %s needs one: the name of a section [frozen.<name>], or %q", env, e.Teacher, what, schemas.TeacherSelf)
	case s.Advantage == advantage.OPD && e.Teacher == schemas.TeacherSelf:
		return fmt.Errorf("envs.%s.teacher = %q: with scorer.advantage = %q the teacher is a frozen policy; %q is the one that learns from itself", env, e.Teacher, s.Advantage, advantage.OPSD)
	case s.Advantage == advantage.OPSD && e.Teacher != schemas.TeacherSelf:
		return fmt.Errorf("envs.%s.teacher = %q: with scorer.advantage = %q it is %q; %q is the one with a frozen teacher", env, e.Teacher, s.Advantage, schemas.TeacherSelf, advantage.OPD)
	case needs.OnPolicy && e.Policy != "":
		return fmt.Errorf("envs.%s.policy = %q: scorer.advantage = %q needs rollouts of the policy that is trained; leave policy out, or learn from these with %q", env, e.Policy, s.Advantage, advantage.SFT)
	case s.Partial == scorer.Train && s.MinGroupSize > e.GroupSize:
		return fmt.Errorf("envs.%s.group_size = %d is below scorer.min_group_size = %d: no group with a failed rollout could ever be trained; set partial = %q for that", env, e.GroupSize, s.MinGroupSize, scorer.Drop)
	}
	return nil
}
