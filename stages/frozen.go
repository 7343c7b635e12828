package stages

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/envserver"
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
		if _, n := e.Limits(c.Run); e.Policy != "" && n > c.Model.Context(c.Run) {
			return fmt.Errorf("envs.%s.max_rollout_tokens = %d (0 is run.seq_len): at most model.max_position = %d with envs.%s.policy, whose own context may be longer than that of the policy that is trained", name, e.MaxRolloutTokens, c.Model.Context(c.Run), name)
		}
		if e.Teacher == schemas.TeacherSelf {
			continue
		}
		if err := check("envs."+name+".teacher", e.Teacher); err != nil {
			return err
		}
	}
	return nil
}

// longest is the most tokens that a rollout of an environment can have.
func (c *Config) longest(e emitter.EnvConfig) int {
	_, most := e.Limits(c.Run)
	if e.Policy != "" {
		return most // its context may be longer than that of the policy that is trained
	}
	context := c.Run.SeqLen
	if c.Inference.MaxModelLen > 0 {
		context = c.Inference.MaxModelLen
	}
	return min(most, context, c.Model.Context(c.Run))
}

// teachers are, by environment, what scores what the environment server of this process samples. Evals have none.
func (a *App) teachers() map[string]envserver.Teacher {
	teachers := map[string]envserver.Teacher{}
	for name, e := range a.Config.Envs {
		if e.Teacher != "" && a.measures == nil {
			teachers[name] = envserver.Teacher{Policy: e.Teacher, Room: a.Config.Model.Context(a.Config.Run) - a.Config.longest(e)}
		}
	}
	return teachers
}

// uses are what the environment server of this process asks frozen policies for.
func (a *App) uses() (uses []inference.Use) {
	if a.measures != nil {
		if policy := a.measures.Plan.Policy; policy != "" {
			uses = append(uses, inference.Use{Policy: policy, Key: "--policy"})
		}
		return uses
	}
	for _, name := range a.envs() {
		e := a.Config.Envs[name]
		use := inference.Use{Policy: e.Policy, Key: "envs." + name + ".policy", Tokens: a.Config.longest(e), Temperature: e.Temperature}
		if e.Policy != "" {
			uses = append(uses, use)
		}
		if e.Teacher != "" && e.Teacher != schemas.TeacherSelf {
			use.Policy, use.Key, use.Teaches = e.Teacher, "envs."+name+".teacher", true
			uses = append(uses, use)
		}
	}
	return uses
}
