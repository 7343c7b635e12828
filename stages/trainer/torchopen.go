package trainer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
	"github.com/prl-project/prl/stages/trainer/torch"
)

// NewTorch starts a worker that holds version 0: a folder's, or one made from the run's seed as the native learner's. base,
// unless it is empty, is a file with other whole weights of the same model, which it holds then.
func NewTorch(ctx context.Context, run pipeline.RunConfig, cfg Config, model ModelConfig, base string, deaths *deaths) (*Torch, error) {
	python, err := exec.LookPath(cfg.Torch.Python)
	if err != nil {
		return nil, fmt.Errorf("trainer.torch.python: %w: `make torch` sets up an interpreter with PyTorch, or name one that has it", err)
	}
	dir, err := os.MkdirTemp("", "prl-torch-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // the worker has read it
	t := &Torch{run: run, cfg: cfg, schedule: cfg.schedule(run), deaths: deaths}
	folder, err := t.unpack(dir, model, base)
	if err != nil {
		return nil, fmt.Errorf("hand the model to the torch worker: %w", err)
	}
	if t.worker, err = startWorker(python, dir, time.Duration(cfg.Torch.Timeout)); err != nil {
		return nil, err
	}
	return t, t.open(ctx, folder)
}

// unpack puts the worker's source into dir, and names a folder with the model.
func (t *Torch) unpack(dir string, model ModelConfig, base string) (folder string, err error) {
	if err := os.CopyFS(dir, torch.Source); err != nil {
		return "", err
	}
	made := filepath.Join(dir, "model")
	if err := os.Mkdir(made, fs.ModePerm); err != nil {
		return "", err
	}
	switch {
	case model.Folder == "":
		var m *lm.Model
		if m, t.config, t.tokenizer, err = newModel(t.run, model); err != nil {
			return "", err
		}
		weights, err := encode(m.Params())
		if err != nil {
			return "", err
		}
		t.zero = func(path string) error { return os.WriteFile(path, weights, 0o666) }
		if err := t.zero(filepath.Join(made, fileWeights)); err != nil {
			return "", err
		}
	default:
		if folder, err = model.folder(); err != nil {
			return "", err
		}
		if folder, err = filepath.Abs(folder); err != nil {
			return "", err
		}
		t.zero = func(path string) error { return joinShards(folder, path) }
		if t.config, t.tokenizer, err = folderFiles(folder); err != nil || base == "" {
			return folder, err
		}
	}
	if base != "" {
		t.zero = nil
		if err := errors.Join(os.RemoveAll(filepath.Join(made, fileWeights)), os.Symlink(base, filepath.Join(made, fileWeights))); err != nil {
			return "", err
		}
	}
	return made, os.WriteFile(filepath.Join(made, fileConfig), t.config, 0o600)
}

func (t *Torch) open(ctx context.Context, folder string) error {
	schema, err := schemas.Schema((*schemas.MicroBatch)(nil).SchemaName())
	if err != nil {
		return err
	}
	c, settings := t.cfg, t.cfg.Torch
	loss := map[string]any{"loss": c.Loss, "kl_tau": c.KLTau, "ref_kl_mask_low": c.RefKLMaskLow}
	for _, s := range lossSettings {
		loss[s.key] = *s.value(&c)
	}
	if settings.WorldSize > 1 {
		limit := time.Duration(settings.Timeout)
		if _, err := t.ask(ctx, "join", map[string]any{
			"rank": settings.Rank, "world_size": settings.WorldSize, "rendezvous": settings.Rendezvous, "device": settings.Device,
			"timeout": (limit / 2).Seconds(), // before the answer is due, which the worker's start delays
		}, nil); err != nil {
			return err
		}
	}
	a, err := t.ask(ctx, "open", map[string]any{
		"folder": folder, "schema": schema, "loss": loss, "options": settings.options(t.run.Seed),
		"optimizer": map[string]any{
			"name": c.Optimizer, "momentum": c.Momentum, "betas": c.Betas, "eps": c.Eps, "weight_decay": c.WeightDecay, "max_grad_norm": c.MaxGradNorm,
		},
	}, nil)
	if err != nil {
		return err
	}
	t.model = lm.Config{VocabSize: a.Vocabulary, MaxPositionEmbeddings: a.Positions}
	if a.Positions == 0 { // the model has no bound
		t.model.MaxPositionEmbeddings = t.run.SeqLen
	}
	return nil
}
