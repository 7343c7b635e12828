package index

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/prl-project/prl/schemas"
)

func TestEntryIsSmall(t *testing.T) {
	if n := unsafe.Sizeof(entry{}); n > 64 {
		t.Errorf("a rollout takes %d bytes", n)
	}
}

// made is random rollouts and the outcomes of their groups, and what rows they must become.
func made(r *rand.Rand, n int) (rollouts []Rollout, outcomes []*schemas.GroupOutcome, rows map[string]Row) {
	rows = map[string]Row{}
	base := time.UnixMilli(1_700_000_000_000).UTC()
	fates := []string{schemas.FatePacked, schemas.FateFiltered, schemas.FateStale, ""}
	for g := 0; len(rollouts) < n; g++ {
		env, fate := []string{"catch", "wordle", "<b>"}[r.IntN(3)], fates[r.IntN(4)]
		step := int64(r.IntN(9) + 1)
		o := &schemas.GroupOutcome{Env: env, GroupID: int64(g), TaskIndex: int64(g % 7), Fate: fate}
		if fate == schemas.FatePacked {
			o.Step = &step
		}
		if fate == schemas.FateFiltered {
			o.Filter = "zero_advantage"
		}
		if g%5 == 4 {
			o.Eval = "held out"
		}
		for i := range 1 + r.IntN(4) {
			version := int64(r.IntN(20))
			x := Rollout{ID: ID{o.Eval != "", int32(r.IntN(3)), int64(len(rollouts))}, Env: env, Eval: o.Eval, Group: o.GroupID, Task: o.TaskIndex, Rollout: i, Attempt: r.IntN(2),
				Time: base.Add(time.Duration(r.IntN(n)) * time.Second), Tokens: 10 + r.IntN(50), Start: &version, End: &version, Seconds: float64(r.IntN(9)), Stop: []string{"done", "max_turns"}[r.IntN(2)]}
			if r.IntN(5) > 0 {
				x.Reward = new(float64(r.IntN(8)) / 8)
			} else if r.IntN(2) == 0 {
				x.Error = "model: Timed OUT"
			}
			row := Row{ID: x.ID.String(), Env: env, Eval: o.Eval, Group: x.Group, Task: x.Task, Rollout: i, Attempt: x.Attempt, Time: x.Time, Reward: x.Reward, Tokens: x.Tokens,
				Start: &version, End: &version, Seconds: x.Seconds, Stop: x.Stop, Error: x.Error}
			if fate != "" {
				row.Fate, row.GroupFate, row.Filter, row.Step = fate, fate, o.Filter, o.Step
				row.Tokens = x.Tokens + 1
				o.Rollouts = append(o.Rollouts, schemas.RolloutFate{RolloutIndex: i, Attempt: x.Attempt, Fate: fate, Tokens: x.Tokens + 1})
			}
			rollouts, rows[row.ID] = append(rollouts, x), row
		}
		if fate != "" {
			outcomes = append(outcomes, o)
		}
	}
	return rollouts, outcomes, rows
}

