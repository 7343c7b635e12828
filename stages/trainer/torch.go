package trainer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/faults"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
)

// Torch is the learner in PyTorch: one rank's part of it, with a device of its own. A worker process holds model and
// optimizer; this one checks micro-batches and hands them over. Losses and figures are the native learner's, and with AdamW
// so are weights and checkpoints: either goes on from those of the other.
type Torch struct {
	run               pipeline.RunConfig
	cfg               Config
	schedule          lm.Schedule
	model             lm.Config
	config, tokenizer []byte
	worker            *worker
	deaths            *deaths
	zero              func(path string) error // writes the weights as they were given to the worker; nil when they have changed
	end               sync.Once               // of the worker
	loss              error                   // what it means
}

// maxDeaths is how many workers in a row may die, without a step between them, until the trainer gives up.
const maxDeaths = 3

// deaths counts them over all learners of a trainer.
type deaths struct{ atomic.Int64 }

// ask is worker.ask. An error is Fatal where another worker would fail, too. After any error the learner is closed.
func (t *Torch) ask(ctx context.Context, op string, args map[string]any, body []byte) (answer, error) {
	a, err := t.worker.ask(ctx, op, args, body)
	if err == nil {
		return a, nil
	}
	t.Close()
	t.end.Do(func() { t.loss = t.lost(err) })
	return a, t.loss
}

// lost says what it means for the trainer that a worker is gone.
func (t *Torch) lost(err error) error {
	failed, ok := errors.AsType[*failure](err)
	switch {
	case ok && failed.OutOfMemory:
		return outOfMemory(pipeline.Fatal("the torch worker ran out of memory %w: %s", err, faults.TrainerOutOfMemory.Do))
	case ok && failed.PeerLost && t.cfg.Torch.WorldSize > 1:
		return fmt.Errorf("%w: rank %d of %d has lost another one %w", pipeline.ErrTransient, t.cfg.Torch.Rank, t.cfg.Torch.WorldSize, failed)
	case ok:
		return pipeline.Fatal("the torch worker failed %w", err)
	case errors.Is(err, pipeline.ErrTransient):
		if n := t.deaths.Add(1); n >= maxDeaths {
			err = pipeline.Fatal("%d workers in a row: %w", n, err)
		}
		if errors.Is(err, errKilled) {
			return outOfMemory(err)
		}
	}
	return err
}

// Exact implements Learner: how a sum is spread over CPUs may change its last bit.
func (t *Torch) Exact() bool { return false }

// Files implements Learner.
func (t *Torch) Files() (config, tokenizer []byte) { return t.config, t.tokenizer }

// Prepare implements Learner: the worker has decoded what it answers.
func (t *Torch) Prepare(ctx context.Context, step int64, micro []*schemas.MicroBatch) (Step, error) {
	tokens, err := lossTokensOf(micro[0])
	if err != nil {
		return nil, pipeline.Fatal("%w", err)
	}
	entropyCoef := t.cfg.entropyCoef(t.run, step)
	loss := t.cfg.components(tokens, entropyCoef)
	count := 0
	for _, mb := range micro {
		if t.elsewhere(mb) {
			continue
		}
		if err := check(batchOf(mb), t.model, loss); err != nil {
			return nil, pipeline.Fatal("rank %d, micro-batch %d: %w", mb.Rank, mb.Index, err)
		}
		record, err := schemas.AppendBinary(nil, mb)
		if err != nil {
			return nil, pipeline.Fatal("rank %d, micro-batch %d: %w", mb.Rank, mb.Index, err)
		}
		if _, err := t.ask(ctx, "prepare", map[string]any{"step": step, "index": count}, record); err != nil {
			return nil, fmt.Errorf("rank %d, micro-batch %d: %w", mb.Rank, mb.Index, err)
		}
		count++
	}
	args := map[string]any{"step": step, "entropy_coef": entropyCoef, "rl_tokens": tokens.rl, "ce_tokens": tokens.ce, "ref_kl_tokens": tokens.refKL}
	return func(ctx context.Context) (Metrics, error) { return t.step(ctx, step, count, args) }, nil
}

// step trains the micro-batches that the worker holds of a step.
func (t *Torch) step(ctx context.Context, step int64, count int, args map[string]any) (Metrics, error) {
	t.zero = nil
	for i := range count {
		args["index"] = i
		if _, err := t.ask(ctx, "accumulate", args, nil); err != nil {
			return Metrics{}, fmt.Errorf("micro-batch %d: %w", i, err)
		}
	}
	pipeline.Crash(stage + ".before-update")
	lr := t.schedule.At(int(step))
	a, err := t.ask(ctx, "update", map[string]any{"lr": lr}, nil)
	if err != nil {
		return Metrics{}, err
	}
	t.deaths.Store(0)
	v := values(metricsOf(a))
	v["lr"], v["entropy_coef"], v["grad_norm"] = lr, args["entropy_coef"].(float64), a.figure("grad_norm")
	return Metrics{Skipped: !a.Applied, Work: t.workOf(a), Values: v}, nil
}

