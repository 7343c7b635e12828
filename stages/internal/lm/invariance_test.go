package lm

import (
	"math"
	"slices"
	"testing"
)

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// decodeAlone gives the logits after every token of a sequence, token by token in a decoder of its own.
func decodeAlone(t *testing.T, m *Model, tokens []int32) [][]float32 {
	t.Helper()
	d, err := NewDecoder(m, 1, len(tokens))
	if err != nil {
		t.Fatal(err)
	}
	slot, _ := d.Acquire()
	var out [][]float32
	for i := range tokens {
		logits, err := d.Step([]Chunk{{slot, tokens[i : i+1]}})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, slices.Clone(logits))
	}
	return out
}

// TestInvariant_BatchInvariance: the logits of 64 sequences decoded together, in shuffled slots and in chunks of random
// sizes, on 1 to 4 CPUs, are those of each alone.
func TestInvariant_BatchInvariance(t *testing.T) { eachShape(t, 37, testBatchInvariance) }

func testBatchInvariance(t *testing.T, cfg Config) {
	vocab := cfg.VocabSize
	m := newModel(t, cfg, 5)
	m.refresh()
	rng := NewRNG(11)
	var seqs [][]int32
	var alone [][][]float32
	for range 64 {
		seq := make([]int32, 1+rng.IntN(90))
		for i := range seq {
			seq[i] = rng.Int32N(int32(vocab))
		}
		seqs = append(seqs, seq)
		alone = append(alone, decodeAlone(t, m, seq))
	}
	onCPUs(func(cpus int) {
		d, err := NewDecoder(m, 64, 101)
		if err != nil {
			t.Fatal(err)
		}
		slotOf := rng.Perm(64)
		for range 64 {
			d.Acquire()
		}
		for compared := 0; ; {
			var chunks []Chunk
			var which []int
			for _, i := range rng.Perm(64) {
				at := d.Len(slotOf[i])
				left := len(seqs[i]) - at
				if left == 0 || rng.IntN(4) == 0 {
					continue
				}
				n := 1
				if rng.IntN(2) == 0 {
					n += rng.IntN(left)
				}
				chunks = append(chunks, Chunk{slotOf[i], seqs[i][at : at+n]})
				which = append(which, i)
			}
			logits, err := d.Step(chunks)
			if err != nil {
				t.Fatal(err)
			}
			for k, i := range which {
				if at := d.Len(slotOf[i]); !sameBits(logits[k*vocab:(k+1)*vocab], alone[i][at-1]) {
					t.Fatalf("%d CPUs: sequence %d after token %d has other logits in a batch of %d", cpus, i, at, len(chunks))
				}
				compared++
			}
			done := true
			for i := range seqs {
				done = done && d.Len(slotOf[i]) == len(seqs[i])
			}
			if done {
				if compared < 64 {
					t.Fatalf("only %d logits were compared", compared)
				}
				return
			}
		}
	})
}

// TestInvariant_TrainedAsSampled: log-probabilities scored on packed rows have the bits that sampling gave, whatever is
// packed with them, so that the importance ratio of an on-policy batch is exactly 1.
func TestInvariant_TrainedAsSampled(t *testing.T) { eachShape(t, 37, testTrainedAsSampled) }

func testTrainedAsSampled(t *testing.T, cfg Config) {
	m := newModel(t, cfg, 5)
	m.refresh()
	rng := NewRNG(12)
	b := &Batch{}
	var want []float32
	var sampler Sampler
	for range 40 {
		temperature := 0.5 + rng.Float32()
		d, err := NewDecoder(m, 1, 120)
		if err != nil {
			t.Fatal(err)
		}
		slot, _ := d.Acquire()
		seq := []int32{1, 5, 2}[:1+rng.IntN(3)]
		logits, err := d.Step([]Chunk{{slot, seq}})
		n := len(seq)
		for range n {
			b.Mask, b.LogProbs = append(b.Mask, 0), append(b.LogProbs, 0)
		}
		b.Tokens = append(b.Tokens, seq...)
		for range 1 + rng.IntN(110) {
			if err != nil {
				t.Fatal(err)
			}
			token, logProb := sampler.Sample(logits, temperature, 1, rng)
			b.Tokens, b.Mask, b.LogProbs = append(b.Tokens, token), append(b.Mask, 1), append(b.LogProbs, logProb)
			n++
			logits, err = d.Step([]Chunk{{slot, []int32{token}}})
		}
		b.SeqLens = append(b.SeqLens, int32(n))
		for range n {
			b.Temperatures, b.Advantages = append(b.Temperatures, temperature), append(b.Advantages, 1)
		}
	}
	want = b.LogProbs
	onCPUs(func(cpus int) {
		l := NewLearner(m)
		got, _, err := l.Score(b)
		if err != nil {
			t.Fatal(err)
		}
		if !sameBits(got, want) {
			t.Fatalf("%d CPUs: scored log-probabilities differ from the sampled ones", cpus)
		}
		if l.sum != nil {
			t.Fatal("scoring has taken the memory of a gradient")
		}
		metrics, err := l.Accumulate(b, DefaultRL(b.masked()))
		if err != nil {
			t.Fatal(err)
		}
		if metrics.MeanRatio() != 1 || metrics.MismatchKL != 0 || metrics.MaskedShare() != 0 {
			t.Fatalf("%d CPUs: on-policy mean ratio %v, mismatch KL %v, masked share %v", cpus, metrics.MeanRatio(), metrics.MismatchKL, metrics.MaskedShare())
		}
	})
}

