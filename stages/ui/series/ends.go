package series

import (
	"maps"
	"slices"

	"github.com/prl-project/prl/schemas"
)

// bins are the off-policy steps that are told apart; the last one is: that many or more.
const bins = 17

// ends is where the groups of a step ended: those that were trained in it, and those that were not since the one before.
type ends struct {
	groups  map[string]int32 // by fate, or filtered:<filter>
	offsets [bins]int32      // trained rollouts by off-policy steps
}

// maxWays bounds the words for where groups end.
const maxWays = 64

// Outcomes takes outcomes that follow each other in the log. A group that no step trained counts for the next one that
// comes after it.
func (r *Run) Outcomes(list []*schemas.GroupOutcome) {
	last := int64(0)
	for _, o := range list {
		if o.Eval == "" && o.Step != nil {
			last = max(last, *o.Step)
		}
	}
	r.newest = max(r.newest, last)
	step := last + 1
	if last == 0 {
		step = r.newest + 1
	}
	for _, o := range slices.Backward(list) {
		if o.Eval != "" {
			continue
		}
		if o.Step != nil {
			step = *o.Step
		}
		r.end(o, step)
	}
}

func (r *Run) end(o *schemas.GroupOutcome, step int64) {
	r.counts.Groups++
	e := r.steps[step]
	if e == nil {
		if len(r.steps) >= maxPoints {
			delete(r.steps, slices.Min(slices.Collect(maps.Keys(r.steps))))
		}
		e = &ends{groups: map[string]int32{}}
		r.steps[step] = e
	}
	way := o.Fate
	if o.Filter != "" {
		way += ":" + o.Filter
	}
	if _, known := e.groups[way]; known || len(e.groups) < maxWays {
		e.groups[way]++
	}
	for i := range o.Rollouts {
		f := &o.Rollouts[i]
		r.counts.Rollouts++
		r.counts.Tokens += int64(f.Tokens)
		if f.Fate == schemas.FatePacked && o.Step != nil && f.PolicyStart != nil {
			e.offsets[min(max(step-1-*f.PolicyStart, 0), bins-1)]++
		}
	}
}

// Ends is where groups ended, by step: groups by way, each aligned with X.
type Ends struct {
	X    []int64            `json:"x"` // the last step of a point
	Ways map[string][]int64 `json:"ways"`
}

// OffPolicy counts trained rollouts by off-policy steps (the index), of each point of Ends, of all and of the newest step.
type OffPolicy struct {
	X      []int64   `json:"x"`
	Rows   [][]int64 `json:"rows"`
	All    []int64   `json:"all"`
	Newest []int64   `json:"newest"`
}

func (r *Run) endsView(points int) (Ends, OffPolicy) {
	steps := slices.Sorted(maps.Keys(r.steps))
	e, o := Ends{X: []int64{}, Ways: map[string][]int64{}}, OffPolicy{X: []int64{}, Rows: [][]int64{}, All: make([]int64, bins), Newest: make([]int64, bins)}
	n := min(points, len(steps))
	for i := range n {
		from, to := i*len(steps)/n, (i+1)*len(steps)/n
		row := make([]int64, bins)
		for _, s := range steps[from:to] {
			for way, groups := range r.steps[s].groups {
				if e.Ways[way] == nil {
					e.Ways[way] = make([]int64, n)
				}
				e.Ways[way][i] += int64(groups)
			}
			for k, count := range r.steps[s].offsets {
				row[k] += int64(count)
				o.All[k] += int64(count)
				if s == r.newest {
					o.Newest[k] += int64(count)
				}
			}
		}
		e.X, o.X, o.Rows = append(e.X, steps[to-1]), append(o.X, steps[to-1]), append(o.Rows, row)
	}
	// Nothing ends behind the last column that has anything.
	last := 1
	for k, count := range o.All {
		if count > 0 {
			last = k + 1
		}
	}
	for i := range o.Rows {
		o.Rows[i] = o.Rows[i][:last]
	}
	o.All, o.Newest = o.All[:last], o.Newest[:last]
	return e, o
}
