package trainer

import (
	"context"

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
	// Step is one optimizer step over all micro-batches of all ranks: gradients are summed, never averaged, those of each
	// loss component divided by its number of tokens in the step (MicroBatch.loss_tokens), their global norm is clipped,
	// and the optimizer applies them. steps count from 1. A gradient that is not finite changes nothing and sets Metrics.Skipped.
	//
	// An error is Fatal where the batch is at fault, and ErrTransient where what the learner runs beside this process has
	// gone. That holds for all methods; after any error the learner is thrown away.
	Step(ctx context.Context, step int64, micro []*schemas.MicroBatch) (Metrics, error)
	// Weights are the current weights as safetensors.
	Weights() ([]byte, error)
	// Load replaces the weights by those that Weights gave.
	Load(weights []byte) error
	// Checkpoint is the optimizer's state: with it and the weights a new learner goes on as this one would.
	Checkpoint() ([]byte, error)
	// Restore replaces the optimizer's state by one that Checkpoint gave.
	Restore(checkpoint []byte) error
	// Close ends what the learner runs outside of this process; nothing else is called after it.
	Close()
}

// Metrics say what a step did.
type Metrics struct {
	// Skipped: the gradient was not finite, there was no update.
	Skipped bool
	// Values by name, means per token unless said otherwise; those of a component only where it has tokens. What is not
	// finite is not published.
	//
	//	loss, tokens                           sum of the components; number of tokens in any of them
	//	entropy, nll                           of tokens in rl or ref_kl
	//	loss_rl, ratio, kl, masked             ratio of the trained to the sampling policy, divergence of the sampling from
	//	                                       the trained one over tokens within the bounds of the loss, share of those beyond
	//	loss_ce, nll_ce, tokens_ce             nll whatever the weights
	//	loss_ref_kl, kl_teacher, tokens_ref_kl divergence from the teacher, estimated by the tokens sampled: may be below 0
	//	lr, entropy_coef, grad_norm            of the step; the norm is that before clipping
	Values map[string]float64
}