// TestInvariant_Determinism: the same batches give the same weights on any number of CPUs.
func TestInvariant_Determinism(t *testing.T) { eachShape(t, 40, testDeterminism) }

func testDeterminism(t *testing.T, cfg Config) {
	vocab := cfg.VocabSize
	var want []float32
	onCPUs(func(cpus int) {
		m := newModel(t, cfg, 9)
		l, opt, rng := newLearner(m), NewAdamW(), NewRNG(4)
		for range 3 {
			for range 2 {
				b := randomBatch(rng, vocab, 0.3, 50, 100, 3, 20, 20, 20, 90, 1, 1, 70)
				if _, err := l.Accumulate(b, DefaultRL(200)); err != nil {
					t.Fatal(err)
				}
			}
			if info := l.Step(opt, 1e-2); !info.Applied {
				t.Fatal(info)
			}
		}
		if want == nil {
			want = m.flat
		}
		if !sameBits(m.flat, want) {
			t.Fatalf("%d CPUs give other weights than 1", cpus)
		}
	})
}

// TestInvariant_Cuts: however the sequences of a step are cut into micro-batches, gradients and metrics of all components
// are the same but for rounding, each divided by its number of tokens in the step.
func TestInvariant_Cuts(t *testing.T) { eachShape(t, 13, testCuts) }

func testCuts(t *testing.T, cfg Config) {
	vocab := cfg.VocabSize
	m := newModel(t, cfg, 9)
	rng := NewRNG(4)
	b := randomBatch(rng, vocab, 0.5, 30, 100, 3, 20, 1, 60)
	imitated(rng, b)
	whole := newLearner(m)
	want, err := whole.Accumulate(b, b.all()...)
	if err != nil {
		t.Fatal(err)
	}
	if want.RLTokens == 0 || want.CETokens == 0 || want.RefKLTokens == 0 || want.Tokens >= want.RLTokens+want.CETokens+want.RefKLTokens {
		t.Fatalf("every component needs tokens, some of them in common: %+v", want)
	}
	for _, cuts := range [][]int{{1, 2, 3, 4, 5, 6}, {2, 6}, {5, 6}} {
		l, got, from := newLearner(m), Metrics{}, 0
		for _, to := range cuts {
			one, err := l.Accumulate(b.part(from, to), b.all()...)
			if err != nil {
				t.Fatal(err)
			}
			got.Add(one)
			from = to
		}
		for i, v := range whole.sum {
			if diff := math.Abs(float64(v - l.sum[i])); diff > 1e-5*(1+math.Abs(float64(v))) {
				t.Fatalf("cuts %v: weight %d has gradient %g, %g in one micro-batch", cuts, i, l.sum[i], v)
			}
		}
		for k, v := range want.values() {
			if math.Abs(v-got.values()[k]) > 1e-9*(1+math.Abs(v)) {
				t.Errorf("cuts %v: metrics %+v, in one micro-batch %+v", cuts, got, want)
				break
			}
		}
	}
}

func (m Metrics) values() []float64 {
	return []float64{
		float64(m.Tokens), float64(m.Sampled), m.NLL, m.Entropy, float64(m.RLTokens), m.RLLoss, m.Ratio, m.MismatchKL, m.MaskedKL,
		float64(m.MaskedHigh), float64(m.MaskedLow), float64(m.CETokens), m.CELoss, m.CENLL, float64(m.RefKLTokens), m.RefKLLoss, m.TeacherKL,
	}
}

// TestGemmBits: tiles and the number of rows do not change the bits of a product, and the products are right.
func TestGemmBits(t *testing.T) {
	rng := NewRNG(8)
	random := func(n int) []float32 {
		s := make([]float32, n)
		for i := range s {
			s[i] = float32(rng.NormFloat64())
		}
		return s
	}
	for _, n := range []int{1, 3, 16, 47, 127, 128, 129, 300} {
		for _, k := range []int{1, 7, 64, 65, 193} {
			const rows = 64
			a, b := random(rows*k), random(k*n+5)
			all := make([]float32, rows*n)
			gemm(rows, n, k, a, k, b, n, 0, all, n)
			for m := 1; m <= rows; m++ {
				from := rng.IntN(rows - m + 1)
				c := make([]float32, m*n+3)[3:] // another alignment
				gemm(m, n, k, a[from*k:], k, b, n, 0, c, n)
				if !sameBits(c, all[from*n:(from+m)*n]) {
					t.Fatalf("rows %d to %d of a product over %d to %d columns differ alone", from, from+m, k, n)
				}
			}
			at := make([]float32, len(a))
			transpose(at, a, rows, k)
			viaT := make([]float32, rows*n)
			gemmTA(rows, n, k, at, rows, b, n, viaT, n)
			for i := range rows {
				for j := range n {
					var want float64
					for l := range k {
						want += float64(a[i*k+l]) * float64(b[l*n+j])
					}
					for _, got := range []float32{all[i*n+j], viaT[i*n+j]} {
						if math.Abs(float64(got)-want) > 1e-4 {
							t.Fatalf("element %d,%d of a %d×%d×%d product is %g, not %g", i, j, rows, n, k, got, want)
						}
					}
				}
			}
		}
	}
}
