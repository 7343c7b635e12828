package lm

import "fmt"

// Component is one term of the loss: a function of the log-probabilities of its own tokens and of the entropies of the
// distributions they were drawn from, both after temperature, divided by the number of those tokens in the whole step.
// The losses of several components add up.
type Component interface {
	// Validate checks that the batch has what the component reads.
	Validate(b *Batch) error
	// Loss adds the derivatives of the loss of one sequence to those of s, and what it reports to m. It is called once
	// for each sequence with tokens in the loss, in order, and must depend on nothing but s.
	Loss(s *Sequence, m *Metrics)
}

// Sequence is what components see of a sequence: those of its tokens that are in the loss, in order, some of which may be
// another component's.
type Sequence struct {
	Batch                 *Batch
	Tokens                []int     // of each its index in Batch
	LogProbs, Entropies   []float64 // of each, π and the entropy
	DLogProbs, DEntropies []float64 // of each, the derivatives of the loss by them
}

func (s *Sequence) reset(b *Batch) {
	s.Batch, s.Tokens, s.LogProbs, s.Entropies = b, s.Tokens[:0], s.LogProbs[:0], s.Entropies[:0]
	s.DLogProbs, s.DEntropies = s.DLogProbs[:0], s.DEntropies[:0]
}

func (s *Sequence) add(i int, logProb, entropy float64) {
	s.Tokens, s.LogProbs, s.Entropies = append(s.Tokens, i), append(s.LogProbs, logProb), append(s.Entropies, entropy)
	s.DLogProbs, s.DEntropies = append(s.DLogProbs, 0), append(s.DEntropies, 0)
}

// checkCounted checks that the step counts the tokens that a component has in a batch: it divides by that number.
func checkCounted(component string, inBatch, inStep int) error {
	if inBatch > inStep {
		return fmt.Errorf("the batch has %d tokens of loss %s, the whole step counts %d", inBatch, component, inStep)
	}
	return nil
}

// Metrics are sums over tokens, so that those of micro-batches and ranks add up; the methods give the means.
type Metrics struct {
	Tokens  int     // in the loss
	Sampled int     // of these, in component rl or ref_kl: only tokens that were sampled are
	NLL     float64 // Σ −π over Sampled
	Entropy float64 // Σ entropy over Sampled

	RLTokens   int
	RLLoss     float64 // this and the other losses are already divided by the number of tokens in the step
	Ratio      float64 // Σ ρ
	MismatchKL float64 // Σ ρ − r − 1 over tokens within the bounds of the policy term
	MaskedKL   float64 // the same over tokens beyond
	MaskedHigh int     // tokens beyond the upper bound
	MaskedLow  int     // tokens beyond the lower bound

	CETokens int
	CELoss   float64
	CENLL    float64 // Σ −π, whatever the weights

	RefKLTokens int
	RefKLLoss   float64
	TeacherKL   float64 // Σ π − π_ref, whatever the weights
}

// Add adds o to m.
func (m *Metrics) Add(o Metrics) {
	m.Tokens += o.Tokens
	m.Sampled += o.Sampled
	m.NLL += o.NLL
	m.Entropy += o.Entropy
	m.RLTokens += o.RLTokens
	m.RLLoss += o.RLLoss
	m.Ratio += o.Ratio
	m.MismatchKL += o.MismatchKL
	m.MaskedKL += o.MaskedKL
	m.MaskedHigh += o.MaskedHigh
	m.MaskedLow += o.MaskedLow
	m.CETokens += o.CETokens
	m.CELoss += o.CELoss
	m.CENLL += o.CENLL
	m.RefKLTokens += o.RefKLTokens
	m.RefKLLoss += o.RefKLLoss
	m.TeacherKL += o.TeacherKL
}

// count adds the tokens of a sequence.
func (m *Metrics) count(s *Sequence) {
	for k, i := range s.Tokens {
		m.Tokens++
		if s.Batch.Mask[i] == 0 && s.Batch.refKLWeight(i) == 0 {
			continue
		}
		m.Sampled++
		m.NLL -= s.LogProbs[k]
		m.Entropy += s.Entropies[k]
	}
}

// Loss is the sum of all components.
func (m Metrics) Loss() float64 { return m.RLLoss + m.CELoss + m.RefKLLoss }

// MeanNLL, MeanEntropy, MeanRatio, MeanMismatchKL, MeanMaskedKL, MaskedShare, MeanCENLL and MeanTeacherKL are means per
// token; over no token, 0. MeanTeacherKL estimates the divergence of the policy from the teacher, and may be below 0.
func (m Metrics) MeanNLL() float64     { return mean(m.NLL, m.Sampled) }
func (m Metrics) MeanEntropy() float64 { return mean(m.Entropy, m.Sampled) }
func (m Metrics) MeanRatio() float64   { return mean(m.Ratio, m.RLTokens) }
func (m Metrics) MeanMismatchKL() float64 {
	return mean(m.MismatchKL, m.RLTokens-m.MaskedHigh-m.MaskedLow)
}
func (m Metrics) MeanMaskedKL() float64 { return mean(m.MaskedKL, m.MaskedHigh+m.MaskedLow) }
func (m Metrics) MaskedShare() float64 {
	return mean(float64(m.MaskedHigh+m.MaskedLow), m.RLTokens)
}
func (m Metrics) MeanCENLL() float64     { return mean(m.CENLL, m.CETokens) }
func (m Metrics) MeanTeacherKL() float64 { return mean(m.TeacherKL, m.RefKLTokens) }

func mean(sum float64, n int) float64 {
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}