// TestFind holds queries to a plain search through all rows, whatever order rollouts and outcomes came in.
func TestFind(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		rollouts, outcomes, rows := made(r, 300)
		x := New(10_000)
		type event func()
		var events []event
		for i := range rollouts {
			events = append(events, func() { x.Add(rollouts[i]) })
		}
		for _, o := range outcomes {
			events = append(events, func() { x.Outcome(o) })
		}
		r.Shuffle(len(events), func(i, k int) { events[i], events[k] = events[k], events[i] })
		for _, e := range events {
			e()
		}
		x.Forget()
		for text, keep := range map[string]func(Row) bool{
			"":                                   func(r Row) bool { return r.Eval == "" },
			"eval=any":                           func(Row) bool { return true },
			"eval=held out&env=wordle":           func(r Row) bool { return r.Eval != "" && r.Env == "wordle" },
			"env=catch,<b>&fate=packed":          func(r Row) bool { return r.Eval == "" && r.Env != "wordle" && r.Fate == "packed" },
			"fate=open,stale":                    func(r Row) bool { return r.Eval == "" && (r.Fate == "" || r.Fate == "stale") },
			"reward=0.5..":                       func(r Row) bool { return r.Eval == "" && r.Reward != nil && *r.Reward >= 0.5 },
			"reward=none&error=none":             func(r Row) bool { return r.Eval == "" && r.Reward == nil && r.Error == "" },
			"error=timed out":                    func(r Row) bool { return r.Eval == "" && r.Error != "" },
			"version=3..7&tokens=..30":           func(r Row) bool { return r.Eval == "" && *r.Start >= 3 && *r.Start <= 7 && r.Tokens <= 30 },
			"step=4":                             func(r Row) bool { return r.Eval == "" && r.Step != nil && *r.Step == 4 },
			"filter=zero_advantage&task=3":       func(r Row) bool { return r.Eval == "" && r.Filter != "" && r.Task == 3 },
			"attempt=1..&stop=done&eval=any":     func(r Row) bool { return r.Attempt >= 1 && r.Stop == "done" },
			"group=3":                            func(r Row) bool { return r.Eval == "" && r.Group == 3 },
			"env=nobody":                         func(Row) bool { return false },
			"filter=nothing of the kind":         func(Row) bool { return false },
			"sort=reward&limit=7":                func(r Row) bool { return r.Eval == "" },
			"sort=-reward&limit=11&eval=any":     func(Row) bool { return true },
			"sort=tokens&limit=13&env=wordle":    func(r Row) bool { return r.Eval == "" && r.Env == "wordle" },
			"sort=-version&limit=3&fate=stale":   func(r Row) bool { return r.Eval == "" && r.Fate == "stale" },
			"sort=seconds&limit=499&truncated=1": func(Row) bool { return false },
		} {
			values, err := url.ParseQuery(text)
			if err != nil {
				t.Fatal(err)
			}
			q, err := ParseQuery(values)
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for id, row := range rows {
				if keep(row) {
					want = append(want, id)
				}
			}
			var got []string
			pages := 0
			for ; ; pages++ {
				res := x.Find(q)
				if res.Matches != len(want) {
					t.Fatalf("%q: %d matches, want %d", text, res.Matches, len(want))
				}
				for i, row := range res.Rows {
					if same := rows[row.ID]; fmt.Sprintf("%+v", plain(row)) != fmt.Sprintf("%+v", plain(same)) {
						t.Fatalf("%q: row %+v\nwant %+v", text, plain(row), plain(same))
					}
					if i > 0 && !inOrder(q, res.Rows[i-1], row) {
						t.Fatalf("%q: %+v before %+v", text, plain(res.Rows[i-1]), plain(row))
					}
					got = append(got, row.ID)
				}
				if res.Next == "" || pages > 400 {
					break
				}
				values.Set("after", res.Next)
				if q, err = ParseQuery(values); err != nil {
					t.Fatal(err)
				}
			}
			set := x.Set(q)
			for id := range rows {
				parsed, err := ParseID(id)
				if err != nil || set.Has(parsed) != slices.Contains(want, id) {
					t.Fatalf("%q: the set says otherwise of %s, %v", text, id, err)
				}
			}
			if set.Len() != len(want) || set.Has(ID{Partition: 7}) || set.Has(ID{Offset: 1 << 40}) || set.Has(ID{Offset: -1}) {
				t.Errorf("%q: a set of %d", text, set.Len())
			}
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%q: the pages have %d rollouts, want %d", text, len(got), len(want))
			}
		}
	}
}

// plain is a row whose numbers print.
func plain(r Row) string {
	n := func(p *int64) int64 {
		if p == nil {
			return -1
		}
		return *p
	}
	reward := "none"
	if r.Reward != nil {
		reward = fmt.Sprint(*r.Reward)
	}
	s, e, st := n(r.Start), n(r.End), n(r.Step)
	r.Reward, r.Start, r.End, r.Step = nil, nil, nil, nil
	return fmt.Sprintf("%+v %s %d %d %d", r, reward, s, e, st)
}

func inOrder(q Query, a, b Row) bool {
	of := func(r Row) (v float64, ok bool) {
		switch q.Sort {
		case "reward":
			if r.Reward == nil {
				return 0, false
			}
			return *r.Reward, true
		case "tokens":
			return float64(r.Tokens), true
		case "version":
			return float64(*r.Start), true
		case "seconds":
			return r.Seconds, true
		}
		return float64(r.Time.UnixMilli()), true
	}
	x, ok := of(a)
	y, ok2 := of(b)
	switch {
	case !ok2:
		return true
	case !ok:
		return false
	case q.Descending:
		return x >= y
	}
	return x <= y
}

