package trainer

import (
	"context"
	"errors"
	"fmt"

	"github.com/prl-project/prl/schemas"
)

// A Learner holds a policy's weights and its optimizer. A new one holds version 0, which follows from the configuration
// and the run's seed alone. It is used by one goroutine. A learner on another device implements this and nothing else.
type Learner interface {
	// Exact reports whether the same weights, optimizer state and batches give the same bytes again. Where they do not,
	// the published weights win over those that a replay makes.
	Exact() bool
	// Files are the Hugging Face config.json and tokenizer.json; they do not change.
	Files() (config, tokenizer []byte)
	// Step is one optimizer step over all micro-batches of all ranks: gradients are summed, never averaged, each divided
	// by the step's number of tokens (MicroBatch.loss_tokens), their global norm is clipped, and the optimizer applies
	// them. steps count from 1. A gradient that is not finite changes nothing and sets Metrics.Skipped.
	//
	// An error is Fatal where the batch is at fault. After any error the learner is thrown away.
	Step(ctx context.Context, step int64, micro []*schemas.MicroBatch) (Metrics, error)
	// Weights are the current weights as safetensors.
	Weights() ([]byte, error)
	// Load replaces the weights by those that Weights gave.
	Load(weights []byte) error
	// Checkpoint is the optimizer's state: with it and the weights a new learner goes on as this one would.
	Checkpoint() ([]byte, error)
	// Restore replaces the optimizer's state by one that Checkpoint gave.
	Restore(checkpoint []byte) error
}

// Metrics say what a step did.
type Metrics struct {
	// Skipped: the gradient was not finite, there was no update.
	Skipped bool
	// Values by name, means per token unless said otherwise: loss (sum over the step, divided by its tokens), entropy,
	// kl (of the sampling to the trained policy), ratio, masked (share of tokens out of the policy term), nll, lr,
	// entropy_coef, grad_norm (before clipping), tokens (a count). What is not finite is not published.
	Values map[string]float64
}

// ComponentRL is the loss component of policy-gradient tokens in MicroBatch.loss_tokens.
const ComponentRL = "rl"

// rlTokens is the number of tokens by which the step's policy-gradient loss is divided, over all ranks.
func rlTokens(micro []*schemas.MicroBatch) (int64, error) {
	if len(micro) == 0 {
		return 0, errors.New("no micro-batch")
	}
	tokens := int64(0)
	for _, l := range micro[0].LossTokens {
		if l.Component != ComponentRL {
			return 0, fmt.Errorf("loss component %q is not one that this learner knows (%s)", l.Component, ComponentRL)
		}
		tokens = l.Tokens
	}
	return tokens, nil
}
