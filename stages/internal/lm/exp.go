package lm

import "math"

// exps replaces every element by its exp32.
func exps(x []float32) {
	n := 0
	if vectors && len(x) >= 8 {
		n = len(x) &^ 7
		exp8(&x[0], n/8)
	}
	for i, v := range x[n:] {
		x[n+i] = exp32(v)
	}
}

// exp32 is eˣ to about one unit in the last place, 0 below -87 (no subnormals) and +Inf above 88.
func exp32(x float32) float32 {
	const (
		log2e = 1.44269504088896341
		ln2Hi = 0.693359375
		ln2Lo = -2.12194440e-4
		round = 3 << 22 // adding and subtracting it rounds to an integer
	)
	if x < -87 {
		return 0
	}
	if x > 88 {
		return float32(math.Inf(1))
	}
	// Conversions keep the compiler from fusing a product with a sum, which exp8 does not.
	t := float32(x*log2e) + round
	n := t - round
	r := x - float32(n*ln2Hi) - float32(n*ln2Lo)
	p := float32(1.9875691500e-4)
	p = float32(p*r) + 1.3981999507e-3
	p = float32(p*r) + 8.3334519073e-3
	p = float32(p*r) + 4.1665795894e-2
	p = float32(p*r) + 1.6666665459e-1
	p = float32(p*r) + 5.0000001201e-1
	p = float32(p*r*r) + r + 1
	return p * math.Float32frombits((math.Float32bits(t)+127)<<23)
}