// elsewhere reports whether this rank has nothing to do for a micro-batch: another trains it, or it is a dummy and there are
// no others that wait for this one.
func (t *Torch) elsewhere(mb *schemas.MicroBatch) bool {
	if n := t.cfg.Torch.WorldSize; n > 1 {
		return mb.Rank%n != t.cfg.Torch.Rank
	}
	return mb.SeqLens.Len() == 0
}

// Agree implements sharedLearner.
func (t *Torch) Agree(ctx context.Context, name, value string) (string, error) {
	a, err := t.ask(ctx, "agree", map[string]any{"name": name, "value": value}, nil)
	return a.Value, err
}

// workOf is what an answer says of the work of all ranks.
func (t *Torch) workOf(a answer) Work {
	w := Work{
		Tokens: int64(a.figure("work_tokens")), FLOPs: a.figure("flops"), PeakFLOPS: a.figure("flops_per_second"), Memory: int64(a.figure("memory")),
	}
	if own := t.cfg.Torch.PeakTFLOPS; own > 0 {
		w.PeakFLOPS = own * 1e12 * float64(t.cfg.Torch.WorldSize)
	}
	return w
}

// check holds a micro-batch against the model and the loss.
func check(b *lm.Batch, model lm.Config, loss []lm.Component) error {
	err := b.Validate(model)
	for _, c := range loss {
		if err == nil {
			err = c.Validate(b)
		}
	}
	if err != nil {
		return fmt.Errorf("micro-batch: %w", err)
	}
	return nil
}

// figure is a figure of an answer; 0 where it is not in it.
func (a answer) figure(name string) float64 {
	v, err := strconv.ParseFloat(a.Figures[name], 64)
	if err != nil {
		return 0
	}
	return v
}

func metricsOf(a answer) lm.Metrics {
	count := func(name string) int { return int(a.figure(name)) }
	return lm.Metrics{
		Tokens: count("tokens"), Sampled: count("sampled"), NLL: a.figure("nll"), Entropy: a.figure("entropy"),
		RLTokens: count("rl_tokens"), RLLoss: a.figure("rl_loss"), Ratio: a.figure("ratio"), MismatchKL: a.figure("mismatch_kl"),
		MaskedKL: a.figure("masked_kl"), MaskedHigh: count("masked_high"), MaskedLow: count("masked_low"),
		CETokens: count("ce_tokens"), CELoss: a.figure("ce_loss"), CENLL: a.figure("ce_nll"),
		RefKLTokens: count("ref_kl_tokens"), RefKLLoss: a.figure("ref_kl_loss"), TeacherKL: a.figure("teacher_kl"),
	}
}

// Snapshot implements Learner: the worker copies, and writes the copy beside what it does next.
func (t *Torch) Snapshot(ctx context.Context, checkpoint bool) (Snapshot, error) {
	s := torchSnapshot{t, t.zero}
	_, err := t.ask(ctx, "snapshot", map[string]any{"weights": s.zero == nil, "checkpoint": checkpoint}, nil)
	return s, err
}

// torchSnapshot is the copy that the worker of a learner has made last.
type torchSnapshot struct {
	t    *Torch
	zero func(path string) error // writes the weights instead of the worker
}

// Weights implements Snapshot. Version 0 has the bytes of its folder, others float32 under the model's own names.
func (s torchSnapshot) Weights(ctx context.Context, path string) error {
	if s.zero != nil {
		return s.zero(path)
	}
	return s.save(ctx, "weights", path)
}

// Checkpoint implements Snapshot: the optimizer's moments and its count of updates, as safetensors.
func (s torchSnapshot) Checkpoint(ctx context.Context, path string) error {
	return s.save(ctx, "checkpoint", path)
}

func (s torchSnapshot) save(ctx context.Context, what, path string) error {
	_, err := s.t.ask(ctx, "save", map[string]any{"what": what, "path": path}, nil)
	return err
}

// Load implements Learner.
func (t *Torch) Load(ctx context.Context, weights, checkpoint string) error {
	if weights != "" {
		t.zero = nil
	}
	_, err := t.ask(ctx, "load", map[string]any{"weights": weights, "checkpoint": checkpoint}, nil)
	return err
}

// Close implements Learner: the worker is killed.
func (t *Torch) Close() { t.worker.close() }
