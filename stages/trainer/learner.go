package trainer

import (
	"context"

	"github.com/prl-project/prl/schemas"
)

// A Learner holds a policy's weights and its optimizer. A new one holds version 0, which follows from the configuration
// and the run's seed alone. A learner on another device implements this and nothing else.
//
// It is used by one goroutine, but for Prepare, which may run beside a Step of an earlier step, and for what a Snapshot
// writes, which may run beside everything. An error is Fatal where the batch or the configuration is at fault, and
// ErrTransient where what the learner runs beside this process has gone. After any error the learner is thrown away.
type Learner interface {
	// Exact reports whether the same weights, optimizer state and batches give the same bytes again. Where they do not,
	// the published weights win over those that a replay makes.
	Exact() bool
	// Files are the Hugging Face config.json and tokenizer.json; they do not change.
	Files() (config, tokenizer []byte)
	// Prepare checks all micro-batches of a step, of all ranks, and brings them where Step needs them. steps count from 1.
	// A step that is never trained is replaced when it is prepared again.
	Prepare(ctx context.Context, step int64, micro []*schemas.MicroBatch) (Step, error)
	// Snapshot copies the weights, and with checkpoint the optimizer's state, as they are.
	Snapshot(ctx context.Context, checkpoint bool) (Snapshot, error)
	// Load replaces the weights by a file that a Snapshot wrote, and the optimizer's state by another; an empty path leaves
	// either as it is. With both, the learner goes on as the one would of which the Snapshot is.
	Load(ctx context.Context, weights, checkpoint string) error
	// Close ends what the learner runs outside of this process; nothing else is called after it.
	Close()
}

// A Step is an optimizer step that can be trained: gradients are summed over its micro-batches, never averaged, those of
// each loss component divided by its number of tokens in the step (MicroBatch.loss_tokens), their global norm is clipped,
// and the optimizer applies them. A gradient that is not finite changes nothing and sets Metrics.Skipped.
type Step func(ctx context.Context) (Metrics, error)

// A Snapshot is a learner's state as it was at one time.
type Snapshot interface {
	// Weights writes the weights to a new file, as safetensors.
	Weights(ctx context.Context, path string) error
	// Checkpoint writes the optimizer's state to a new file; only where it was asked for.
	Checkpoint(ctx context.Context, path string) error
}

// Metrics say what a step did.
type Metrics struct {
	// Skipped: the gradient was not finite, there was no update.
	Skipped bool
	// Work is what it took.
	Work Work
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

// Work is what a step took. With the time it makes the figures that a trainer adds to the topic metrics and to Prometheus,
// and not to the PolicyVersion, which is the same for whoever trains the step:
//
//	tokens_per_second  tokens of all micro-batches, from one step's end to the next: waiting and saving are in it
//	wait_share         of that time, the share in which the batch had not come
//	mfu                share of the operations per second that all devices have at best; only of the time that trained, and
//	                   only where the best is known (trainer.torch.peak_tflops)
//	train_seconds      forward, backward and update
//	save_seconds       until checkpoint and weights were in the blob store, beside the next step
//	memory_bytes       most in use, of rank 0: of its device, on the CPU of the process since it began
type Work struct {
	// Tokens of all micro-batches, in the loss or not.
	Tokens int64
	// FLOPs are the floating-point operations that the model asks for; 0 where they are not counted.
	FLOPs float64
	// PeakFLOPS are the operations per second of all devices at best; 0 where they are not known.
	PeakFLOPS float64
	// Memory is the most in use, in bytes; 0 where it is not measured.
	Memory int64
}
