package lm

import (
	"math"
	"slices"
	"testing"
)

// TestAdamW follows two weights, one of a matrix and one of a norm, through two steps worked out by hand: β 0.9 and 0.99,
// ε 1e-8, decay 0.5, rate 0.1, gradients 3 and 4 of norm 5 clipped to 2.5 (so 1.5 and 2), then 0.2 and 0, unclipped.
func TestAdamW(t *testing.T) {
	m := newModel(t, tinyConfig(13), 1)
	l := NewLearner(m)
	opt := &AdamW{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.5, MaxNorm: 2.5}
	down, norm := m.layers[0].down.off, m.norm.off
	m.flat[down], m.flat[norm] = 1, 1
	other := m.flat[down+1]

	l.gradient()[down], l.gradient()[norm] = 3, 4
	info := l.Step(opt, 0.1)
	if !info.Applied || !near(info.GradNorm, 5) {
		t.Fatalf("first step: %+v, want a gradient norm of 5", info)
	}
	// m̂ = g and v̂ = g², so the first update is −rate·sign(g); the matrix decays by rate·0.5 first: 0.95 − 0.1.
	check := func(step string, i int, want float64) {
		t.Helper()
		if got := float64(m.flat[i]); math.Abs(got-want) > 1e-6 {
			t.Errorf("%s: weight %d is %.8f, want %.8f", step, i, got, want)
		}
	}
	check("first", down, 0.85)
	check("first", norm, 0.9)
	check("first", down+1, float64(other)*0.95)

	// m = 0.9·0.15 + 0.1·0.2 = 0.155, m̂ = 0.155/0.19 = 0.8157895; v = 0.99·0.0225 + 0.01·0.04 = 0.022675,
	// v̂ = 0.022675/0.0199 = 1.1394472, √v̂ = 1.0674489: the step is 0.1·0.7642422.
	l.gradient()[down] = 0.2
	if info = l.Step(opt, 0.1); !info.Applied || math.Abs(info.GradNorm-0.2) > 1e-6 {
		t.Fatalf("second step: %+v, want a gradient norm of 0.2 (the sum is not cleared?)", info)
	}
	check("second", down, 0.85*0.95-0.07642422)
}

// TestNonFiniteGradient: it changes nothing, is reported, and the next step starts from zero.
func TestNonFiniteGradient(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), math.MaxFloat32} {
		m := newModel(t, tinyConfig(13), 1)
		l, opt := NewLearner(m), NewAdamW()
		l.gradient()[3], l.gradient()[4] = 1, 1
		l.Step(opt, 0.1)
		weights, moments := slices.Clone(m.flat), slices.Clone(opt.m)
		l.gradient()[5] = bad
		info := l.Step(opt, 0.1)
		finite := bad == math.MaxFloat32
		if info.Applied != finite {
			t.Errorf("gradient %g: applied is %v", bad, info.Applied)
		}
		if !finite && (!sameBits(weights, m.flat) || !sameBits(moments, opt.m) || opt.step != 1) {
			t.Errorf("gradient %g changed weights or moments", bad)
		}
		if info = l.Step(opt, 0.1); info.GradNorm != 0 {
			t.Errorf("after gradient %g the sum is not zero", bad)
		}
		for i, v := range m.flat {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				t.Fatalf("gradient %g: weight %d is %g", bad, i, v)
			}
		}
	}
}

// TestOptimizerState: a restored optimizer goes on with the same bits.
func TestOptimizerState(t *testing.T) {
	const vocab = 13
	train := func(l *Learner, opt *AdamW, seed uint64) {
		b := randomBatch(NewRNG(seed), vocab, 0.5, 20, 30)
		if _, err := l.Accumulate(b, DefaultRL(b.masked())); err != nil {
			t.Fatal(err)
		}
		l.Step(opt, 1e-2)
	}
	m := newModel(t, tinyConfig(vocab), 1)
	opt := NewAdamW()
	train(newLearner(m), opt, 1)
	m2, opt2 := m.Clone(), NewAdamW()
	var state []Param
	for _, p := range opt.State(m) {
		state = append(state, Param{p.Name, p.Shape, slices.Clone(p.Data)})
	}
	slices.Reverse(state)
	if err := opt2.Load(m2, state); err != nil {
		t.Fatal(err)
	}
	train(NewLearner(m), opt, 2)
	train(NewLearner(m2), opt2, 2)
	if !sameBits(m.flat, m2.flat) {
		t.Error("the restored optimizer gives other weights")
	}
	for name, spoil := range map[string]func([]Param) []Param{
		"missing":    func(s []Param) []Param { return s[1:] },
		"twice":      func(s []Param) []Param { return append(s, s[0]) },
		"extra":      func(s []Param) []Param { return append(s, Param{Name: "x", Shape: []int{1}, Data: []float32{1}}) },
		"fractional": func(s []Param) []Param { s[len(s)-1].Data[0] = 0.5; return s },
		"NaN steps":  func(s []Param) []Param { s[len(s)-1].Data[0] = float32(math.NaN()); return s },
	} {
		if err := opt2.Load(m2, spoil(slices.Clone(state))); err == nil {
			t.Errorf("state with %s: no error", name)
		}
	}
}

// TestSchedule checks the corners of every kind.
func TestSchedule(t *testing.T) {
	for _, test := range []struct {
		s    Schedule
		step int
		want float64
	}{
		{Schedule{Peak: 1, Warmup: 4, Steps: 14, Final: 0.1, Kind: "linear"}, 1, 0.25},
		{Schedule{Peak: 1, Warmup: 4, Steps: 14, Final: 0.1, Kind: "linear"}, 4, 1},
		{Schedule{Peak: 1, Warmup: 4, Steps: 14, Final: 0.1, Kind: "linear"}, 9, 0.55},
		{Schedule{Peak: 1, Warmup: 4, Steps: 14, Final: 0.1, Kind: "linear"}, 14, 0.1},
		{Schedule{Peak: 1, Warmup: 4, Steps: 14, Final: 0.1, Kind: "linear"}, 99, 0.1},
		{Schedule{Peak: 0.2, Warmup: 4, Steps: 14, Final: 0.1, Kind: "cosine"}, 9, 0.11},
		{Schedule{Peak: 0.2, Warmup: 4, Steps: 14, Final: 0.1, Kind: "cosine"}, 14, 0.02},
		{Schedule{Peak: 0.2, Steps: 11, Kind: "linear"}, 1, 0.2},
		{Schedule{Peak: 0.2, Steps: 11, Kind: "linear"}, 11, 0},
		{Schedule{Peak: 0.2, Steps: 1, Final: 0.5, Kind: "linear"}, 1, 0.1},
		{Schedule{Peak: 0.2, Warmup: 2, Steps: 9, Kind: "constant"}, 9, 0.2},
	} {
		if err := test.s.Validate(); err != nil {
			t.Error(err)
		}
		if got := test.s.At(test.step); !near(got, test.want) {
			t.Errorf("%+v at step %d is %g, want %g", test.s, test.step, got, test.want)
		}
	}
	for _, s := range []Schedule{
		{Peak: 0, Steps: 1, Kind: "linear"}, {Peak: math.NaN(), Steps: 1, Kind: "linear"}, {Peak: 0.1, Kind: "linear"},
		{Peak: 0.1, Steps: 3, Warmup: 4, Kind: "linear"}, {Peak: 0.1, Steps: 1, Final: 2, Kind: "linear"}, {Peak: 0.1, Steps: 1, Kind: "x"},
	} {
		if s.Validate() == nil {
			t.Errorf("%+v is accepted", s)
		}
	}
}
