package trainer

import (
	"context"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// Null is a learner that learns nothing: every version has the weights of version 0. Pipelines are tested and measured
// with it, without the cost of training.
type Null struct {
	config, tokenizer, weights []byte
}

// NewNull makes version 0 as the native learner does.
func NewNull(run pipeline.RunConfig, model ModelConfig) (*Null, error) {
	m, config, tokenizer, err := newModel(run, model)
	if err != nil {
		return nil, err
	}
	weights, err := encode(m.Params())
	if err != nil {
		return nil, err
	}
	return &Null{config, tokenizer, weights}, nil
}

// Exact implements Learner.
func (n *Null) Exact() bool { return true }

// Files implements Learner.
func (n *Null) Files() (config, tokenizer []byte) { return n.config, n.tokenizer }

// Step implements Learner.
func (n *Null) Step(ctx context.Context, _ int64, micro []*schemas.MicroBatch) (Metrics, error) {
	tokens, err := lossTokensOf(micro[0])
	if err != nil {
		return Metrics{}, pipeline.Fatal("%w", err)
	}
	return Metrics{Values: map[string]float64{"tokens": float64(max(tokens.rl, tokens.ce, tokens.refKL))}}, ctx.Err()
}

// Weights implements Learner.
func (n *Null) Weights() ([]byte, error) { return n.weights, nil }

// Load implements Learner.
func (n *Null) Load(weights []byte) error {
	n.weights = weights
	return nil
}

// Checkpoint implements Learner: there is no state.
func (n *Null) Checkpoint() ([]byte, error) { return []byte{}, nil }

// Restore implements Learner.
func (n *Null) Restore([]byte) error { return nil }

// Close implements Learner: there is nothing to end.
func (n *Null) Close() {}
