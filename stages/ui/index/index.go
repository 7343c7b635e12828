// Package index keeps of every rollout what a list filters and sorts by, in 64 bytes, so that a question about a million of
// them is one pass over memory.
//
// Rollouts (from traces) and outcomes may come in any order; both together make an entry. An Index holds the newest Max
// rollouts and says how many it has let go. It is safe for concurrent use. It does no I/O.
package index

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prl-project/prl/schemas"
)

// An ID names a rollout by the record of its trace: it is the same for as long as the run is kept.
type ID struct {
	Eval      bool // of eval_traces
	Partition int32
	Offset    int64
}

func (id ID) String() string { return fmt.Sprintf("%s-%d-%d", id.Topic(), id.Partition, id.Offset) }

// Topic is the topic of the trace.
func (id ID) Topic() string {
	if id.Eval {
		return "eval_traces"
	}
	return "traces"
}

// ParseID reads what String writes.
func ParseID(s string) (id ID, err error) {
	parts := strings.Split(s, "-")
	if len(parts) != 3 || parts[0] != "traces" && parts[0] != "eval_traces" {
		return id, fmt.Errorf("%q names no rollout: a name is like traces-0-41", s)
	}
	partition, err := strconv.ParseUint(parts[1], 10, 15)
	offset, err2 := strconv.ParseUint(parts[2], 10, 63)
	if err != nil || err2 != nil {
		return id, fmt.Errorf("%q names no rollout: a name is like traces-0-41", s)
	}
	return ID{parts[0] == "eval_traces", int32(partition), int64(offset)}, nil
}

// A Rollout is what is told of a trace. Tokens may be 0: the outcome says them.
type Rollout struct {
	ID         ID
	Env, Eval  string
	Group      int64
	Task       int64
	Rollout    int
	Attempt    int
	Time       time.Time
	Reward     *float64
	Tokens     int
	Start, End *int64 // lowest and highest policy version among its sampled tokens
	Seconds    float64
	Error      string // type and message of the first error
	Stop       string
	Policy     string // the frozen policy that played; empty for the one that is trained
	Truncated  bool
}

type entry struct {
	time      int64 // Unix milliseconds
	offset    int64
	group     int32
	next      int32 // another of its group; -1 for none
	reward    float32
	tokens    int32
	start     int32 // -1 for none
	end       int32
	millis    uint32
	partition uint16
	rollout   uint16
	err       uint16
	stop      uint16
	policy    uint16
	attempt   uint8
	fate      uint8
	flags     uint8
}

const (
	flagEval = 1 << iota
	flagTruncated
)

type groupKey struct {
	eval uint16
	id   int64
}

type group struct {
	groupKey
	task    int64
	step    int32 // -1 for none
	first   int32 // of its entries; -1 for none
	env     uint16
	filter  uint16
	fate    uint8
	pending []schemas.RolloutFate // told before their rollouts
}

// Index is the rollouts of a run.
type Index struct {
	Max int // rollouts it holds at most

	mu      sync.RWMutex
	entries []entry
	groups  []group
	byKey   map[groupKey]int32
	words   words
	fates   words
	dropped int64
}

// New makes an index that holds the newest most rollouts.
func New(most int) *Index {
	x := &Index{Max: max(most, 16), byKey: map[groupKey]int32{}}
	x.fates.limit = 255
	x.words.limit = math.MaxUint16
	return x
}

// Len is the number of rollouts held, Dropped of those let go.
func (x *Index) Len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.entries)
}

// Dropped is the number of rollouts that were too many.
func (x *Index) Dropped() int64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.dropped
}

// Add takes rollouts, each once.
func (x *Index) Add(rollouts ...Rollout) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range rollouts {
		x.add(&rollouts[i])
	}
}

func (x *Index) add(r *Rollout) {
	if len(x.entries) >= x.Max {
		x.dropOldest()
	}
	g := x.group(r.Eval, r.Group)
	at := int32(len(x.entries))
	e := entry{
		time: r.Time.UnixMilli(), offset: r.ID.Offset, group: g, next: x.groups[g].first, reward: float32(math.NaN()),
		tokens: clip[int32](int64(r.Tokens)), start: version(r.Start), end: version(r.End), millis: clip[uint32](int64(r.Seconds * 1000)),
		partition: uint16(r.ID.Partition), rollout: clip[uint16](int64(r.Rollout)), attempt: clip[uint8](int64(r.Attempt)),
		err: x.words.put(short(r.Error)), stop: x.words.put(short(r.Stop)), policy: x.words.put(short(r.Policy)),
	}
	if r.Reward != nil {
		e.reward = float32(*r.Reward)
	}
	if r.ID.Eval {
		e.flags |= flagEval
	}
	if r.Truncated {
		e.flags |= flagTruncated
	}
	owner := &x.groups[g]
	owner.first, owner.task = at, r.Task
	if owner.env == 0 {
		owner.env = x.words.put(short(r.Env))
	}
	x.entries = append(x.entries, e)
	owner.pending = slices.DeleteFunc(owner.pending, func(f schemas.RolloutFate) bool { return x.settle(at, &f) })
}

