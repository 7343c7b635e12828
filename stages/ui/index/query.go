package index

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Open is, where a fate is asked for, that of rollouts of which nothing is decided.
const Open = "open"

// A Query asks for rollouts. In a URL (ParseQuery):
//
//	env=catch,wordle      of one of these environments
//	eval=train|any|NAME   of training (the default), of training and all evals, of one eval
//	fate=packed,open      what became of it; open: nothing yet
//	filter=NAME           the filter that took its group
//	step=41               the step that trained it
//	group=7  task=3       of this group (with eval), of this task
//	reward=0.5..1         between; also 0.5.. and ..1 and 1, or none
//	version=10..400       the lowest policy version that played it
//	tokens=100..          length
//	error=any|none|TEXT   failed, did not, failed with an error that holds the text (without regard to case)
//	stop=max_turns        why it ended
//	truncated=true        cut by a limit
//	policy=NAME           a frozen policy played it
//	attempt=1..           tried again
//	sort=-time            also time, reward, tokens, version, seconds; with a dash the largest first
//	limit=50  after=…     the page: what a Result's Next says
type Query struct {
	Env, Fate                 []string
	Eval                      string
	Filter, Stop, Policy      string
	Error                     string
	Step, Group, Task         *int64
	Reward                    Range
	NoReward                  bool
	Version, Tokens, Attempts Range
	Truncated                 *bool
	Sort                      string
	Descending                bool
	Limit                     int
	After                     *Cursor
}

// A Range is a closed interval; nil is open.
type Range struct{ Min, Max *float64 }

func (r Range) holds(v float64) bool {
	return (r.Min == nil || v >= *r.Min) && (r.Max == nil || v <= *r.Max)
}
func (r Range) any() bool { return r.Min == nil && r.Max == nil }

// A Cursor is the place of a rollout in a sorted list.
type Cursor struct {
	Key float64
	ID  ID
}

func (c Cursor) String() string {
	return strconv.FormatFloat(c.Key, 'g', -1, 64) + "_" + c.ID.String()
}

// MaxLimit bounds a page.
const MaxLimit = 500

var sorts = []string{"time", "reward", "tokens", "version", "seconds"}