// TestInvariant_Bounded: an index holds the newest, however many come, and its groups are whole.
func TestInvariant_Bounded(t *testing.T) {
	x := New(1000)
	base := time.UnixMilli(1_700_000_000_000)
	for i := range 10_000 {
		x.Add(Rollout{ID: ID{Offset: int64(i)}, Env: "catch", Group: int64(i / 4), Rollout: i % 4, Time: base.Add(time.Duration(i) * time.Millisecond), Error: fmt.Sprint("error ", i)})
		if i%4 == 3 {
			x.Outcome(Outcome(int64(i/4), 4))
		}
		if n := x.Len(); n > 1000 {
			t.Fatalf("%d rollouts after %d", n, i+1)
		}
	}
	if n, d := x.Len(), x.Dropped(); int64(n)+d != 10_000 || n < 900 {
		t.Errorf("%d held, %d let go", n, d)
	}
	res := x.Find(Query{Sort: "time", Descending: true, Limit: 500})
	if len(res.Rows) != 500 || res.Rows[0].ID != "traces-0-9999" {
		t.Errorf("%d rows, the newest %s", len(res.Rows), res.Rows[0].ID)
	}
	if rows := x.Group("", 2499); len(rows) != 4 || rows[3].Fate != schemas.FatePacked {
		t.Errorf("group %+v", rows)
	}
	if res.Fates[Open] > 4 {
		t.Errorf("fates %v", res.Fates)
	}
	if len(x.groups) > 300 {
		t.Errorf("%d groups of 1000 rollouts", len(x.groups))
	}
}

// Outcome is a packed group of n.
func Outcome(group int64, n int) *schemas.GroupOutcome {
	o := &schemas.GroupOutcome{GroupID: group, Env: "catch", Fate: schemas.FatePacked}
	for i := range n {
		o.Rollouts = append(o.Rollouts, schemas.RolloutFate{RolloutIndex: i, Fate: o.Fate, Tokens: 5})
	}
	return o
}

func TestManyWords(t *testing.T) {
	x := New(100_000)
	for i := range 70_000 {
		x.Add(Rollout{ID: ID{Offset: int64(i)}, Env: fmt.Sprint("env", i), Group: 1, Error: strings.Repeat("é", i%300)})
	}
	if n := len(x.words.byID); n > 1<<16 {
		t.Errorf("%d words", n)
	}
	x.Names()
}

func TestParse(t *testing.T) {
	for _, s := range []string{"traces-0-41", "eval_traces-3-9000000000"} {
		id, err := ParseID(s)
		if err != nil || id.String() != s {
			t.Errorf("%s is read as %v, %v", s, id, err)
		}
	}
	for _, s := range []string{"", "traces", "traces-0", "samples-0-1", "traces--1-2", "traces-0-x", "traces-99999-1", "traces-0-1-2"} {
		if _, err := ParseID(s); err == nil {
			t.Errorf("%q names a rollout", s)
		}
	}
	for _, s := range []string{"reward=a..b", "reward=NaN", "version=1..2..3", "sort=size", "limit=0", "limit=501", "truncated=maybe", "step=1.5", "after=1", "task=x"} {
		v, err := url.ParseQuery(s)
		if err != nil {
			t.Fatal(err)
		}
		key, _, _ := strings.Cut(s, "=")
		if _, err := ParseQuery(v); err == nil || !strings.HasPrefix(err.Error(), key+"=") {
			t.Errorf("%s: %v", s, err)
		}
	}
}

func FuzzParseQuery(f *testing.F) {
	f.Add("env=catch&reward=0.5..1&after=1_traces-0-3&sort=-reward")
	x := New(100)
	x.Add(Rollout{ID: ID{Offset: 1}, Env: "catch"})
	f.Fuzz(func(t *testing.T, s string) {
		v, err := url.ParseQuery(s)
		if err != nil {
			return
		}
		if q, err := ParseQuery(v); err == nil {
			if res := x.Find(q); len(res.Rows) > cmp.Or(q.Limit, 1) {
				t.Errorf("%d rows", len(res.Rows))
			}
		}
	})
}