// Outcome takes the outcome of a group.
func (x *Index) Outcome(outcomes ...*schemas.GroupOutcome) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, o := range outcomes {
		x.outcome(o)
	}
}

func (x *Index) outcome(o *schemas.GroupOutcome) {
	at := x.group(o.Eval, o.GroupID)
	g := &x.groups[at]
	g.fate, g.filter, g.task = uint8(x.fates.put(o.Fate)), x.words.put(short(o.Filter)), o.TaskIndex
	if g.env == 0 {
		g.env = x.words.put(short(o.Env))
	}
	if o.Step != nil {
		g.step = clip[int32](*o.Step)
	}
	g.pending = nil
	for i := range o.Rollouts {
		settled := false
		for k := g.first; k >= 0; k = x.entries[k].next {
			settled = x.settle(k, &o.Rollouts[i]) || settled
		}
		if !settled && len(g.pending) < maxPending {
			f := o.Rollouts[i]
			f.Error, f.Reward = "", nil // the trace has them
			g.pending = append(g.pending, f)
		}
	}
}

// maxPending bounds what a group keeps for rollouts that have not come.
const maxPending = 4096

// settle gives an entry what became of it, if that is what f tells.
func (x *Index) settle(at int32, f *schemas.RolloutFate) bool {
	e := &x.entries[at]
	if int(e.rollout) != f.RolloutIndex || int(e.attempt) != f.Attempt {
		return false
	}
	e.fate = uint8(x.fates.put(f.Fate))
	if f.Tokens > 0 {
		e.tokens = clip[int32](int64(f.Tokens))
	}
	return true
}

// Forget lets go of what is kept for rollouts that have not come, once all that there are have.
func (x *Index) Forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range x.groups {
		x.groups[i].pending = nil
	}
}

func (x *Index) group(eval string, id int64) int32 {
	key := groupKey{x.words.put(short(eval)), id}
	at, ok := x.byKey[key]
	if !ok {
		at = int32(len(x.groups))
		x.byKey[key] = at
		x.groups = append(x.groups, group{groupKey: key, step: -1, first: -1})
	}
	return at
}

// dropOldest lets go of the oldest tenth, and of the groups of which nothing is left.
func (x *Index) dropOldest() {
	times := make([]int64, len(x.entries))
	for i := range x.entries {
		times[i] = x.entries[i].time
	}
	slices.Sort(times)
	n := max(1, len(times)/10)
	oldest, ties := times[n-1], 0
	for _, t := range times[:n] {
		if t == oldest {
			ties++
		}
	}
	old, groups, entries := x.groups, x.groups[:0:0], x.entries[:0]
	moved := make([]int32, len(old))
	for i := range moved {
		moved[i] = -1
	}
	for _, e := range x.entries {
		if e.time < oldest || e.time == oldest && ties > 0 {
			if e.time == oldest {
				ties--
			}
			continue
		}
		if moved[e.group] < 0 {
			moved[e.group] = int32(len(groups))
			g := old[e.group]
			g.first = -1
			groups = append(groups, g)
		}
		e.group = moved[e.group]
		e.next, groups[e.group].first = groups[e.group].first, int32(len(entries))
		entries = append(entries, e)
	}
	x.byKey = make(map[groupKey]int32, len(groups))
	for i := range old {
		if moved[i] < 0 && len(old[i].pending) > 0 && i > len(old)-len(old)/10 { // new, and its rollouts are on the way
			groups = append(groups, old[i])
		}
	}
	for i := range groups {
		x.byKey[groups[i].groupKey] = int32(i)
	}
	x.entries, x.groups = entries, groups
	x.dropped += int64(n)
}

// version is a policy version in an entry.
func version(v *int64) int32 {
	if v == nil {
		return -1
	}
	return clip[int32](*v)
}

func clip[T int32 | uint32 | uint16 | uint8](v int64) T {
	var most int64
	switch any(T(0)).(type) {
	case int32:
		most = math.MaxInt32
	case uint32:
		most = math.MaxUint32
	case uint16:
		most = math.MaxUint16
	default:
		most = math.MaxUint8
	}
	return T(min(max(v, 0), most))
}

// short bounds a word that others have chosen.
func short(s string) string {
	const most = 200
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// words numbers the words of a run; 0 is the empty one. Beyond the limit all are one.
type words struct {
	limit int
	byID  []string
	ids   map[string]uint16
}

const manyWords = "(one of too many words)"

func (w *words) put(s string) uint16 {
	if s == "" {
		return 0
	}
	if id, ok := w.ids[s]; ok {
		return id
	}
	if w.ids == nil {
		w.ids, w.byID = map[string]uint16{}, []string{""}
	}
	if len(w.byID) >= w.limit {
		s = manyWords
		if id, ok := w.ids[s]; ok {
			return id
		}
	}
	id := uint16(len(w.byID))
	w.ids[strings.Clone(s)], w.byID = id, append(w.byID, strings.Clone(s))
	return id
}

// find is the number of a word, if there is one.
func (w *words) find(s string) (uint16, bool) {
	if s == "" {
		return 0, true
	}
	id, ok := w.ids[s]
	return id, ok
}

func (w *words) word(id uint16) string {
	if int(id) < len(w.byID) {
		return w.byID[id]
	}
	return ""
}
