package try

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// summary prints what the rollouts come to. Those that failed count in no mean.
func (v *view) summary(took time.Duration) {
	v.bar.Close()
	p := v.figures()
	scored := len(v.results) - v.failed
	p.printf("\n%d rollouts: %d scored, %d failed", len(v.results), scored, v.failed)
	if missing := v.run.Rollouts - len(v.results); missing > 0 {
		p.printf(", %d not played to their end", missing)
	}
	p.printf("\n")
	row := func(name, format string, args ...any) {
		p.printf("%s\n", strings.TrimRight(fmt.Sprintf("  %-18s %s", plain(name), fmt.Sprintf(format, args...)), " "))
	}
	if scored > 0 {
		v.means(row, scored)
	}
	var prompt, completion int
	var seconds float64
	for _, res := range v.results {
		prompt, completion, seconds = prompt+res.PromptTokens, completion+res.CompletionTokens, seconds+res.Seconds
	}
	n := max(1, len(v.results))
	if prompt+completion > 0 {
		row("tokens", "%d prompt, %d completion; of a rollout %d and %d", prompt, completion, prompt/n, completion/n)
	}
	row("time", "%.1f s; of a rollout %.1f s", took.Seconds(), seconds/float64(n))
	traced := false // one traceback is enough to go by
	for _, res := range v.results {
		if res.Error != nil {
			row("FAILED", "rollout %d, task %d of %s, seed %d: %s: %s", res.Rollout, res.TaskIndex, res.Split, res.Seed, res.Error.Type, plain(res.Error.Message))
			if res.Error.Traceback != "" && !traced {
				p.printf("%s\n", res.Error.Traceback)
				traced = true
			}
		}
	}
}

// means prints the figures of the rollouts that were scored, at least one.
func (v *view) means(row func(name, format string, args ...any), scored int) {
	row("", "%-20s  %s", "mean ± std. error", "rollouts")
	mean := func(name string, values []float64, note string) {
		row(name, "%-20s  %d%s", newFigure(values), len(values), note)
	}
	mean("reward", v.rewards(), "")
	rewards, metrics, agents := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	weights := map[string]float64{}
	ends := map[string]int{}
	truncated := 0
	for _, res := range v.results {
		if res.Error != nil {
			continue
		}
		for name, value := range res.Rewards {
			if weights[name] = res.weights[name]; value == nil {
				rewards[name] = append(rewards[name], nil...) // it is there, and applies to nobody yet
			} else {
				rewards[name] = append(rewards[name], *value)
			}
		}
		for agent, a := range res.Agents {
			if a.Reward != nil {
				agents[agent] = append(agents[agent], *a.Reward)
			}
		}
		for name, value := range res.Metrics {
			metrics[name] = append(metrics[name], value)
		}
		ends[res.StopReason]++
		if res.Truncated {
			truncated++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rewards)) {
		note := ""
		if w := weight(env.Reward{Weight: weights[name]}); w != "" {
			note = "  " + w
		}
		mean("  "+name, rewards[name], note)
	}
	for _, agent := range slices.Sorted(maps.Keys(agents)) {
		mean("of "+agent, agents[agent], "  agent")
	}
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		mean(name, metrics[name], "  metric")
	}
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(ends)) {
		parts = append(parts, fmt.Sprintf("%s %d", plain(why), ends[why]))
	}
	row("ended", "%s; truncated %d of %d", strings.Join(parts, ", "), truncated, scored)
	if known := baselines(v.run.Env, v.run.Tasks.Split); known != "" {
		row("baselines", "%s", known)
	}
}

// baselines are what policies without a model reach; empty if the environment does not know.
func baselines(e env.Environment, split env.Split) (text string) {
	b, ok := e.(env.Baseliner)
	if !ok {
		return ""
	}
	var err error
	known := func() map[string]float64 {
		defer recovered(&err)
		return b.Baselines(split)
	}()
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(known)) {
		parts = append(parts, fmt.Sprintf("%s %.4f", name, known[name]))
	}
	return strings.Join(parts, ", ")
}
