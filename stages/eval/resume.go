package eval

import (
	"fmt"
	"slices"
	"time"

	"github.com/prl-project/prl/schemas"
)

// past is what the topics hold of an eval by hand.
type past struct {
	tasks   []*schemas.Task
	traces  []played
	decided map[int64]bool // groups that have an outcome
}

// played is a trace and how many tokens it had. The texts and tensors of a whole eval may not fit.
type played struct {
	*schemas.Trace
	tokens int
}

func keep(t *schemas.Trace) played {
	kept := *t
	kept.Nodes, kept.Task = nil, ""
	return played{&kept, tokens(t.Nodes)}
}

// goOn takes up what was played before.
func (h *hand) goOn(before past) error {
	r := h.run
	h.was = map[int64]Game{}
	whole := make([]bool, r.Examples)
	for _, t := range before.tasks {
		if err := h.holds(t); err != nil {
			return err
		}
		h.was[t.GroupID] = Game{t.Split, t.TaskIndex, t.GroupSeed}
		x := &r.examples[t.GroupID]
		if x.asked == nil {
			x.asked = slices.Repeat([]int{0}, r.K)
		}
		if t.RolloutIndex < 0 {
			whole[t.GroupID] = true
			for i := range x.asked {
				x.asked[i] = max(x.asked[i], t.Attempt)
			}
		} else {
			x.asked[t.RolloutIndex] = max(x.asked[t.RolloutIndex], t.Attempt)
		}
		h.eval.ids = max(h.eval.ids, t.GroupID+1)
	}
	traces := map[int64]*schemas.Trace{} // one of each group
	for _, t := range before.traces {
		if t.GroupID >= int64(r.Examples) || r.accepts(t.Trace) != nil {
			continue
		}
		x := &r.examples[t.GroupID]
		if x.asked == nil { // its task was deleted by a clean-up
			x.asked = slices.Repeat([]int{0}, r.K)
			whole[t.GroupID] = t.GroupRun != ""
		}
		x.add(t.Trace, t.tokens, r.K)
		traces[t.GroupID] = t.Trace
		h.was[t.GroupID] = Game{t.Split, t.TaskIndex, t.GroupSeed}
		h.eval.ids = max(h.eval.ids, t.GroupID+1)
	}
	waiting, due := []int{}, []int{}
	for i := range r.examples {
		x, decided := &r.examples[i], before.decided[int64(i)]
		switch {
		case x.clean() != nil:
			x.decide(x.clean())
			if !decided {
				h.owed = append(h.owed, outcome(traces[int64(i)], x.rollouts))
			}
		case decided:
			return fmt.Errorf("rollouts of %s are gone, by a clean-up: begin another without --resume", h.eval.name)
		case x.asked == nil:
			due = append(due, i)
		case x.renew(whole[i]):
			due = append(due, i)
		default:
			waiting = append(waiting, i)
		}
	}
	r.order = append(waiting, due...)
	if r.emitted, r.open = len(waiting), len(waiting); r.emitted > 0 {
		r.Emitted = []batch{{Count: r.emitted}}
	}
	for _, i := range waiting {
		r.examples[i].emitted = true
	}
	return nil
}

// holds checks that a task that was emitted before is one of the plan's, as far as the plan says by itself what is played.
func (h *hand) holds(t *schemas.Task) error {
	r, cfg := h.run, h.eval.cfg
	pin := int64(-1)
	if t.PinVersion != nil {
		pin = *t.PinVersion
	}
	maxTokens, maxRolloutTokens := cfg.limits(h.core.run, h.core.envs[cfg.Env])
	want := h.begunWith
	switch {
	case t.Env != r.Env:
		return want("environment", t.Env, r.Env)
	case t.Policy != r.policy:
		return want("frozen policy", t.Policy, r.policy)
	case t.Policy == "" && pin != r.Version:
		return want("policy version", pin, r.Version)
	case t.GroupSize != r.K:
		return want("k", t.GroupSize, r.K)
	case t.Temperature != cfg.Temperature:
		return want("temperature", t.Temperature, cfg.Temperature)
	case t.MaxRolloutTokens != maxRolloutTokens: // the other is below it
		return want("max_rollout_tokens", t.MaxRolloutTokens, maxRolloutTokens)
	case t.MaxTokens != maxTokens:
		return want("max_tokens", t.MaxTokens, maxTokens)
	case t.TimeoutMs != cfg.Timeout.Milliseconds():
		return want("timeout", time.Duration(t.TimeoutMs)*time.Millisecond, cfg.Timeout)
	case t.GroupID >= int64(r.Examples):
		return fmt.Errorf("%s was begun with more than %d examples: give it as many", h.eval.name, r.Examples)
	case t.GroupSeed != h.core.groupSeed(h.eval, int(t.GroupID)):
		return fmt.Errorf("%s was begun with the games of another suite than %s: name that one with --suite", h.eval.name, h.eval.seeds)
	}
	return nil
}

// sameGames checks that what was played before are the games of the plan, once the environment has said which it has.
func (h *hand) sameGames() error {
	if h.was == nil || h.eval.run == nil {
		return nil
	}
	for i := range h.run.Examples {
		was, played := h.was[int64(i)]
		if is := h.core.game(h.eval, i); played && was != is {
			return h.begunWith(fmt.Sprintf("example %d as", i), was, is)
		}
	}
	h.was = nil
	return nil
}

func (h *hand) begunWith(what string, was, is any) error {
	return fmt.Errorf("%s was begun with %s %v, not %v: give it the same settings, or begin another without --resume", h.eval.name, what, was, is)
}

// clean is the rollouts of an attempt that has all of them, none failed; nil where there is none.
func (x *example) clean() []*rollout {
	for _, a := range x.attempts {
		if !slices.Contains(a.rollouts, nil) && !failedSome(a.rollouts) {
			return a.rollouts
		}
	}
	return nil
}

// renew lets go of the rollouts that failed and says whether there were any: they are due once more. Where the
// environment plays the group as one task that is all of it.
func (x *example) renew(whole bool) bool {
	if whole {
		if x.complete() == nil {
			return false
		}
		x.attempts = nil
		for i := range x.asked {
			x.asked[i]++
		}
		x.due = []ask{{-1, x.asked[0]}}
		return true
	}
	for _, a := range x.attempts {
		for i, r := range a.rollouts {
			if r != nil && !r.ok() {
				a.rollouts[i] = nil
				x.asked[i]++
				x.due = append(x.due, ask{i, x.asked[i]})
			}
		}
	}
	return len(x.due) > 0
}
