package lm

// Component is one term of the loss: a function of the log-probability of each token and of the entropy of the
// distribution it was drawn from, both after temperature. The losses of several components add up.
type Component interface {
	// Validate checks that the batch has what the component reads.
	Validate(b *Batch) error
	// Term is the loss at masked token i, differentiated by the log-probability π and the entropy; it adds to m what it
	// reports. It is called once for each masked token, in order, and must depend on nothing but its arguments.
	Term(b *Batch, i int, logProb, entropy float64, m *Metrics) (dLogProb, dEntropy float64)
}

// Metrics are sums over tokens, so that those of micro-batches and ranks add up; the methods give the means.
type Metrics struct {
	Tokens      int     // masked tokens
	Loss        float64 // already divided by the global token count
	NLL         float64 // Σ −π
	Entropy     float64 // Σ entropy
	Ratio       float64 // Σ ρ
	MismatchKL  float64 // Σ ρ − r − 1 over tokens that the policy term keeps
	MaskedKL    float64 // the same over tokens that it masks
	MaskedHigh  int     // tokens masked because π rose too far
	MaskedLow   int     // tokens masked because π fell too far
	PolicyTerms int     // tokens that a policy-gradient component saw
}

// Add adds o to m.
func (m *Metrics) Add(o Metrics) {
	m.Tokens += o.Tokens
	m.Loss += o.Loss
	m.NLL += o.NLL
	m.Entropy += o.Entropy
	m.Ratio += o.Ratio
	m.MismatchKL += o.MismatchKL
	m.MaskedKL += o.MaskedKL
	m.MaskedHigh += o.MaskedHigh
	m.MaskedLow += o.MaskedLow
	m.PolicyTerms += o.PolicyTerms
}

// MeanNLL, MeanEntropy, MeanRatio, MeanMismatchKL, MeanMaskedKL and MaskedShare are means per token; over no token, 0.
func (m Metrics) MeanNLL() float64     { return mean(m.NLL, m.Tokens) }
func (m Metrics) MeanEntropy() float64 { return mean(m.Entropy, m.Tokens) }
func (m Metrics) MeanRatio() float64   { return mean(m.Ratio, m.PolicyTerms) }
func (m Metrics) MeanMismatchKL() float64 {
	return mean(m.MismatchKL, m.PolicyTerms-m.MaskedHigh-m.MaskedLow)
}
func (m Metrics) MeanMaskedKL() float64 { return mean(m.MaskedKL, m.MaskedHigh+m.MaskedLow) }
func (m Metrics) MaskedShare() float64 {
	return mean(float64(m.MaskedHigh+m.MaskedLow), m.PolicyTerms)
}

func mean(sum float64, n int) float64 {
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}
