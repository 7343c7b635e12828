package fair

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// world lets parties share slots: each wants some number of slots for as long as its work takes.
type world struct {
	division Division
	size     int
	users    []*user
	now      int
}

type user struct {
	*Party
	backlog int   // work that waits, of one slot each
	takes   int   // time of one piece of work
	ends    []int // of what runs
	slots   int   // summed over time
	done    int
}

func newWorld(size int, shares ...float64) *world {
	w := &world{size: size}
	for _, s := range shares {
		w.users = append(w.users, &user{Party: NewParty(s), takes: 1})
	}
	return w
}

// step ends what is through and gives the free slots away.
func (w *world) step(t testing.TB) {
	t.Helper()
	w.now++
	for _, u := range w.users {
		u.ends = slices.DeleteFunc(u.ends, func(end int) bool {
			if end > w.now {
				return false
			}
			u.Give(1)
			u.done++
			return true
		})
	}
	for w.used() < w.size {
		var waiting []*Party
		for _, u := range w.users {
			if u.backlog > 0 {
				waiting = append(waiting, u.Party)
			}
		}
		next := w.division.Next(waiting)
		if next == nil {
			if len(waiting) > 0 {
				t.Fatalf("%d wait, %d of %d slots are used, and none is next", len(waiting), w.used(), w.size)
			}
			break
		}
		i := slices.IndexFunc(w.users, func(u *user) bool { return u.Party == next })
		u := w.users[i]
		for _, other := range w.users { // max-min: nobody who waits is a whole slot behind of the one that gets it
			if other.backlog > 0 && float64(other.held+1)/other.share <= float64(u.held)/u.share {
				t.Fatalf("party %d with %d slots of share %v is next, before one with %d of %v", i, u.held, u.share, other.held, other.share)
			}
		}
		u.backlog--
		u.Take(1)
		u.ends = append(u.ends, w.now+u.takes)
	}
	for _, u := range w.users {
		u.slots += u.Held()
	}
}

func (w *world) used() (n int) {
	for _, u := range w.users {
		n += u.Held()
	}
	return n
}

// With a backlog everybody holds slots by his share, however long his work takes and however much more of it there is.
func TestSharesOfSlots(t *testing.T) {
	for _, c := range []struct {
		size    int
		shares  []float64
		takes   []int
		backlog []int
		want    []float64 // of the slots
	}{
		{30, []float64{1, 1}, []int{1, 1}, []int{1e6, 1e7}, []float64{15, 15}},
		{30, []float64{2, 1}, []int{1, 1}, []int{1e6, 1e7}, []float64{20, 10}},
		{30, []float64{2, 1}, []int{100, 1}, []int{1e6, 1e7}, []float64{20, 10}},
		{30, []float64{2, 1}, []int{1, 100}, []int{1e6, 1e7}, []float64{20, 10}},
		{1, []float64{2, 1}, []int{1, 1}, []int{1e6, 1e7}, []float64{2. / 3, 1. / 3}},
		{2, []float64{2, 1}, []int{1, 1}, []int{1e6, 1e7}, []float64{4. / 3, 2. / 3}},
		{7, []float64{1, 1, 0.5, 4}, []int{3, 1, 7, 2}, []int{1e6, 1e6, 1e6, 1e6}, []float64{7 / 6.5, 7 / 6.5, 3.5 / 6.5, 28 / 6.5}},
		{30, []float64{2, 1}, []int{1, 1}, []int{1e7, 0}, []float64{30, 0}}, // alone
	} {
		t.Run(fmt.Sprint(c.size, c.shares, c.takes), func(t *testing.T) {
			w := newWorld(c.size, c.shares...)
			for i, u := range w.users {
				u.takes, u.backlog = c.takes[i], c.backlog[i]
			}
			const steps = 5000
			for range steps {
				w.step(t)
			}
			for i, u := range w.users {
				if got := float64(u.slots) / steps; math.Abs(got-c.want[i]) > max(0.5, 0.03*c.want[i]) {
					t.Errorf("party %d held %.2f slots, its share is %.2f", i, got, c.want[i])
				}
			}
		})
	}
}

