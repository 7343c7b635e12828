package lm

import "testing"

// TestTeacherIsReached: a policy that is trained on its own samples towards another model diverges from it less and less.
func TestTeacherIsReached(t *testing.T) {
	const vocab, sequences, length = 13, 12, 10
	student, teacher := newModel(t, tinyConfig(vocab), 1), newModel(t, tinyConfig(vocab), 2)
	teacher.refresh()
	l, judge, opt, rng := newLearner(student), NewLearner(teacher), NewAdamW(), NewRNG(3)
	var sampler Sampler
	var kl []float64
	for range 60 {
		d, err := NewDecoder(student, sequences, length)
		if err != nil {
			t.Fatal(err)
		}
		b := &Batch{Mask: make([]byte, sequences*length)}
		for range sequences {
			slot, _ := d.Acquire()
			token, logProb := rng.Int32N(vocab), float32(0)
			for i := range length {
				b.Tokens, b.LogProbs = append(b.Tokens, token), append(b.LogProbs, logProb)
				b.RefKLWeights = append(b.RefKLWeights, float32(min(i, 1)))
				logits, err := d.Step([]Chunk{{slot, []int32{token}}})
				if err != nil {
					t.Fatal(err)
				}
				token, logProb = sampler.Sample(logits, 1, 1, rng)
			}
			b.SeqLens = append(b.SeqLens, length)
		}
		if b.RefLogProbs, _, err = judge.Score(b); err != nil {
			t.Fatal(err)
		}
		m, err := l.Accumulate(b, RefKL{MaskLow: 0.2, KLTau: 1e-3, Tokens: sequences * (length - 1)})
		if err != nil {
			t.Fatal(err)
		}
		kl = append(kl, m.MeanTeacherKL())
		l.Step(opt, 5e-3)
	}
	first, last := (kl[0]+kl[1]+kl[2])/3, (kl[57]+kl[58]+kl[59])/3
	if !(first > 0.1) || last > first/2 {
		t.Errorf("the divergence from the teacher went from %g to %g: it has to halve at least", first, last)
	}
}
