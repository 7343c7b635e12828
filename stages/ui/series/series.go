// Package series is a run as curves: what the trainer and the packer measured by step, evals by version, and where groups
// ended. It is fed the records of metrics, outcomes, evals and policies, those of each topic in any order of files, and keeps
// a bounded number of points. It does no I/O and is not safe for concurrent use.
package series

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/prl-project/prl/schemas"
)

const (
	maxCurves = 2000
	maxPoints = 65536 // of a curve; above it every second goes
)

// Run is the curves of a run.
type Run struct {
	curves   map[string]*curve
	evals    map[evalKey]*schemas.EvalResult
	versions map[int64]Version
	steps    map[int64]*ends
	newest   int64 // step that was packed last
	final    bool
	fromRun  string
	counts   Counts
}

// Counts is how much there is of what.
type Counts struct {
	Groups   int64 `json:"groups"`   // that ended, of training
	Rollouts int64 `json:"rollouts"` // of those
	Tokens   int64 `json:"tokens"`   // of those
}

// A Version is a policy version.
type Version struct {
	Version int64  `json:"version"`
	Step    int64  `json:"step"`
	Kind    string `json:"kind"`
	Bytes   int64  `json:"bytes"`
	SHA256  string `json:"sha256"`
	Final   bool   `json:"final,omitempty"`
	Skipped bool   `json:"skipped,omitempty"`
}

type evalKey struct {
	eval    string
	version int64
	policy  string
}

// New is a run of which nothing is known.
func New() *Run {
	return &Run{curves: map[string]*curve{}, evals: map[evalKey]*schemas.EvalResult{}, versions: map[int64]Version{}, steps: map[int64]*ends{}}
}

// Metric takes a point of a curve. Of several for the same step the last one counts: a trainer that was restarted may have
// made a step again.
func (r *Run) Metric(p *schemas.MetricPoint) {
	if p.Step == nil {
		return
	}
	names := slices.Sorted(maps.Keys(p.Labels))
	key := p.Stage + "\x00" + p.Name
	for _, n := range names {
		key += "\x00" + n + "\x00" + p.Labels[n]
	}
	c := r.curves[key]
	if c == nil {
		if len(r.curves) >= maxCurves {
			return
		}
		c = &curve{stage: p.Stage, name: p.Name, labels: maps.Clone(p.Labels)}
		r.curves[key] = c
	}
	c.add(*p.Step, p.Value)
}

// Eval takes the result of an eval. Evals by hand that were resumed have several; the last one counts.
func (r *Run) Eval(e *schemas.EvalResult) {
	if len(r.evals) < maxPoints {
		r.evals[evalKey{e.Eval, e.Version, e.Policy}] = e
	}
}

// Policy takes a policy version.
func (r *Run) Policy(p *schemas.PolicyVersion) {
	r.final = r.final || p.Final
	r.fromRun = cmp.Or(r.fromRun, p.FromRun)
	r.versions[p.Version] = Version{p.Version, p.Step, p.Kind, p.Weights.Bytes, p.WeightsSHA256(), p.Final, p.Skipped}
	if len(r.versions) > maxPoints {
		delete(r.versions, slices.Min(slices.Collect(maps.Keys(r.versions))))
	}
}

// Newest is the newest policy version; false before there is one.
func (r *Run) Newest() (v Version, ok bool) {
	for n := range r.versions {
		if !ok || n > v.Version {
			v, ok = r.versions[n], true
		}
	}
	return v, ok
}

// Packed is the newest step that was packed.
func (r *Run) Packed() int64 { return r.newest }

// Last is the mean of the last n points of a curve without labels.
func (r *Run) Last(stage, name string, n int) (mean float64, ok bool) {
	c := r.curves[stage+"\x00"+name]
	if c == nil || len(c.y) == 0 {
		return 0, false
	}
	tail := c.y[max(0, len(c.y)-n):]
	for _, y := range tail {
		mean += y / float64(len(tail))
	}
	return mean, true
}

