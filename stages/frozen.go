package stages

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prl-project/prl/stages/inference"
)

// validateFrozen checks the sections [frozen.<name>] and that what names one of them finds it.
func (c *Config) validateFrozen() error {
	if err := inference.ValidateFrozen(c.Frozen); err != nil {
		return err
	}
	check := func(key, name string) error {
		if _, ok := c.Frozen[name]; ok || name == "" {
			return nil
		}
		known := "there are none"
		if len(c.Frozen) > 0 {
			known = "there are " + strings.Join(slices.Sorted(maps.Keys(c.Frozen)), ", ")
		}
		return fmt.Errorf("%s = %q: no section [frozen.%s]; %s", key, name, name, known)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Envs)) {
		e := c.Envs[name]
		if err := check("envs."+name+".policy", e.Policy); err != nil {
			return err
		}
		if _, n := e.Limits(c.Run); e.Policy != "" && n > c.Model.MaxPosition {
			return fmt.Errorf("envs.%s.max_rollout_tokens = %d (0 is run.seq_len): at most model.max_position = %d with envs.%s.policy, whose own context may be longer than that of the policy that is trained", name, e.MaxRolloutTokens, c.Model.MaxPosition, name)
		}
		if e.Teacher == inference.Self {
			continue
		}
		if err := check("envs."+name+".teacher", e.Teacher); err != nil {
			return err
		}
	}
	return nil
}

// teachers are, by environment, the frozen policies that score what is sampled, or inference.Self.
func (c *Config) teachers() map[string]string {
	teachers := map[string]string{}
	for name, e := range c.Envs {
		if e.Teacher != "" {
			teachers[name] = e.Teacher
		}
	}
	return teachers
}