// ParseQuery reads a query from a URL. Other keys than those of Query are left to others.
func ParseQuery(v url.Values) (q Query, err error) {
	fail := func(key, want string) {
		if err == nil {
			err = fmt.Errorf("%s=%s: %s", key, v.Get(key), want)
		}
	}
	number := func(key string) *int64 {
		if v.Get(key) == "" {
			return nil
		}
		n, e := strconv.ParseInt(v.Get(key), 10, 64)
		if e != nil {
			fail(key, "want a whole number")
		}
		return &n
	}
	between := func(key string) Range {
		r, e := parseRange(v.Get(key))
		if e != nil {
			fail(key, "want a number, or two as in 0.5..1 of which one may be missing")
		}
		return r
	}
	q = Query{
		Env: list(v.Get("env")), Fate: list(v.Get("fate")), Eval: v.Get("eval"), Filter: v.Get("filter"), Stop: v.Get("stop"),
		Policy: v.Get("policy"), Error: v.Get("error"), Step: number("step"), Group: number("group"), Task: number("task"),
		Version: between("version"), Tokens: between("tokens"), Attempts: between("attempt"), Sort: "time", Descending: true, Limit: 50,
	}
	if v.Get("reward") == "none" {
		q.NoReward = true
	} else {
		q.Reward = between("reward")
	}
	if s := v.Get("truncated"); s != "" {
		b, e := strconv.ParseBool(s)
		if e != nil {
			fail("truncated", "want true or false")
		}
		q.Truncated = &b
	}
	if s := v.Get("sort"); s != "" {
		q.Sort, q.Descending = strings.CutPrefix(s, "-")
		if !slices.Contains(sorts, q.Sort) {
			fail("sort", "want one of "+strings.Join(sorts, ", ")+", with a dash in front for the largest first")
		}
	}
	if n := number("limit"); n != nil {
		q.Limit = int(*n)
		if *n < 1 || *n > MaxLimit {
			fail("limit", fmt.Sprintf("want 1 to %d", MaxLimit))
		}
	}
	if s := v.Get("after"); s != "" {
		key, name, _ := strings.Cut(s, "_")
		k, e := strconv.ParseFloat(key, 64)
		id, e2 := ParseID(name)
		if e != nil || e2 != nil {
			fail("after", "want what the page before gave as next")
		}
		q.After = &Cursor{k, id}
	}
	return q, err
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func parseRange(s string) (r Range, err error) {
	if s == "" {
		return r, nil
	}
	low, high, two := strings.Cut(s, "..")
	if !two {
		high = low
	}
	for _, end := range []struct {
		text string
		to   **float64
	}{{low, &r.Min}, {high, &r.Max}} {
		if end.text == "" {
			continue
		}
		f, err := strconv.ParseFloat(end.text, 64)
		if err != nil || math.IsNaN(f) {
			return r, fmt.Errorf("%q is no number", end.text)
		}
		*end.to = &f
	}
	return r, nil
}

// A Row is a rollout as a list shows it.
type Row struct {
	ID        string    `json:"id"`
	Env       string    `json:"env"`
	Eval      string    `json:"eval,omitempty"`
	Group     int64     `json:"group"`
	Task      int64     `json:"task"`
	Rollout   int       `json:"rollout"`
	Attempt   int       `json:"attempt,omitempty"`
	Time      time.Time `json:"time"`
	Reward    *float64  `json:"reward"`
	Tokens    int       `json:"tokens,omitempty"`
	Start     *int64    `json:"version"`
	End       *int64    `json:"version_end,omitempty"`
	Seconds   float64   `json:"seconds"`
	Fate      string    `json:"fate"` // empty while undecided
	GroupFate string    `json:"group_fate,omitempty"`
	Filter    string    `json:"filter,omitempty"`
	Step      *int64    `json:"step,omitempty"`
	Stop      string    `json:"stop,omitempty"`
	Error     string    `json:"error,omitempty"`
	Policy    string    `json:"policy,omitempty"`
	Truncated bool      `json:"truncated,omitempty"`
}

// A Result is a page of rollouts, and what all that the query finds have in common.
type Result struct {
	Rows    []Row          `json:"rows"`
	Matches int            `json:"matches"`
	Held    int            `json:"held"`              // rollouts looked at
	Dropped int64          `json:"dropped,omitempty"` // older ones, which are not
	Mean    *float64       `json:"mean_reward"`       // of the matches that have a reward
	Fates   map[string]int `json:"fates"`
	Envs    map[string]int `json:"envs"`
	Next    string         `json:"next,omitempty"` // after= of the next page
}

// Find answers a query.
func (x *Index) Find(q Query) Result {
	x.mu.RLock()
	defer x.mu.RUnlock()
	res := Result{Held: len(x.entries), Dropped: x.dropped, Fates: map[string]int{}, Envs: map[string]int{}}
	t, possible := x.compile(q)
	top := top{limit: q.Limit + 1, descending: q.Descending}
	if possible {
		var fates [256]int
		envs := make([]int, len(x.words.byID)+1)
		sum, rewarded := 0.0, 0
		for i := range x.entries {
			e := &x.entries[i]
			if !t.matches(x, e) {
				continue
			}
			res.Matches++
			fates[e.fate]++
			envs[x.groups[e.group].env]++
			if e.reward == e.reward {
				sum, rewarded = sum+float64(e.reward), rewarded+1
			}
			if c := (Cursor{key(e, q.Sort), e.id()}); q.After == nil || top.before(*q.After, c) {
				top.offer(found{c, int32(i)})
			}
		}
		if rewarded > 0 {
			res.Mean = new(sum / float64(rewarded))
		}
		for id, n := range fates {
			if n > 0 {
				res.Fates[cmp.Or(x.fates.word(uint16(id)), Open)] = n
			}
		}
		for id, n := range envs {
			if n > 0 {
				res.Envs[x.words.word(uint16(id))] = n
			}
		}
	}
	list := top.sorted()
	if len(list) > q.Limit {
		list = list[:q.Limit]
		res.Next = list[len(list)-1].String()
	}
	res.Rows = make([]Row, len(list))
	for i, f := range list {
		res.Rows[i] = x.row(f.at)
	}
	return res
}

// Rows are the rollouts of these names; those that are not held are left out.
func (x *Index) Rows(ids map[ID]bool) []Row {
	x.mu.RLock()
	defer x.mu.RUnlock()
	rows := []Row{}
	for i := range x.entries {
		if ids[x.entries[i].id()] {
			rows = append(rows, x.row(int32(i)))
		}
	}
	return rows
}

// Group is the rollouts of a group, by number and attempt.
func (x *Index) Group(eval string, id int64) []Row {
	x.mu.RLock()
	defer x.mu.RUnlock()
	word, ok := x.words.find(short(eval))
	at, known := x.byKey[groupKey{word, id}]
	if !ok || !known {
		return nil
	}
	var rows []Row
	for k := x.groups[at].first; k >= 0 && len(rows) < MaxLimit; k = x.entries[k].next {
		rows = append(rows, x.row(k))
	}
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Or(a.Rollout-b.Rollout, a.Attempt-b.Attempt) })
	return rows
}

