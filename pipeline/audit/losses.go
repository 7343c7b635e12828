package audit

import (
	"bytes"

	"github.com/prl-project/prl/schemas"
)

// components are the names of the loss components.
var components = [...]string{"rl", "ce", "ref_kl"}

// lossTokens counts tokens by loss component; any is those in at least one.
type lossTokens struct {
	by  [len(components)]int64
	any int64
}

// add counts the tokens of a mask and of weights, which may be left out.
func (l *lossTokens) add(mask schemas.Uint8s, ce, refKL schemas.Float32s) {
	for k, m := range mask {
		in := false
		for i, on := range [len(components)]bool{m == 1, weighed(ce, k), weighed(refKL, k)} {
			if on {
				l.by[i]++
				in = true
			}
		}
		if in {
			l.any++
		}
	}
}

// weighed reports whether a weight is other than 0.
func weighed(weights schemas.Float32s, k int) bool { return len(weights) > 0 && weights.At(k) != 0 }

// positions sums which tokens have a weight other than 0; the zero sum stands for none.
func positions(weights schemas.Float32s) sum {
	mask := make([]byte, weights.Len())
	for k := range mask {
		if weighed(weights, k) {
			mask[k] = 1
		}
	}
	return marked(mask)
}

// marked sums which tokens have mask 1; the zero sum stands for none.
func marked(mask []byte) sum {
	if !bytes.Contains(mask, []byte{1}) {
		return sum{}
	}
	return sumOf(mask)
}

// trains reports whether the losses of a sample are over what a branch may train: every token that was sampled in it and
// in no branch before, or none, for the policy gradient as for the divergence from a teacher. Cross-entropy is also over
// tokens that were not sampled.
func (s *sample) trains(b *branch) bool {
	for _, tokens := range []sum{s.rl, s.refKL} {
		if tokens != (sum{}) && tokens != b.sampled {
			return false
		}
	}
	return true
}

// imitates reports whether the tensors that samples may leave out are of n tokens, and the last two both there or neither.
func imitates(n int, ce, refKL, ref schemas.Float32s) bool {
	return (len(ce) == 0 || ce.Len() == n) && (len(refKL) == 0 || refKL.Len() == n) && len(refKL) == len(ref)
}

// present is the tokens of a tensor that may be left out from one to another: nil for one that is, or that holds zeros only,
// with which a micro-batch fills up where another sample has some.
func present(t schemas.Float32s, from, to int) schemas.Float32s {
	if len(t) == 0 {
		return nil
	}
	t = t.Slice(from, to)
	for _, b := range t {
		if b != 0 {
			return t
		}
	}
	return nil
}
