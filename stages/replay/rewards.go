package replay

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/prl-project/prl/schemas"
)

// Rescored holds the new rewards against the recorded ones.
type Rescored struct {
	Envs map[string]*Rewards
	// Refused traces were unreadable.
	Refused int64
}

// Rewards are the recorded and the new rewards of an environment's traces.
type Rewards struct {
	// Traces that have been read, and of those: that had failed, and by the type of the error that fail now.
	Traces, Failed int64
	Lost           map[string]int64
	// Why the first of those failed that did not diverge; empty where none did.
	Why string
	// Changed traces have another reward.
	Changed    int64
	Reward     pairs
	Components map[string]*pairs
}

// pairs are sums over traces of a figure that was (x) and is (y); a trace without the figure counts on neither side.
type pairs struct {
	n, x, y float64
	// squares and product, for the correlation
	xx, yy, xy float64
}

func (p *pairs) add(was, is *float64) {
	if was == nil || is == nil {
		return
	}
	x, y := *was, *is
	p.n, p.x, p.y = p.n+1, p.x+x, p.y+y
	p.xx, p.yy, p.xy = p.xx+x*x, p.yy+y*y, p.xy+x*y
}

func (p *pairs) means() (was, is float64) {
	n := max(1, p.n)
	return p.x / n, p.y / n
}

// correlation is Pearson's; NaN where one side is constant.
func (p *pairs) correlation() float64 {
	return (p.n*p.xy - p.x*p.y) / math.Sqrt((p.n*p.xx-p.x*p.x)*(p.n*p.yy-p.y*p.y))
}

func (r *Rescored) add(was, is *schemas.Trace) {
	e := r.Envs[was.Env]
	if e == nil {
		e = &Rewards{Lost: map[string]int64{}, Components: map[string]*pairs{}}
		r.Envs[was.Env] = e
	}
	e.Traces++
	switch {
	case len(was.Errors) > 0:
		e.Failed++
		return
	case lost(was, is):
		failure := is.Errors[0]
		e.Lost[failure.Type]++
		if e.Why == "" && failure.Type != errorDiverged {
			e.Why = fmt.Sprintf("group %d, rollout %d: %s", was.GroupID, was.RolloutIndex, failure.Message)
		}
		return
	}
	if (was.Reward == nil) != (is.Reward == nil) || was.Reward != nil && *was.Reward != *is.Reward {
		e.Changed++
	}
	e.Reward.add(was.Reward, is.Reward)
	for name := range is.Rewards {
		if e.Components[name] == nil {
			e.Components[name] = &pairs{}
		}
		e.Components[name].add(was.Rewards[name], is.Rewards[name])
	}
}

// String is a table for each environment.
func (r *Rescored) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.Envs)) {
		e, t := r.Envs[name], table{}
		t.row(name, "recorded", "rescored")
		t.row("traces", count(e.Traces), count(e.Traces-e.Failed-total(e.Lost)))
		if e.Failed > 0 {
			t.row("  that had failed", count(e.Failed), "")
		}
		for _, why := range slices.Sorted(maps.Keys(e.Lost)) {
			t.row("  that "+lostWords[why], "", count(e.Lost[why]))
		}
		was, is := e.Reward.means()
		t.row("reward", number(was), number(is))
		for _, component := range slices.Sorted(maps.Keys(e.Components)) {
			was, is := e.Components[component].means()
			t.row("  "+component, number(was), number(is))
		}
		b.WriteString(t.String())
		fmt.Fprintf(&b, "%s of the traces have another reward", count(e.Changed))
		if c := e.Reward.correlation(); !math.IsNaN(c) {
			fmt.Fprintf(&b, "; the correlation of the two is %.3f", c)
		}
		b.WriteString(".\n")
		if e.Why != "" {
			fmt.Fprintf(&b, "The first that failed: %s\n", e.Why)
		}
	}
	if r.Refused > 0 {
		fmt.Fprintf(&b, "%s recorded traces cannot be read and are passed over.\n", count(r.Refused))
	}
	return b.String()
}

// lostWords say of traces that fail now, by the type of the error, what they did.
var lostWords = map[string]string{
	errorDiverged: "would have gone another way",
	errorBranched: "have branches",
	errorRescore:  "their environment could not score",
	errorScore:    "have a score that cannot be recorded",
}
