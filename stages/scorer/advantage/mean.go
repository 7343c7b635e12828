package advantage

import "math"

// A spread is values less their mean, over a scale that keeps every difference finite.
type spread struct {
	mean, scale float64 // the mean is divided by the scale, too
	largest     float64 // of the distances from the mean
}

// centre subtracts the mean from finite values. Equal ones become exactly zero, as the mean is found by its distance from
// one of them.
func centre(values []float64) spread {
	if len(values) == 0 {
		return spread{scale: 1}
	}
	s := spread{scale: 1}
	for _, v := range values {
		if math.Abs(v) > math.MaxFloat64/4 {
			s.scale = 4
		}
	}
	first, n, distance := values[0]/s.scale, float64(len(values)), 0.0
	for _, v := range values {
		distance += (v/s.scale - first) / n
	}
	s.mean = first + distance
	for i, v := range values {
		values[i] = v/s.scale - s.mean
		s.largest = max(s.largest, math.Abs(values[i]))
	}
	return s
}

// meanFree is r - mean.
func meanFree(rewards []float64) {
	s := centre(rewards)
	for i := range rewards {
		rewards[i] *= s.scale
	}
}

// standardized is (r - mean) / std, of the population.
func standardized(rewards []float64) {
	s := centre(rewards)
	if s.largest == 0 {
		return
	}
	// Relative to the largest, no square overflows or vanishes.
	n, squares := float64(len(rewards)), 0.0
	for _, v := range rewards {
		squares += float64(v/s.largest) * float64(v/s.largest) / n
	}
	for i, v := range rewards {
		rewards[i] = v / s.largest / math.Sqrt(squares)
	}
}
