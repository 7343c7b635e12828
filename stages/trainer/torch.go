package trainer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
	"github.com/prl-project/prl/stages/trainer/torch"
)

// Torch is the learner in PyTorch, in float32 on the CPU. A worker process holds model and optimizer; this one checks
// micro-batches and hands them over. Losses and figures are the native learner's, and so are the files it makes: either
// goes on from weights and checkpoints of the other.
type Torch struct {
	run               pipeline.RunConfig
	cfg               Config
	schedule          lm.Schedule
	model             lm.Config
	config, tokenizer []byte
	worker            *worker
	deaths            *deaths
}

// maxDeaths is how many workers in a row may die, without a step between them, until the trainer gives up.
const maxDeaths = 3

// deaths counts them over all learners of a trainer.
type deaths int

// NewTorch starts a worker that holds version 0, made from the run's seed as the native learner's.
func NewTorch(run pipeline.RunConfig, cfg Config, model ModelConfig, deaths *deaths) (*Torch, error) {
	python, err := exec.LookPath(cfg.Torch.Python)
	if err != nil {
		return nil, fmt.Errorf("trainer.torch.python: %w: `make torch` sets up an interpreter with PyTorch, or name one that has it", err)
	}
	m, config, tokenizer, err := newModel(run, model)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "prl-torch-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // the worker has read it
	if err := unpack(dir, m, config); err != nil {
		return nil, fmt.Errorf("hand the model to the torch worker: %w", err)
	}
	w, err := startWorker(python, dir, time.Duration(cfg.Torch.Timeout))
	if err != nil {
		return nil, err
	}
	t := &Torch{run: run, cfg: cfg, schedule: cfg.schedule(run), model: m.Config(), config: config, tokenizer: tokenizer, worker: w, deaths: deaths}
	return t, t.open(dir)
}

// unpack puts the worker's source into dir, and model and configuration into a folder model there.
func unpack(dir string, m *lm.Model, config []byte) error {
	weights, err := encode(m.Params())
	if err != nil {
		return err
	}
	if err := os.CopyFS(dir, torch.Source); err != nil {
		return err
	}
	folder := filepath.Join(dir, "model")
	if err := os.Mkdir(folder, fs.ModePerm); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(folder, "config.json"), config, 0o600), os.WriteFile(filepath.Join(folder, "model.safetensors"), weights, 0o600))
}

func (t *Torch) open(dir string) error {
	schema, err := schemas.Schema((*schemas.MicroBatch)(nil).SchemaName())
	if err != nil {
		return err
	}
	loss := map[string]any{"loss": t.cfg.Loss, "kl_tau": t.cfg.KLTau, "ref_kl_mask_low": t.cfg.RefKLMaskLow}
	for _, s := range lossSettings {
		loss[s.key] = *s.value(&t.cfg)
	}
	_, _, err = t.ask(context.Background(), "open", map[string]any{
		"folder": filepath.Join(dir, "model"), "schema": schema, "loss": loss,
		"optimizer": map[string]any{"betas": t.cfg.Betas, "eps": t.cfg.Eps, "weight_decay": t.cfg.WeightDecay, "max_grad_norm": t.cfg.MaxGradNorm},
	}, nil)
	return err
}

// ask is worker.ask. An error is Fatal where another worker would fail, too. After any error the learner is closed.
func (t *Torch) ask(ctx context.Context, op string, args map[string]any, body []byte) (answer, []byte, error) {
	a, data, err := t.worker.ask(ctx, op, args, body)
	switch {
	case err == nil && a.Error == "":
		return a, data, nil
	case err == nil && a.OutOfMemory:
		err = pipeline.Fatal("the torch worker ran out of memory at %s: %s: give it more, or make run.seq_len or the model smaller", op, a.Error)
	case err == nil:
		err = pipeline.Fatal("the torch worker failed at %s: %s%s", op, a.Error, t.worker.words())
	case ctx.Err() == nil:
		if *t.deaths++; *t.deaths >= maxDeaths {
			err = pipeline.Fatal("%d workers in a row: %w", *t.deaths, err)
		}
	}
	t.Close()
	return a, nil, err
}

// Exact implements Learner: how a sum is spread over CPUs may change its last bit.
func (t *Torch) Exact() bool { return false }

// Files implements Learner.
func (t *Torch) Files() (config, tokenizer []byte) { return t.config, t.tokenizer }

// Step implements Learner.
func (t *Torch) Step(ctx context.Context, step int64, micro []*schemas.MicroBatch) (Metrics, error) {
	tokens, err := lossTokensOf(micro[0])
	if err != nil {
		return Metrics{}, pipeline.Fatal("%w", err)
	}
	entropyCoef := t.cfg.entropyCoef(t.run, step)
	loss := t.cfg.components(tokens, entropyCoef)
	args := map[string]any{"entropy_coef": entropyCoef, "rl_tokens": tokens.rl, "ce_tokens": tokens.ce, "ref_kl_tokens": tokens.refKL}
	var total lm.Metrics
	for _, mb := range micro {
		if mb.SeqLens.Len() == 0 {
			continue // a dummy
		}
		if err := check(batchOf(mb), t.model, loss); err != nil {
			return Metrics{}, pipeline.Fatal("rank %d, micro-batch %d: %w", mb.Rank, mb.Index, err)
		}
		record, err := schemas.AppendBinary(nil, mb)
		if err != nil {
			return Metrics{}, pipeline.Fatal("rank %d, micro-batch %d: %w", mb.Rank, mb.Index, err)
		}
		a, _, err := t.ask(ctx, "micro_batch", args, record)
		if err != nil {
			return Metrics{}, fmt.Errorf("rank %d, micro-batch %d: %w", mb.Rank, mb.Index, err)
		}
		total.Add(metricsOf(a))
	}
	lr := t.schedule.At(int(step))
	a, _, err := t.ask(ctx, "update", map[string]any{"lr": lr}, nil)
	if err != nil {
		return Metrics{}, err
	}
	*t.deaths = 0
	v := values(total)
	v["lr"], v["entropy_coef"], v["grad_norm"] = lr, entropyCoef, a.figure("grad_norm")
	return Metrics{Skipped: !a.Applied, Values: v}, nil
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

// Weights implements Learner.
func (t *Torch) Weights() ([]byte, error) {
	_, weights, err := t.ask(context.Background(), "weights", nil, nil)
	return weights, err
}

// Load implements Learner.
func (t *Torch) Load(weights []byte) error {
	_, _, err := t.ask(context.Background(), "load", nil, weights)
	return err
}

// Checkpoint implements Learner: AdamW's moments and its count of updates, as safetensors.
func (t *Torch) Checkpoint() ([]byte, error) {
	_, checkpoint, err := t.ask(context.Background(), "checkpoint", nil, nil)
	return checkpoint, err
}

// Restore implements Learner.
func (t *Torch) Restore(checkpoint []byte) error {
	_, _, err := t.ask(context.Background(), "restore", nil, checkpoint)
	return err
}

// Close implements Learner: the worker is killed.
func (t *Torch) Close() { t.worker.close() }
