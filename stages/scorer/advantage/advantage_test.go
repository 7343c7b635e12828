package advantage

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/prl-project/prl/schemas"
)

func group(rewards ...any) []Rollout {
	var g []Rollout
	for _, r := range rewards {
		t := &schemas.Trace{}
		if v, ok := r.(float64); ok {
			t.Reward = &v
		}
		g = append(g, Rollout{Trace: t})
	}
	return g
}

func algorithm(t testing.TB, o Options) Algorithm {
	t.Helper()
	a, err := New(GRPO, o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestGRPO(t *testing.T) {
	const null = "null"
	excluded := float32(math.Inf(1)) // stands for it in the table
	tests := []struct {
		name    string
		rewards []any
		std     bool
		want    []float32
	}{
		{"two", []any{0.0, 1.0}, false, []float32{-0.5, 0.5}},
		{"three", []any{0.0, 0.0, 3.0}, false, []float32{-1, -1, 2}},
		{"std", []any{0.0, 4.0}, true, []float32{-1, 1}},
		{"std of four", []any{1.0, 1.0, 1.0, 5.0}, true, []float32{-0.57735026, -0.57735026, -0.57735026, 1.7320508}},
		{"all equal", []any{0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1}, false, make([]float32, 8)},
		{"all equal, std", []any{0.1, 0.1, 0.1}, true, make([]float32, 3)},
		{"one", []any{0.7}, true, []float32{0}},
		{"null is outside the baseline", []any{0.0, null, 1.0}, false, []float32{-0.5, excluded, 0.5}},
		{"all null", []any{null, null}, false, []float32{excluded, excluded}},
		{"largest", []any{math.MaxFloat64, -math.MaxFloat64}, false, []float32{math.MaxFloat32, -math.MaxFloat32}},
		{"largest, std", []any{math.MaxFloat64, -math.MaxFloat64}, true, []float32{1, -1}},
		{"smallest, std", []any{0.0, math.SmallestNonzeroFloat64 * 4}, true, []float32{-1, 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for i, a := range algorithm(t, Options{tt.std}).Advantages(group(tt.rewards...)) {
				if a.Excluded != (tt.want[i] == excluded) || !a.Excluded && a.All != tt.want[i] {
					t.Errorf("rollout %d: %+v, want %v", i, a, tt.want[i])
				}
			}
		})
	}
}

func TestGRPOPerToken(t *testing.T) {
	nan := float32(math.NaN())
	g := group(1.0, 0.0, 0.0, "null")
	for i, r := range [][]float32{{1, 1, 4}, {0, nan}, nil, {50, 50, 50}} {
		g[i].TokenRewards, g[i].Sampled = r, max(len(r), 2)
	}
	got := algorithm(t, Options{}).Advantages(g)
	third := float32(1.0 / 3)
	want := [][]float32{{0.5, 0, 0}, {-0.5, -third}, {-third, -third}}
	for i := range want {
		for k, w := range want[i] {
			if a := got[i].At(k); math.Abs(float64(a-w)) > 1e-7 {
				t.Errorf("rollout %d, token %d: %v, want %v", i, k, a, w)
			}
		}
	}
	if !got[3].Excluded {
		t.Error("a null reward is trained on")
	}
}

func TestProperties(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		n := 1 + rng.IntN(16)
		var rewards []any
		for range n {
			rewards = append(rewards, math.Ldexp(rng.NormFloat64(), rng.IntN(40)-20))
		}
		for _, std := range []bool{false, true} {
			a := algorithm(t, Options{std})
			got := a.Advantages(group(rewards...))
			sum, largest := 0.0, 0.0
			for _, v := range got {
				sum += float64(v.All)
				largest = max(largest, math.Abs(float64(v.All)))
			}
			if math.Abs(sum) > 1e-5*largest*float64(n) || math.IsNaN(sum) {
				t.Fatalf("advantages of %v sum to %v", rewards, sum)
			}
			// Order and further copies of the whole group change nothing but rounding.
			order := rng.Perm(n)
			var other []any
			for range 2 {
				for _, i := range order {
					other = append(other, rewards[i])
				}
			}
			for k, v := range a.Advantages(group(other...)) {
				if want := got[order[k%n]].All; math.Abs(float64(v.All-want)) > 1e-5*largest {
					t.Fatalf("%v became %v in another order", want, v.All)
				}
			}
		}
	}
}

func TestNewRollout(t *testing.T) {
	trace := &schemas.Trace{Nodes: []schemas.Node{
		{Mask: schemas.Uint8s{0, 0}},
		{Mask: schemas.Uint8s{1, 0, 1}, TokenRewards: schemas.PackFloat32s([]float32{1, 2, 3})},
		{Mask: schemas.Uint8s{1}},
	}}
	r := NewRollout(trace)
	if r.Sampled != 3 || len(r.TokenRewards) != 3 || r.TokenRewards[0] != 1 || r.TokenRewards[1] != 3 || !math.IsNaN(float64(r.TokenRewards[2])) {
		t.Errorf("%d sampled, rewards %v", r.Sampled, r.TokenRewards)
	}
}

func TestUnknown(t *testing.T) {
	if _, err := New("ppo", Options{}); err == nil {
		t.Error("ppo is no algorithm")
	}
}
