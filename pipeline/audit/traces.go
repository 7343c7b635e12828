package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// A trace is what is kept of a Trace.
type trace struct {
	ref       pipeline.Ref
	run       string // of a group-scored task
	attempt   int
	err       string // type and message of the first error; empty for a good trace
	reward    *float64
	start     *int64 // lowest version among all sampled tokens
	tokens    int    // of all branches
	truncated bool
	injected  bool
	branches  []branch
}

// logprobSlack is how far above 0 rounding may lift a log-probability.
const logprobSlack = 1e-4

// trace notes a Trace and holds it against its task. What its stage refused counts for nothing.
func (a *auditor) trace(r record, t *schemas.Trace) {
	stage := "scorer"
	if r.Topic == pipeline.TopicEvalTraces {
		stage = "eval"
	}
	if a.refused(r.Ref, stage) {
		return
	}
	g := a.group(groupKey{t.Eval, t.GroupID})
	if (t.Eval != "") != (r.Topic == pipeline.TopicEvalTraces) && !r.Injected {
		a.violate(BadInput, "%v: a trace of eval %q", r.Ref, t.Eval)
	}
	leaves, tokens := leavesOf(t)
	n := &trace{
		ref: r.Ref, run: t.GroupRun, attempt: t.Attempt, tokens: tokens, reward: t.Reward, truncated: t.Truncated, injected: r.Injected,
	}
	if len(t.Errors) > 0 {
		n.err = t.Errors[0].Type + ": " + t.Errors[0].Message
	}
	for i := range t.Nodes {
		if t.Policy == "" { // a frozen one never goes stale
			n.start = lowest(n.start, startOf(&t.Nodes[i]))
		}
	}
	if g.size > 0 && (t.GroupSize != g.size || t.Env != g.task.Env) {
		g.disagree = true
	}
	if !r.Injected {
		a.checkTrace(r.Ref, g, t, n)
	}
	if n.err == "" && t.Eval == "" {
		n.branches = branchesOf(t, leaves)
	}
	for i := range t.Nodes {
		n := &t.Nodes[i]
		g.finer = g.finer || len(n.TokenRewards) > 0 || n.Agent != "" || n.Reward != nil
	}
	if g.traces == nil {
		g.traces = map[int][]*trace{}
	}
	for _, before := range g.traces[t.RolloutIndex] {
		if before.err == "" && n.err == "" && before.run == n.run {
			a.report.Repeated++
			break
		}
	}
	g.traces[t.RolloutIndex] = append(g.traces[t.RolloutIndex], n)
}

// checkTrace holds a trace against its task, and its tokens to I7.
func (a *auditor) checkTrace(ref pipeline.Ref, g *group, t *schemas.Trace, n *trace) {
	if g.size == 0 {
		return // said once, of the group
	}
	if f := &g.task; t.Env != f.Env || t.GroupSize != f.GroupSize || t.TaskIndex != f.TaskIndex || t.Split != f.Split ||
		t.GroupSeed != f.GroupSeed || t.Step != f.Step || t.Wave != f.Wave || !same(t.PinVersion, f.PinVersion) {
		a.violate(Determinism, "%v is not of the task of %v", ref, g.key)
	}
	seed, one := g.asked[attempt{t.RolloutIndex, t.Attempt}]
	_, all := g.asked[attempt{-1, t.Attempt}]
	switch {
	case !one && !all:
		a.violate(OneOutcome, "%v: rollout %d of %v, attempt %d, was never emitted", ref, t.RolloutIndex, g.key, t.Attempt)
	case one && t.Seed != seed:
		a.violate(Determinism, "%v: rollout %d of %v has seed %d, its task says %d", ref, t.RolloutIndex, g.key, t.Seed, seed)
	}
	if n.err != "" {
		if t.Reward != nil {
			a.violate(OneOutcome, "%v failed (%s) and has a reward", ref, n.err)
		}
		return
	}
	a.checkJSON(ref, g, t)
	a.checkVersions(ref, t)
	for i := range t.Nodes {
		if err := checkNode(&t.Nodes[i], t.Eval == "", g.task.Temperature); err != nil {
			a.violate(TokenExactness, "%v: nodes.%d: %v", ref, i, err)
		}
	}
}

