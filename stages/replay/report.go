package replay

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// quantiles of the advantages that are shown.
var quantiles = []float64{0.05, 0.25, 0.5, 0.75, 0.95}

// String is the comparison as a table, recorded beside recomputed.
func (c *Comparison) String() string {
	was, is := &c.Recorded, &c.Recomputed
	t := table{}
	t.row("", "recorded", "recomputed")
	t.counts("groups", was.Groups, is.Groups)
	t.row("reward of packed rollouts", number(was.Packed.Mean()), number(is.Packed.Mean()))
	t.row("steps", count(was.Steps), count(is.Steps))
	t.row("micro-batches", count(was.MicroBatches), count(is.MicroBatches))
	t.row("samples", count(was.Samples), count(is.Samples))
	t.row("tokens", count(was.Tokens), count(is.Tokens))
	t.row("tokens trained", count(was.Trained), count(is.Trained))
	t.row("padding", percent(was.Padding()), percent(is.Padding()))
	t.row("off-policy steps, mean", number(was.offPolicyMean()), number(is.offPolicyMean()))
	t.ages(was, is)
	a, b := &was.Advantages, &is.Advantages
	t.row("advantages, mean |A|", number(a.MeanAbs()), number(b.MeanAbs()))
	t.row("  standard deviation", number(a.Std()), number(b.Std()))
	t.row("  exactly zero", percent(a.Zero()), percent(b.Zero()))
	x, y := a.Quantiles(quantiles...), b.Quantiles(quantiles...)
	for i, q := range quantiles {
		t.row(fmt.Sprintf("  %.0f %% quantile", 100*q), number(x[i]), number(y[i]))
	}
	return t.String() + c.verdict()
}

// verdict says in words how the two compare.
func (c *Comparison) verdict() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of the %s recorded micro-batches are the same, byte for byte", count(c.Identical), count(c.Recorded.MicroBatches))
	if c.First != "" {
		fmt.Fprintf(&b, "; the first difference is at %s", c.First)
	}
	b.WriteString(".\n")
	if c.Refused > 0 {
		fmt.Fprintf(&b, "%s recorded traces cannot be read or scored and are passed over.\n", count(c.Refused))
	}
	for _, why := range slices.Sorted(maps.Keys(c.Lost)) {
		fmt.Fprintf(&b, "%s traces that %s have failed (%s).\n", count(c.Lost[why]), lostWords[why], why)
	}
	if n := c.Recomputed.Groups[undecided]; n > 0 {
		fmt.Fprintf(&b, "%s groups would have waited for rollouts that were not recorded and are left out (undecided).\n", count(n))
	}
	if c.Stopped != nil {
		fmt.Fprintf(&b, "The run would have stopped: %v\n", c.Stopped)
	}
	return b.String()
}

// A table is lines of three columns, the last two aligned at their right.
type table struct{ rows [][3]string }

func (t *table) row(name, was, is string) { t.rows = append(t.rows, [3]string{name, was, is}) }

// counts shows a total and what it is made of.
func (t *table) counts(name string, was, is map[string]int64) {
	t.row(name, count(total(was)), count(total(is)))
	all := maps.Clone(was)
	maps.Copy(all, is)
	for _, k := range slices.Sorted(maps.Keys(all)) {
		t.row("  "+k, count(was[k]), count(is[k]))
	}
}

// ages shows how many samples are how many steps off-policy.
func (t *table) ages(was, is *Figures) {
	all := maps.Clone(was.OffPolicy)
	maps.Copy(all, is.OffPolicy)
	for _, k := range slices.Sorted(maps.Keys(all)) {
		t.row(fmt.Sprintf("  samples with %d", k), count(was.OffPolicy[k]), count(is.OffPolicy[k]))
	}
	if was.Frozen+is.Frozen > 0 {
		t.row("  of a frozen policy", count(was.Frozen), count(is.Frozen))
	}
}

func (t *table) String() string {
	var width [3]int
	for _, r := range t.rows {
		for i, cell := range r {
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	var b strings.Builder
	for _, r := range t.rows {
		fmt.Fprintf(&b, "%-*s  %*s  %*s\n", width[0], r[0], width[1], r[1], width[2], r[2])
	}
	return b.String()
}

func total(m map[string]int64) (n int64) {
	for _, v := range m {
		n += v
	}
	return n
}

// count is a number with its thousands apart.
func count(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// number is a figure to four places that mean something.
func number(v float64) string {
	if math.Abs(v) < 1e-3 && v != 0 {
		return fmt.Sprintf("%.3g", v)
	}
	return fmt.Sprintf("%.4f", v)
}

func percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }
