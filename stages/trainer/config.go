package trainer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/inference/render"
	"github.com/prl-project/prl/stages/internal/lm"
	"github.com/prl-project/prl/stages/internal/weights"
)

// Values of Config.Learner.
const (
	LearnerNative = "native" // pure Go, on the CPU
	LearnerTorch  = "torch"  // PyTorch, in processes of its own, on GPUs or the CPU
	LearnerNull   = "null"   // publishes versions whose weights are those of version 0: for tests and benchmarks
)

// Values of Config.Optimizer.
const (
	OptimizerAdamW = "adamw"
	OptimizerMuon  = "muon"
)

// Config is the section [trainer]. All of it but checkpoint_interval, full_interval and [trainer.torch] is fixed for a run:
// steps that are trained again after a restart would come out different.
type Config struct {
	// Learner: native, torch or null.
	Learner string `toml:"learner"`
	// LR is the learning rate at its highest.
	LR float64 `toml:"lr"`
	// LRFinal is the share of LR that is left at the last step.
	LRFinal float64 `toml:"lr_final"`
	// WarmupSteps is the number of steps in which the learning rate rises to LR.
	WarmupSteps int `toml:"warmup_steps"`
	// Schedule is how it falls after them: linear, cosine or constant.
	Schedule string `toml:"schedule"`
	// DecaySteps is the number of steps over which learning rate and entropy coefficient go to their final values;
	// 0 for run.max_steps.
	DecaySteps int64 `toml:"decay_steps"`
	// Optimizer: adamw, or muon (torch learner) for the matrices of the layers, with AdamW for the rest.
	Optimizer string `toml:"optimizer"`
	// Momentum is Muon's: the share of the earlier direction that each step keeps.
	Momentum float64 `toml:"momentum"`
	// Betas are AdamW's decay rates of the first and the second moment.
	Betas [2]float64 `toml:"betas"`
	// Eps is what AdamW adds to the root of the second moment.
	Eps float64 `toml:"eps"`
	// WeightDecay per unit of learning rate, on matrices only.
	WeightDecay float64 `toml:"weight_decay"`
	// MaxGradNorm is the global norm to which gradients are clipped; 0 for no limit.
	MaxGradNorm float64 `toml:"max_grad_norm"`
	// EntropyCoef weighs the entropy bonus, in nats per token, at the first step.
	EntropyCoef float64 `toml:"entropy_coef"`
	// EntropyFinal weighs it at the last; in between the weight changes linearly.
	EntropyFinal float64 `toml:"entropy_final"`
	// Loss is the policy gradient's: dppo, ipo, ppo, gspo or tis. Bounds of the others must be left out.
	Loss string `toml:"loss"`
	// KLTau weighs the square of the log-ratio of the trained to the sampling policy, in the policy gradient, whichever it
	// is, and in the divergence from a teacher.
	KLTau float64 `toml:"kl_tau"`
	// DPPOMaskHigh and DPPOMaskLow: a token whose probability has risen by more than the first (advantage above 0), or
	// fallen by more than the second (advantage at most 0), is left out of the policy term.
	DPPOMaskHigh float64 `toml:"dppo_mask_high"`
	DPPOMaskLow  float64 `toml:"dppo_mask_low"`
	// IPOMask: a token whose probability has changed by more is left out of the policy term, whatever its advantage.
	IPOMask float64 `toml:"ipo_mask"`
	// PPOClipLow and PPOClipHigh: a token's ratio is clipped to between 1 less the first and 1 plus the second.
	PPOClipLow  float64 `toml:"ppo_clip_low"`
	PPOClipHigh float64 `toml:"ppo_clip_high"`
	// GSPOClipLow and GSPOClipHigh: so is a sample's, the geometric mean over its tokens.
	GSPOClipLow  float64 `toml:"gspo_clip_low"`
	GSPOClipHigh float64 `toml:"gspo_clip_high"`
	// TISCap is the most that a token's ratio counts.
	TISCap float64 `toml:"tis_cap"`
	// RefKLMaskLow: a token whose probability has fallen by more is not drawn to the teacher.
	RefKLMaskLow float64 `toml:"ref_kl_mask_low"`
	// CheckpointInterval is the number of steps between two checkpoints with optimizer state. A restart trains those
	// after the last one again.
	CheckpointInterval int64 `toml:"checkpoint_interval"`
	// FullInterval is the number of versions from one that is published whole to the next; those between are published as
	// the tensors that changed, where that is less. A version with a checkpoint is whole.
	FullInterval int64 `toml:"full_interval"`
	// Torch is the section [trainer.torch].
	Torch TorchConfig `toml:"torch"`
}

// DefaultConfig learns the demo: a hundred thousand parameters from scratch.
func DefaultConfig() Config {
	return Config{
		Learner: LearnerNative, LR: 3e-3, LRFinal: 0.1, Schedule: "linear", Optimizer: OptimizerAdamW, Betas: [2]float64{0.9, 0.95}, Eps: 1e-8, Momentum: 0.95,
		MaxGradNorm: 1, EntropyCoef: 0.01, Loss: LossDPPO, KLTau: 1e-3, DPPOMaskHigh: 0.2, DPPOMaskLow: 0.2, IPOMask: 0.1,
		PPOClipLow: 0.2, PPOClipHigh: 0.28, GSPOClipLow: 3e-4, GSPOClipHigh: 4e-4, TISCap: 2, RefKLMaskLow: 0.2, CheckpointInterval: 10,
		FullInterval: 1, Torch: DefaultTorchConfig(),
	}
}

// Validate checks the section on its own.
func (c Config) Validate() error {
	for _, f := range []struct {
		key      string
		value    float64
		min, max float64
	}{
		{"lr", c.LR, math.SmallestNonzeroFloat64, 1}, {"lr_final", c.LRFinal, 0, 1},
		{"eps", c.Eps, math.SmallestNonzeroFloat32, 1}, {"weight_decay", c.WeightDecay, 0, 1}, {"max_grad_norm", c.MaxGradNorm, 0, math.MaxFloat32},
		{"entropy_coef", c.EntropyCoef, 0, 1}, {"entropy_final", c.EntropyFinal, 0, 1}, {"kl_tau", c.KLTau, 0, 1},
		{"ref_kl_mask_low", c.RefKLMaskLow, 0, 1},
	} {
		if !(f.value >= f.min && f.value <= f.max) { // NaN fails
			return fmt.Errorf("trainer.%s = %g: from %.3g to %.3g", f.key, f.value, f.min, f.max)
		}
	}
	switch {
	case c.Learner != LearnerNative && c.Learner != LearnerTorch && c.Learner != LearnerNull:
		return fmt.Errorf("trainer.learner = %q: %s, %s or %s", c.Learner, LearnerNative, LearnerTorch, LearnerNull)
	case c.Schedule != "linear" && c.Schedule != "cosine" && c.Schedule != "constant":
		return fmt.Errorf("trainer.schedule = %q: linear, cosine or constant", c.Schedule)
	case c.WarmupSteps < 0:
		return fmt.Errorf("trainer.warmup_steps = %d: 0 or more", c.WarmupSteps)
	case c.DecaySteps < 0:
		return fmt.Errorf("trainer.decay_steps = %d: 0 for run.max_steps, or more", c.DecaySteps)
	case !(c.Betas[0] >= 0 && c.Betas[0] < 1 && c.Betas[1] >= 0 && c.Betas[1] < 1):
		return fmt.Errorf("trainer.betas = %v: both from 0 to below 1", c.Betas)
	case c.CheckpointInterval < 1:
		return fmt.Errorf("trainer.checkpoint_interval = %d: at least 1", c.CheckpointInterval)
	case c.FullInterval < 1 || c.FullInterval > weights.MaxDeltas:
		return fmt.Errorf("trainer.full_interval = %d: from 1 to %d", c.FullInterval, weights.MaxDeltas)
	}
	return cmp.Or(c.Torch.Validate(), c.checkLearner(), c.checkLoss())
}

// decaySteps is the number of steps after which learning rate and entropy coefficient have their final values.
func (c Config) decaySteps(run pipeline.RunConfig) int64 {
	if c.DecaySteps > 0 {
		return c.DecaySteps
	}
	return run.MaxSteps
}

func (c Config) schedule(run pipeline.RunConfig) lm.Schedule {
	return lm.Schedule{Peak: c.LR, Warmup: c.WarmupSteps, Steps: int(c.decaySteps(run)), Final: c.LRFinal, Kind: c.Schedule}
}

// ValidateFor checks all that a trainer is made of: each section, and the sections against each other.
func (c Config) ValidateFor(run pipeline.RunConfig, model ModelConfig) error {
	if err := errors.Join(run.Validate(), c.Validate(), c.check(run), model.Validate()); err != nil {
		return err
	}
	if model.Folder == "" && model.MaxPosition > run.SeqLen {
		return fmt.Errorf("model.max_position = %d: at most run.seq_len = %d, or a sample could be longer than a micro-batch", model.MaxPosition, run.SeqLen)
	}
	return nil
}

// check is what the section must agree on with the run.
func (c Config) check(run pipeline.RunConfig) error {
	if steps := c.decaySteps(run); int64(c.WarmupSteps) > steps {
		return fmt.Errorf("trainer.warmup_steps = %d: at most the %d steps of the schedule (trainer.decay_steps, or run.max_steps)", c.WarmupSteps, steps)
	}
	if n := c.Torch.WorldSize; n > 1 && run.Ranks%n != 0 {
		return fmt.Errorf("trainer.torch.world_size = %d: a divisor of run.ranks = %d, the partitions of batches", n, run.Ranks)
	}
	return nil
}

// entropyCoef is the weight of the entropy bonus at a step; steps count from 1.
func (c Config) entropyCoef(run pipeline.RunConfig, step int64) float64 {
	done, last := step-1, c.decaySteps(run)-1
	if done >= last {
		return c.EntropyFinal
	}
	return c.EntropyCoef + (c.EntropyFinal-c.EntropyCoef)*float64(done)/float64(last)
}

// ModelConfig is the section [model]: the policy, a decoder that starts from the weights of a folder or from random
// ones. It is fixed for a run.
type ModelConfig struct {
	// Folder is a Hugging Face folder, or its file:// URL, from which version 0 is made: config.json, tokenizer.json and
	// *.safetensors, in shards too. All that it says is left out here. Only the trainer reads it, and the weights in it
	// only for version 0. Empty for random weights.
	Folder string `toml:"folder"`
	// Renderer is the chat format: native, chatml, qwen2.5, qwen3, qwen3-nonthinking, llama3 or llama3.1 (package render);
	// empty for the likeliest by the tokenizer's added tokens, see render.New. Every stage that renders or serves reads it.
	Renderer string `toml:"renderer"`
	// Type is the shape, in Hugging Face's words: llama, or qwen3, which norms the heads of queries and keys.
	Type string `toml:"type"`
	// HiddenSize is the width of the residual stream.
	HiddenSize int `toml:"hidden_size"`
	// Layers is the number of decoder layers.
	Layers int `toml:"layers"`
	// Heads is the number of attention heads.
	Heads int `toml:"heads"`
	// HeadDim is the width of a head; 0 for HiddenSize divided by Heads.
	HeadDim int `toml:"head_dim"`
	// KVHeads is the number of heads of keys and values; it divides Heads.
	KVHeads int `toml:"kv_heads"`
	// FFN is the width of the feed-forward layers.
	FFN int `toml:"ffn"`
	// MaxPosition is the longest context, in tokens.
	MaxPosition int `toml:"max_position"`
	// Alphabet is the characters that are tokens; what is not among them is <unk>. Empty for the 256 bytes.
	Alphabet string `toml:"alphabet"`
}

// DefaultModelConfig has about 100,000 parameters and reads printable ASCII.
func DefaultModelConfig() ModelConfig {
	alphabet := []byte{'\n'}
	for c := byte(' '); c <= '~'; c++ {
		alphabet = append(alphabet, c)
	}
	return ModelConfig{Type: lm.TypeLlama, HiddenSize: 64, Layers: 2, Heads: 4, KVHeads: 2, FFN: 192, MaxPosition: 512, Alphabet: string(alphabet)}
}

// Validate checks the section on its own.
func (c ModelConfig) Validate() error {
	if err := c.validateRenderer(); err != nil {
		return err
	}
	if c.Folder != "" {
		return c.validateFolder()
	}
	tokenizer, err := lm.NewTokenizer(c.Alphabet)
	if err != nil {
		return fmt.Errorf("model.alphabet = %q: %w", c.Alphabet, err)
	}
	for _, f := range []struct {
		key        string
		value, max int
	}{
		{"hidden_size", c.HiddenSize, 1 << 14}, {"layers", c.Layers, 256}, {"heads", c.Heads, 1 << 10}, {"kv_heads", c.KVHeads, 1 << 10},
		{"ffn", c.FFN, 1 << 16}, {"max_position", c.MaxPosition, 1 << 20},
	} {
		if f.value < 1 || f.value > f.max {
			return fmt.Errorf("model.%s = %d: from 1 to %d", f.key, f.value, f.max)
		}
	}
	switch {
	case c.Type != lm.TypeLlama && c.Type != lm.TypeQwen3:
		return fmt.Errorf("model.type = %q: %s or %s", c.Type, lm.TypeLlama, lm.TypeQwen3)
	case c.HeadDim < 0 || c.HeadDim > 1<<10 || c.HeadDim%2 != 0:
		return fmt.Errorf("model.head_dim = %d: an even number up to %d, or 0", c.HeadDim, 1<<10)
	case c.HeadDim == 0 && c.HiddenSize%(2*c.Heads) != 0:
		return fmt.Errorf("model.hidden_size = %d: a multiple of twice model.heads = %d, or choose model.head_dim", c.HiddenSize, c.Heads)
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("model.kv_heads = %d: a divisor of model.heads = %d", c.KVHeads, c.Heads)
	}
	if err := c.lm(tokenizer).Validate(); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	return nil
}

func (c ModelConfig) validateRenderer() error {
	names := render.Names()
	if c.Folder == "" {
		names = []string{render.Native} // random weights have a tokenizer of ours
	}
	if c.Renderer != "" && !slices.Contains(names, c.Renderer) {
		return fmt.Errorf("model.renderer = %q: one of %s, or empty for the one that the tokenizer says", c.Renderer, strings.Join(names, ", "))
	}
	return nil
}

func (c ModelConfig) lm(t *lm.Tokenizer) lm.Config {
	m := lm.NewConfig(t.VocabSize(), c.HiddenSize, c.Layers, c.Heads, c.KVHeads, c.FFN, c.MaxPosition)
	m.HeadDim = c.HeadDim
	if c.Type == lm.TypeQwen3 {
		return m.Qwen3()
	}
	return m
}