// What a party does not ask for the others have, and it gets its share again as soon as what runs has ended.
func TestLentAndTakenBack(t *testing.T) {
	w := newWorld(12, 1, 2)
	for _, u := range w.users {
		u.takes = 10
	}
	a, b := w.users[0], w.users[1]
	a.backlog = 1e6
	for range 50 {
		w.step(t)
	}
	if a.Held() != 12 {
		t.Fatalf("alone it holds %d of 12", a.Held())
	}
	b.backlog = 1e6
	for range 10 { // as long as a piece of work takes
		w.step(t)
	}
	if a.Held() != 4 || b.Held() != 8 {
		t.Errorf("they hold %d and %d", a.Held(), b.Held())
	}
	a.backlog = 0
	for range 10 {
		w.step(t)
	}
	if b.Held() != 12 {
		t.Errorf("alone it holds %d", b.Held())
	}
}

// Who waited for nothing has saved nothing up: on its return it does not shut the others out.
func TestNothingIsSavedUp(t *testing.T) {
	w := newWorld(1, 1, 1)
	a, b := w.users[0], w.users[1]
	a.backlog = 1000
	for range 1000 {
		w.step(t)
	}
	a.backlog, b.backlog = 1000, 1000
	was := a.done
	for range 100 {
		w.step(t)
	}
	if got := a.done - was; got < 48 || got > 52 {
		t.Errorf("of 100 the one that went on had %d", got)
	}
}

// Tokens: spending alone decides, whatever one request costs.
func TestSharesOfTokens(t *testing.T) {
	var d Division
	long, short := NewParty(2), NewParty(1)
	spent := map[*Party]int{}
	for range 30_000 {
		next := d.Next([]*Party{long, short})
		cost := 1000
		if next == short {
			cost = 7
		}
		next.Charge(cost)
		spent[next] += cost
	}
	if ratio := float64(spent[long]) / float64(spent[short]); math.Abs(ratio-2) > 0.02 {
		t.Errorf("by shares of 2 and 1 they spent %d and %d", spent[long], spent[short])
	}
}

// Another share counts for what is spent from then on: what was spent before neither lets a party catch up nor holds it back.
func TestAnotherShareCountsFromNowOn(t *testing.T) {
	for _, share := range []float64{0.001, 0.5, 2, 1000} {
		var d Division
		a, b := NewParty(1), NewParty(1)
		serve := func(turns int) (ofA int) {
			for range turns {
				next := d.Next([]*Party{a, b})
				if next.Charge(1); next == a {
					ofA++
				}
			}
			return ofA
		}
		serve(100_000)
		a.SetShare(share)
		want := 2002 * share / (share + 1)
		if got := serve(2002); math.Abs(float64(got)-want) > 2 {
			t.Errorf("with a share of %v it has %d of 2002 turns, want %.0f", share, got, want)
		}
	}
}

// FuzzNobodyStarves lets parties come and go with work of all lengths: who waits is served after a bounded number of turns,
// nothing is idle while somebody waits, and no one who waits is a whole slot behind of the one that is served.
func FuzzNobodyStarves(f *testing.F) {
	for i := range 20 {
		f.Add(uint64(i))
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 1))
		shares := make([]float64, 2+rng.IntN(6))
		least, sum := math.Inf(1), 0.0
		for i := range shares {
			shares[i] = math.Exp(4 * (rng.Float64() - 0.5))
			least, sum = min(least, shares[i]), sum+shares[i]
		}
		size := 1 + rng.IntN(20)
		w := newWorld(size, shares...)
		since := make([]int, len(shares)) // steps for which it waited and nothing of its was begun
		for range 3000 {
			for i, u := range w.users {
				switch rng.IntN(20) {
				case 0:
					u.backlog += rng.IntN(100)
				case 1:
					u.backlog = 0
				case 2:
					u.takes = 1 + rng.IntN(9)
				}
				if u.backlog == 0 {
					since[i] = 0
				}
			}
			begun := make([]int, len(shares))
			for i, u := range w.users {
				begun[i] = u.backlog
			}
			w.step(t)
			for i, u := range w.users {
				if since[i]++; u.backlog < begun[i] || u.backlog == 0 {
					since[i] = 0
				}
				// One that holds nothing waits for turns of the others by their shares, each of at most 9 steps.
				if most := 9 * (len(shares) + int(2*sum/least)); u.Held() == 0 && since[i] > most {
					t.Fatalf("party %d of share %.2f has waited for %d steps without a slot (shares %.2f, %d slots)", i, u.share, since[i], shares, size)
				}
			}
		}
	})
}

func BenchmarkNext(b *testing.B) {
	for _, n := range []int{1, 2, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var d Division
			var all []*Party
			for range n {
				all = append(all, NewParty(1))
			}
			for b.Loop() {
				next := d.Next(all)
				next.Take(1)
				next.Give(1)
			}
		})
	}
}
