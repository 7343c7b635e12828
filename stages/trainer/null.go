package trainer

import (
	"context"
	"os"

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

// Prepare implements Learner.
func (n *Null) Prepare(_ context.Context, _ int64, micro []*schemas.MicroBatch) (Step, error) {
	tokens, err := lossTokensOf(micro[0])
	if err != nil {
		return nil, pipeline.Fatal("%w", err)
	}
	return func(ctx context.Context) (Metrics, error) {
		return Metrics{Work: Work{Tokens: tokensOf(micro)}, Values: map[string]float64{"tokens": float64(max(tokens.rl, tokens.ce, tokens.refKL))}}, ctx.Err()
	}, nil
}

// Weights are those of version 0, as safetensors.
func (n *Null) Weights() []byte { return n.weights }

// Snapshot implements Learner: of an optimizer there is no state.
func (n *Null) Snapshot(context.Context, bool) (Snapshot, error) { return copied{n.weights, nil}, nil }

// Load implements Learner.
func (n *Null) Load(_ context.Context, weights, _ string) (err error) {
	if weights != "" {
		n.weights, err = os.ReadFile(weights)
	}
	return err
}

// Close implements Learner: there is nothing to end.
func (n *Null) Close() {}
