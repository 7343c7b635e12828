package index

import (
	"slices"
	"strings"
)

// test is a query in the numbers of an index: what each entry is held to.
type test struct {
	q                    *Query
	env, fate, err       []bool // by number; nil for any
	eval                 uint16
	anyEval              bool
	filter, stop, policy uint16
	group                int32 // -1 for any
}

// compile says false where nothing can match.
func (x *Index) compile(q Query) (t test, possible bool) {
	t = test{q: &q, group: -1}
	possible = true
	find := func(s string) (id uint16) {
		id, ok := x.words.find(short(s))
		possible = possible && ok
		return id
	}
	switch q.Eval {
	case "any":
		t.anyEval = true
	case "", "train":
	default:
		t.eval = find(q.Eval)
	}
	t.filter, t.stop, t.policy = find(q.Filter), find(q.Stop), find(q.Policy)
	if len(q.Env) > 0 {
		t.env = make([]bool, max(1, len(x.words.byID)))
		for _, s := range q.Env {
			if id, ok := x.words.find(short(s)); ok {
				t.env[id] = true
			}
		}
	}
	if len(q.Fate) > 0 {
		t.fate = make([]bool, 256)
		for _, s := range q.Fate {
			if s == Open {
				s = ""
			}
			if id, ok := x.fates.find(s); ok {
				t.fate[id] = true
			}
		}
	}
	if q.Error != "" {
		t.err = x.errors(q.Error)
	}
	if q.Group != nil && !t.anyEval && possible {
		at, ok := x.byKey[groupKey{t.eval, *q.Group}]
		t.group, possible = at, ok
	}
	return t, possible
}

// errors says which words are errors that are asked for.
func (x *Index) errors(wanted string) []bool {
	list := make([]bool, max(1, len(x.words.byID)))
	for id := range list {
		switch wanted {
		case "any":
			list[id] = id != 0
		case "none":
			list[id] = id == 0
		default:
			list[id] = strings.Contains(strings.ToLower(x.words.word(uint16(id))), strings.ToLower(wanted))
		}
	}
	return list
}

func (t *test) matches(x *Index, e *entry) bool {
	q, g := t.q, &x.groups[e.group]
	switch {
	case t.group >= 0 && e.group != t.group,
		!t.anyEval && g.eval != t.eval,
		q.Group != nil && g.id != *q.Group,
		t.env != nil && !t.env[g.env],
		t.fate != nil && !t.fate[e.fate],
		t.err != nil && !t.err[e.err],
		t.filter != 0 && g.filter != t.filter,
		t.stop != 0 && e.stop != t.stop,
		t.policy != 0 && e.policy != t.policy,
		q.Step != nil && int64(g.step) != *q.Step,
		q.Task != nil && g.task != *q.Task,
		q.NoReward && e.reward == e.reward,
		q.Truncated != nil && *q.Truncated != (e.flags&flagTruncated != 0):
		return false
	}
	return (q.Reward.any() || q.Reward.holds(float64(e.reward))) && (q.Tokens.any() || q.Tokens.holds(float64(e.tokens))) &&
		(q.Version.any() || e.start >= 0 && q.Version.holds(float64(e.start))) && (q.Attempts.any() || q.Attempts.holds(float64(e.attempt)))
}

// Names are the words that filters can choose from, in order.
type Names struct {
	Envs    []string `json:"envs"`
	Evals   []string `json:"evals"`
	Fates   []string `json:"fates"`
	Filters []string `json:"filters"`
	Stops   []string `json:"stops"`
}

// Names lists what there is.
func (x *Index) Names() Names {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var n Names
	used := make([]uint8, max(1, len(x.words.byID)))
	const env, eval, filter, stop = 1, 2, 4, 8
	for i := range x.groups {
		used[x.groups[i].env] |= env
		used[x.groups[i].eval] |= eval
		used[x.groups[i].filter] |= filter
	}
	for i := range x.entries {
		used[x.entries[i].stop] |= stop
	}
	for id := 1; id < len(used); id++ {
		for _, to := range []struct {
			bit  uint8
			list *[]string
		}{{env, &n.Envs}, {eval, &n.Evals}, {filter, &n.Filters}, {stop, &n.Stops}} {
			if used[id]&to.bit != 0 && len(*to.list) < 1000 {
				*to.list = append(*to.list, x.words.word(uint16(id)))
			}
		}
	}
	n.Fates = append([]string{Open}, x.fates.byID[min(1, len(x.fates.byID)):]...)
	for _, list := range [][]string{n.Envs, n.Evals, n.Fates, n.Filters, n.Stops} {
		slices.Sort(list)
	}
	return n
}