// checkNode holds the tokens of a message to I7.
func checkNode(n *schemas.Node, training bool, temperature float64) error {
	length := n.TokenIDs.Len()
	if n.Mask.Len() != length || n.Logprobs.Len() != length || len(n.TokenRewards) > 0 && n.TokenRewards.Len() != length || len(n.RefLogprobs) > 0 && n.RefLogprobs.Len() != length {
		return fmt.Errorf("%d tokens, %d in the mask, %d log-probabilities, %d rewards, %d of the teacher",
			length, n.Mask.Len(), n.Logprobs.Len(), n.TokenRewards.Len(), n.RefLogprobs.Len())
	}
	for k := range length {
		p := float64(n.Logprobs.At(k))
		switch m := n.Mask[k]; {
		case m > 1:
			return fmt.Errorf("token %d: mask %d", k, m)
		case m == 0 && p != 0:
			return fmt.Errorf("token %d was not sampled and has log-probability %v", k, p)
		case m == 1 && (math.IsNaN(p) || math.IsInf(p, 0) || p > logprobSlack):
			return fmt.Errorf("token %d was sampled with log-probability %v", k, p)
		case m == 1 && training && n.Temperature != temperature:
			return fmt.Errorf("token %d was sampled at temperature %v, its task says %v", k, n.Temperature, temperature)
		}
	}
	return nil
}

// checkVersions holds a trace's versions against those of its tokens. A frozen policy is no version of the run.
func (a *auditor) checkVersions(ref pipeline.Ref, t *schemas.Trace) {
	if t.Policy != "" {
		return
	}
	var start, end *int64
	for i := range t.Nodes {
		n := &t.Nodes[i]
		for k, m := range n.Mask {
			if m == 0 || len(n.Versions) == 0 {
				continue
			}
			v := versionOf(n, k)
			if v == nil {
				a.violate(Staleness, "%v: nodes.%d: no version is known of sampled token %d", ref, i, k)
				return
			}
			start = lowest(start, v)
			if end == nil || *v > *end {
				end = v
			}
		}
	}
	if !same(start, t.PolicyStart) || !same(end, t.PolicyEnd) {
		a.violate(Staleness, "%v says versions %s to %s, its tokens were sampled by %s to %s", ref, show(t.PolicyStart), show(t.PolicyEnd), show(start), show(end))
	}
	if t.PinVersion != nil && start != nil && (*start != *t.PinVersion || *end != *t.PinVersion) {
		a.violate(Determinism, "%v is pinned to version %d and was sampled by %d to %d", ref, *t.PinVersion, *start, *end)
	}
	if end != nil {
		a.policies.sampled(*end, ref)
	}
}

// checkJSON holds the task of a trace to holding all that the Task said, and to being that of the group's other traces.
func (a *auditor) checkJSON(ref pipeline.Ref, g *group, t *schemas.Trace) {
	if g.task.Task != "" {
		var asked, played map[string]json.RawMessage
		if json.Unmarshal([]byte(g.task.Task), &asked) != nil {
			if canonical(g.task.Task) != canonical(t.Task) {
				a.violate(NoEnvironment, "%v: the task is not the one of %v", ref, g.key)
			}
			return
		}
		err := json.Unmarshal([]byte(t.Task), &played)
		for name, value := range asked {
			if err != nil || canonical(string(played[name])) != canonical(string(value)) {
				a.violate(NoEnvironment, "%v: field %q of the task of %v is %s, the Task says %s", ref, name, g.key, clip(string(played[name])), clip(string(value)))
			}
		}
	}
	switch json := canonical(t.Task); g.json {
	case "":
		g.json = json
	case json:
	default:
		a.violate(NoEnvironment, "%v: the task %s is not that of the other traces of %v, %s", ref, clip(t.Task), g.key, clip(g.json))
	}
}

// canonical is a JSON text without what means nothing; one that is no JSON stays as it is.
func canonical(text string) string {
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.UseNumber()
	var v any
	if decoder.Decode(&v) != nil {
		return text
	}
	b, err := json.Marshal(v)
	if err != nil {
		return text
	}
	return string(b)
}

func clip(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

func show(v *int64) string {
	if v == nil {
		return "none"
	}
	return fmt.Sprint(*v)
}

func lowest(a, b *int64) *int64 {
	if a == nil || b != nil && *b < *a {
		return b
	}
	return a
}
