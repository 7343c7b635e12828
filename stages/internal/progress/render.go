package progress

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prl-project/prl/schemas"
)

// Line is the run in one line, for a log or a pipe.
func (v *View) Line(now time.Time) string {
	var b strings.Builder
	step := int64(0)
	if v.policy != nil {
		step = v.policy.Step
	}
	fmt.Fprintf(&b, "step %d/%d", step, v.MaxSteps)
	rewards := v.rewards(5)
	for _, env := range slices.Sorted(maps.Keys(rewards)) {
		fmt.Fprintf(&b, "  %s %.3f", env, rewards[env])
	}
	fmt.Fprintf(&b, "  %s tok/s  %d in flight  off-policy %.1f (max %d)", Count(v.tokensPerSecond(now)), v.inFlight, v.offPolicy.value(), v.offMax)
	for _, fate := range slices.Sorted(maps.Keys(v.fates)) {
		fmt.Fprintf(&b, "  %s %s", fate, Count(float64(v.fates[fate])))
	}
	if waiting := v.Waiting(v.evalNames()); waiting != "" {
		fmt.Fprintf(&b, "  (waits for %s)", waiting)
	}
	return b.String()
}

// Screen is the run as a few lines for a terminal.
func (v *View) Screen(now time.Time, width int) []string {
	step, loss, entropy := int64(0), "", ""
	if v.policy != nil {
		step = v.policy.Step
		loss, entropy = metric(v.policy, "loss"), metric(v.policy, "entropy")
	}
	const bar = 30
	done := 0
	if v.MaxSteps > 0 {
		done = int(bar * step / v.MaxSteps)
	}
	lines := []string{
		fmt.Sprintf("step %4d of %d  %s%s  loss %s  entropy %s", step, v.MaxSteps, strings.Repeat("█", done), strings.Repeat("░", bar-done), loss, entropy),
		fmt.Sprintf("%8s tokens/s   %d rollouts in flight   off-policy steps %.1f, at most %d", Count(v.tokensPerSecond(now)), v.inFlight, v.offPolicy.value(), v.offMax),
	}
	rewards := v.rewards(5)
	for _, env := range slices.Sorted(maps.Keys(rewards)) {
		lines = append(lines, fmt.Sprintf("  %-14s reward %.3f  %s", env, rewards[env], v.spark(env, 40)))
	}
	var fates []string
	for _, fate := range slices.Sorted(maps.Keys(v.fates)) {
		fates = append(fates, fmt.Sprintf("%s %d", fate, v.fates[fate]))
	}
	lines = append(lines, "  rollouts: "+strings.Join(fates, ", "))
	for _, name := range v.evalNames() {
		if e := v.newestEval(name); e != nil {
			lines = append(lines, fmt.Sprintf("  eval %-9s version %d: avg@%d %s", name, e.Version, e.K, Avg(e)))
		}
	}
	if waiting := v.Waiting(v.evalNames()); waiting != "" {
		lines = append(lines, "  waits for "+waiting)
	}
	for i, l := range lines {
		lines[i] = Clip(l, width)
	}
	return lines
}

// spark draws the reward of an environment over all steps in n characters.
func (v *View) spark(env string, n int) string {
	var values []float64
	for step := int64(1); step <= v.packedStep; step++ {
		if m := v.steps[step][env]; m != nil && m.n > 0 {
			values = append(values, m.value())
		}
	}
	return Spark(values, n)
}

// Summary says at the end what was learned.
func (v *View) Summary(elapsed time.Duration) string {
	var b strings.Builder
	final, _ := v.Final()
	fmt.Fprintf(&b, "\nThe run ended with policy version %d after %v (weights SHA-256 %s).\n", final, elapsed.Round(time.Second), sha(v.policy))
	fmt.Fprintf(&b, "%-14s %9s %15s %15s   beside: reward of policies that need no model\n", "eval", "episodes", fmt.Sprintf("version %d", v.first), fmt.Sprintf("version %d", final))
	for _, name := range v.evalNames() {
		last := v.evals[evalKey{name, final}]
		if last == nil {
			continue
		}
		start := "-"
		if e := v.evals[evalKey{name, v.first}]; e != nil {
			start = Avg(e)
		}
		fmt.Fprintf(&b, "%-14s %9d %15s %15s   %s\n", name, last.Episodes, start, Avg(last), listed(last.Baselines))
		for _, group := range []map[string]float64{last.Rewards, last.Metrics} {
			if len(group) > 0 {
				fmt.Fprintf(&b, "%14s %s\n", "", listed(group))
			}
		}
	}
	fmt.Fprintf(&b, "Rollouts:")
	for _, fate := range slices.Sorted(maps.Keys(v.fates)) {
		fmt.Fprintf(&b, " %d %s", v.fates[fate], fate)
	}
	b.WriteString(".\n")
	return b.String()
}

func (v *View) tokensPerSecond(now time.Time) float64 {
	if s := now.Sub(v.rate.start).Seconds(); s > 1 {
		return float64(v.tokens-v.rate.tokens) / s
	}
	return 0
}

func sha(p *schemas.PolicyVersion) string {
	if p == nil {
		return "none"
	}
	return p.WeightsSHA256()
}

func metric(p *schemas.PolicyVersion, name string) string {
	if v, ok := p.Metrics[name]; ok {
		return fmt.Sprintf("%.3f", v)
	}
	return "-"
}
