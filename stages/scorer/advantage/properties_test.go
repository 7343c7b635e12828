package advantage

import (
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// relatives are the algorithms that compare, with whether copies of a whole group change nothing. rloo leaves one out, of
// which there are then more.
var relatives = map[string]bool{GRPO: true, MaxRL: true, HierarchicalGRPO: true, Echo: true, RLOO: false}

// variants are the algorithm with its options on and off.
func variants(t testing.TB, name string) []Algorithm {
	list := []Algorithm{algorithm(t, name, nil)}
	if kinds[name].normalize {
		list = append(list, algorithm(t, name, normalize))
	}
	if kinds[name].penalty {
		list = append(list, algorithm(t, name, func(o *Options) { o.LengthPenalty.On = true }))
	}
	return list
}

func random(rng *rand.Rand, n int, reward func() float64) []Member {
	var list []Member
	for i := range n {
		m := Member{Rollout: i, Sampled: rng.IntN(4), Reward: new(reward())}
		m.Size = Size{Output: m.Sampled, Total: m.Sampled + rng.IntN(9), Turns: min(m.Sampled, 1)}
		list = append(list, m)
	}
	return list
}

// TestZeroSum: the advantages of those that were compared sum to zero, and their order, and with most algorithms further
// copies of them all, change nothing but rounding.
func TestZeroSum(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for name, copies := range relatives {
		for range 300 {
			n := 1 + rng.IntN(16)
			list := random(rng, n, func() float64 { return math.Ldexp(rng.NormFloat64(), rng.IntN(40)-20) })
			for v, a := range variants(t, name) {
				got := credits(a, list)
				sum, largest := 0.0, 0.0
				for _, c := range got {
					sum += float64(c.All)
					largest = max(largest, math.Abs(float64(c.All)))
				}
				if math.Abs(sum) > 1e-5*largest*float64(n) || math.IsNaN(sum) {
					t.Fatalf("%s, variant %d: advantages sum to %v, the largest is %v", name, v, sum, largest)
				}
				order := rng.Perm(n)
				var other []Member
				for range 2 {
					for _, i := range order {
						other = append(other, list[i])
					}
				}
				if !copies {
					other = other[:n]
				}
				for k, c := range credits(a, other) {
					if want := got[order[k%n]].All; math.Abs(float64(c.All-want)) > 1e-5*largest || c.RL != got[order[k%n]].RL {
						t.Fatalf("%s, variant %d: %v became %v in another order", name, v, want, c.All)
					}
				}
			}
		}
	}
}

// TestAllEqual: who did equally well is told apart by exactly zero.
func TestAllEqual(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for name := range relatives {
		for range 300 {
			reward := math.Ldexp(rng.NormFloat64(), rng.IntN(2000)-1000)
			list := random(rng, 1+rng.IntN(16), func() float64 { return reward })
			for i := range list {
				list[i].Size = Size{Output: 5, Total: 9, Turns: 2}
			}
			for v, a := range variants(t, name) {
				for i, c := range credits(a, list) {
					if c.All != 0 || !c.RL {
						t.Fatalf("%s, variant %d: member %d of %d with reward %v: %+v", name, v, i, len(list), reward, c)
					}
				}
			}
		}
	}
}

// TestFinite gives every algorithm the worst finite rewards: credits and averages are finite, of the right shape, the same
// again, and the members are as they were.
func TestFinite(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	worst := []float64{0, math.Copysign(0, -1), 1, -1, 0.1, math.MaxFloat64, -math.MaxFloat64, math.MaxFloat64 / 2, 1e300, -1e300,
		math.SmallestNonzeroFloat64, -math.SmallestNonzeroFloat64, 1e-300, math.MaxFloat32}
	for _, name := range Names() {
		for _, a := range variants(t, name) {
			averages := Averages{}
			for range 300 {
				list := random(rng, rng.IntN(6), func() float64 { return worst[rng.IntN(len(worst))] })
				for i := range list {
					m := &list[i]
					m.Agent = []string{"", "solver", "other"}[rng.IntN(3)]
					if rng.IntN(5) == 0 {
						m.Reward = nil
					}
					if rng.IntN(2) == 0 {
						m.TokenRewards = make([]float32, m.Sampled)
						for k := range m.TokenRewards {
							m.TokenRewards[k] = []float32{0, 1, math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32, float32(math.NaN())}[rng.IntN(6)]
						}
					}
				}
				before := slices.Clone(list)
				past := maps.Clone(averages)
				got := a.Credits(Group{Env: "e", Members: list, Averages: averages})
				if again := a.Credits(Group{Env: "e", Members: list, Averages: past}); !reflect.DeepEqual(got, again) {
					t.Fatalf("%s: %v, and then %v", name, got, again)
				}
				if len(got) != len(list) {
					t.Fatalf("%s: %d credits for %d members", name, len(got), len(list))
				}
				for i, c := range got {
					values := append([]float32{c.All, c.RefKL, c.CE, c.Answers}, c.Tokens...)
					for _, v := range values {
						if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
							t.Fatalf("%s: %+v of %+v", name, c, list[i])
						}
					}
					if c.Tokens != nil && len(c.Tokens) != list[i].Sampled {
						t.Fatalf("%s: %d advantages for %d tokens", name, len(c.Tokens), list[i].Sampled)
					}
					if list[i].Reward != before[i].Reward {
						t.Fatalf("%s changed its members", name)
					}
				}
				for k, v := range averages {
					if math.IsNaN(v) || math.IsInf(v, 0) {
						t.Fatalf("average %v is %v", k, v)
					}
				}
			}
		}
	}
}

func FuzzReadAverages(f *testing.F) {
	f.Add(Averages{{"e", ""}: 1.5, {"e", "solver"}: -2}.Append(nil))
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := ReadAverages(b)
		if err != nil {
			return
		}
		again, err := ReadAverages(a.Append(nil))
		if err != nil || !maps.Equal(a, again) {
			t.Fatalf("%v came back as %v, %v", a, again, err)
		}
	})
}