// A View is a run for the page.
type View struct {
	Curves    []Curve   `json:"curves"`
	Evals     []Eval    `json:"evals"`
	Ends      Ends      `json:"ends"`
	OffPolicy OffPolicy `json:"off_policy"`
	Newest    *Version  `json:"newest"`
	Final     bool      `json:"final"`
	FromRun   string    `json:"from_run,omitempty"`
	Packed    int64     `json:"packed_step"`
	Counts    Counts    `json:"counts"`
}

// View gives the run with at most points points a curve.
func (r *Run) View(points int) View {
	v := View{Final: r.final, FromRun: r.fromRun, Packed: r.newest, Counts: r.counts, Curves: []Curve{}}
	if newest, ok := r.Newest(); ok {
		v.Newest = &newest
	}
	for _, key := range slices.Sorted(maps.Keys(r.curves)) {
		v.Curves = append(v.Curves, r.curves[key].view(points))
	}
	v.Evals = r.evalCurves()
	v.Ends, v.OffPolicy = r.endsView(points)
	return v
}

// An Eval is the results of an eval by version.
type Eval struct {
	Name      string             `json:"name"`
	Env       string             `json:"env"`
	Policy    string             `json:"policy,omitempty"` // a frozen one
	K         int                `json:"k"`
	Version   []int64            `json:"version"`
	Avg       []*float64         `json:"avg"` // null where no reward applies to any rollout
	Stderr    []*float64         `json:"stderr"`
	Pass      []*float64         `json:"pass"` // null where no task has k rollouts with a reward
	Errored   []int64            `json:"errored"`
	Baselines map[string]float64 `json:"baselines"`
	Episodes  int64              `json:"episodes"` // of the newest
}

func (r *Run) evalCurves() []Eval {
	keys := slices.SortedFunc(maps.Keys(r.evals), func(a, b evalKey) int {
		return cmp.Or(strings.Compare(a.eval, b.eval), strings.Compare(a.policy, b.policy), cmp.Compare(a.version, b.version))
	})
	list := []Eval{}
	for _, k := range keys {
		e := r.evals[k]
		if len(list) == 0 || list[len(list)-1].Name != k.eval || list[len(list)-1].Policy != k.policy {
			list = append(list, Eval{Name: e.Eval, Env: e.Env, Policy: e.Policy})
		}
		last := &list[len(list)-1]
		last.K, last.Episodes, last.Baselines = e.K, e.Episodes, finite(e.Baselines)
		last.Version = append(last.Version, e.Version)
		last.Avg, last.Stderr = append(last.Avg, unless(e.AvgMissing, e.AvgAtK)), append(last.Stderr, unless(e.AvgMissing, e.AvgStderr))
		last.Pass, last.Errored = append(last.Pass, unless(e.PassMissing, e.PassAtK)), append(last.Errored, e.Errored)
	}
	return list
}

// unless is a figure, or nil where there is none.
func unless(missing bool, v float64) *float64 {
	if missing || math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return new(number(v))
}

func finite(m map[string]float64) map[string]float64 {
	out := map[string]float64{}
	for k, v := range m {
		out[k] = number(v)
	}
	return out
}

// A Figure is the value of a curve at a step.
type Figure struct {
	Stage  string
	Name   string
	Labels map[string]string
	Value  float64
}

// At is what was measured at a step, by stage, name and labels.
func (r *Run) At(step int64) []Figure {
	var list []Figure
	for _, key := range slices.Sorted(maps.Keys(r.curves)) {
		c := r.curves[key]
		if at, there := slices.BinarySearch(c.x, step); there {
			list = append(list, Figure{c.stage, c.name, c.labels, number(c.y[at])})
		}
	}
	return list
}

// Steps are the first and the last step that were packed; 0 where there is none.
func (r *Run) Steps() (first, last int64) {
	for s := range r.steps {
		if s <= r.newest && (first == 0 || s < first) {
			first = s
		}
	}
	return first, r.newest
}

// Made is the version that a step made.
func (r *Run) Made(step int64) (v Version, ok bool) {
	for _, v := range r.versions {
		if v.Step == step && v.Step > 0 {
			return v, true
		}
	}
	return v, false
}
