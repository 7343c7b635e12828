package progress

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prl-project/prl/schemas"
)

// normal95 is how many standard errors on either side of a mean its 95 % confidence interval reaches.
const normal95 = 1.96

// Interval is a mean with its 95 % confidence interval; the mean alone where nothing is known of that.
func Interval(mean, stderr float64) string {
	if stderr == 0 {
		return fmt.Sprintf("%.3f", mean)
	}
	return fmt.Sprintf("%.3f ± %.3f", mean, normal95*stderr)
}

// Avg is avg@k of an eval with its interval, and a dash where there is none.
func Avg(r *schemas.EvalResult) string {
	if r.AvgMissing {
		return none
	}
	return Interval(r.AvgAtK, r.AvgStderr)
}

// pass is pass@k of an eval likewise.
func pass(r *schemas.EvalResult) string {
	if r.PassMissing {
		return none
	}
	return Interval(r.PassAtK, r.PassStderr)
}

// none stands for a figure that there is not: no reward applied.
const none = "-"

// Table is the result of an eval, a figure a line. threshold is the reward at which a rollout passes.
func Table(r *schemas.EvalResult, threshold float64) string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	line(fmt.Sprintf("avg@%d", r.K), "%s", Avg(r))
	line(fmt.Sprintf("pass@%d", r.K), "%s   (a reward of at least %g)", pass(r), threshold)
	for _, rows := range []struct {
		name   string
		values map[string]float64
	}{{"rewards", r.Rewards}, {"metrics", r.Metrics}, {"baselines", r.Baselines}} {
		if len(rows.values) > 0 {
			line(rows.name, "%s", listed(rows.values))
		}
	}
	line("rollouts", "%d of %d examples, %d failed", r.Episodes+r.Errored, r.Examples, r.Errored)
	return b.String()
}

// listed names values in the order of their names.
func listed(values map[string]float64) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(values)) {
		parts = append(parts, fmt.Sprintf("%s %.3f", k, values[k]))
	}
	return strings.Join(parts, ", ")
}
