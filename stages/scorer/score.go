package scorer

import (
	"cmp"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/scorer/advantage"
	"github.com/prl-project/prl/stages/scorer/filter"
)

// score fills in the samples of a group, or the filter that left none. Rollouts that failed are no part of it; one that
// goes on to the packer has an empty fate. Where some are left, Monitored counts those that filters dropped as well: no
// other record names the filter.
//
// A sample without a token in any loss is never sent. Whether one is sent of which every advantage and every weight is
// zero is up to the filter zero_advantage alone.
func (r *rules) score(traces []*schemas.Trace, sg *schemas.SampleGroup, averages advantage.Averages, m *memory) {
	group := advantage.Group{Env: sg.Env, Averages: averages}
	rollouts := make([]*rollout, len(traces)) // nil for one that failed
	missing := 0
	for i, t := range traces {
		if failed(t) {
			missing++
			continue
		}
		sg.Rollouts[i].Fate = schemas.FateFiltered
		rollouts[i] = newRollout(t)
		group.Members = append(group.Members, rollouts[i].members...)
	}
	credits := r.algorithm.Credits(group)
	taker, dropped := "", map[string]int64{}
	for i, ro := range rollouts {
		if ro == nil {
			continue
		}
		for b := range ro.branches {
			s, path := ro.sample(b, credits[ro.branches[b].member], r.EchoRoles, m)
			if s == nil {
				continue
			}
			candidate := filter.Sample{Sample: s, Trace: ro.trace, Path: path, Reward: ro.members[ro.branches[b].member].Reward, Failed: missing}
			if name := r.take(candidate, sg); name == "" {
				sg.Samples = append(sg.Samples, *s)
				sg.Rollouts[i].Fate = ""
			} else {
				taker = cmp.Or(taker, name)
				dropped[name]++
			}
		}
		credits = credits[len(ro.members):]
	}
	if len(sg.Samples) > 0 {
		for name, n := range dropped {
			count(sg, name, n)
		}
		return
	}
	sg.Reason, sg.Filter = schemas.FateFiltered, taker
	if taker == "" {
		sg.Filter = filter.NothingToTrain
	}
}

// take is the name of the first filter that drops the sample. All that monitor are asked, whatever others do.
func (r *rules) take(s filter.Sample, sg *schemas.SampleGroup) (taker string) {
	for _, f := range r.filters {
		drops := f.Does() == filter.Drop
		if drops && taker != "" || !f.Takes(s) {
			continue
		}
		if drops {
			taker = f.Name()
			continue
		}
		count(sg, f.Name(), 1)
	}
	return taker
}

func count(sg *schemas.SampleGroup, name string, samples int64) {
	if sg.Monitored == nil {
		sg.Monitored = map[string]int64{}
	}
	sg.Monitored[name] += samples
}

// enough reports whether a group with failed rollouts is trained without them.
func (r *rules) enough(traces []*schemas.Trace, reason string) bool {
	good := len(traces)
	for _, t := range traces {
		if failed(t) {
			good--
		}
	}
	return r.Partial == Train && reason != schemas.FateCancelled && good >= r.MinGroupSize
}