func (x *Index) row(at int32) Row {
	e := &x.entries[at]
	g := &x.groups[e.group]
	r := Row{
		ID: e.id().String(), Env: x.words.word(g.env), Eval: x.words.word(g.eval), Group: g.id, Task: g.task, Rollout: int(e.rollout),
		Attempt: int(e.attempt), Time: time.UnixMilli(e.time).UTC(), Tokens: int(e.tokens), Seconds: float64(e.millis) / 1000,
		Fate: x.fates.word(uint16(e.fate)), GroupFate: x.fates.word(uint16(g.fate)), Filter: x.words.word(g.filter),
		Stop: x.words.word(e.stop), Error: x.words.word(e.err), Policy: x.words.word(e.policy), Truncated: e.flags&flagTruncated != 0,
	}
	if v := float64(e.reward); !math.IsNaN(v) && !math.IsInf(v, 0) {
		r.Reward = new(readable(e.reward))
	}
	for _, v := range []struct {
		from int32
		to   **int64
	}{{e.start, &r.Start}, {e.end, &r.End}, {g.step, &r.Step}} {
		if v.from >= 0 {
			*v.to = new(int64(v.from))
		}
	}
	return r
}

// readable is a float32 as the shortest decimal that names it.
func readable(v float32) float64 {
	f, err := strconv.ParseFloat(strconv.FormatFloat(float64(v), 'g', -1, 32), 64)
	if err != nil {
		return float64(v)
	}
	return f
}

func (e *entry) id() ID { return ID{e.flags&flagEval != 0, int32(e.partition), e.offset} }

// key is what an entry is sorted by; NaN where it has none.
func key(e *entry, sort string) float64 {
	switch sort {
	case "reward":
		return float64(e.reward)
	case "tokens":
		return float64(e.tokens)
	case "seconds":
		return float64(e.millis)
	case "version":
		if e.start < 0 {
			return math.NaN()
		}
		return float64(e.start)
	}
	return float64(e.time)
}

type found struct {
	Cursor
	at int32
}

// top is the first limit of what is offered: a heap with the last of them on top.
type top struct {
	limit      int
	descending bool
	list       []found
}

// before says whether a comes before b in the list; what has no key comes last.
func (t *top) before(a, b Cursor) bool {
	switch x, y := math.IsNaN(a.Key), math.IsNaN(b.Key); {
	case x != y:
		return y
	case !x && a.Key != b.Key:
		return (a.Key > b.Key) == t.descending
	case a.ID.Offset != b.ID.Offset:
		return (a.ID.Offset > b.ID.Offset) == t.descending
	case a.ID.Partition != b.ID.Partition:
		return a.ID.Partition < b.ID.Partition
	}
	return !a.ID.Eval && b.ID.Eval
}

func (t *top) Len() int           { return len(t.list) }
func (t *top) Less(i, k int) bool { return t.before(t.list[k].Cursor, t.list[i].Cursor) }
func (t *top) Swap(i, k int)      { t.list[i], t.list[k] = t.list[k], t.list[i] }
func (t *top) Push(v any)         { t.list = append(t.list, v.(found)) }
func (t *top) Pop() (v any) {
	v, t.list = t.list[len(t.list)-1], t.list[:len(t.list)-1]
	return v
}

func (t *top) offer(f found) {
	if len(t.list) < t.limit {
		heap.Push(t, f)
	} else if t.before(f.Cursor, t.list[0].Cursor) {
		t.list[0] = f
		heap.Fix(t, 0)
	}
}

func (t *top) sorted() []found {
	slices.SortFunc(t.list, func(a, b found) int {
		if t.before(a.Cursor, b.Cursor) {
			return -1
		}
		return 1
	})
	return t.list
}
