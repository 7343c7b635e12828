package trainer

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/prl-project/prl/pipeline"
)

// TorchConfig is the section [trainer.torch]: settings of the torch learner alone. But for dtype and [trainer.torch.lora] it says
// where and how fast the same is computed, and may be changed from one start to the next.
type TorchConfig struct {
	// Python is an interpreter that has PyTorch and transformers, as `make torch` sets one up; found as the shell finds it.
	Python string `toml:"python"`
	// Timeout bounds every answer of the worker: one micro-batch, one update, reading or writing the weights; and how long
	// ranks wait for each other.
	Timeout pipeline.Duration `toml:"timeout"`
	// Device: cpu, cuda, or auto for cuda where there is one.
	Device string `toml:"device"`
	// DType is what products are computed in: float32 or bfloat16. Weights and sums are in float32.
	DType string `toml:"dtype"`
	// Attention: varlen (one kernel for all sequences; cuda and bfloat16), sdpa (one call for each), or auto for varlen where
	// it runs.
	Attention string `toml:"attention"`
	// ActivationCheckpointing computes layers again in the backward pass, for less memory.
	ActivationCheckpointing bool `toml:"activation_checkpointing"`
	// Compile puts layers through torch.compile.
	Compile bool `toml:"compile"`
	// HeadTokens is for how many tokens logits exist at a time.
	HeadTokens int `toml:"head_tokens"`
	// OffloadOptimizer keeps the optimizer's state in the host's memory.
	OffloadOptimizer bool `toml:"offload_optimizer"`
	// PeakTFLOPS is what one device computes at best, in 10¹² operations per second, for the share that is reached (mfu);
	// 0 for what is known of the device, if anything. Unit: TFLOP/s.
	PeakTFLOPS float64 `toml:"peak_tflops"`
	// WorldSize is the number of processes that train together, one per device; it divides run.ranks.
	WorldSize int `toml:"world_size"`
	// Rank is this process's number among them: rank r trains the partitions r, r + world_size, … of batches; 0 publishes.
	Rank int `toml:"rank"`
	// Rendezvous is where rank 0 listens for the others, host:port; with one process it is not read.
	Rendezvous string `toml:"rendezvous"`
	// LoRA is the section [trainer.torch.lora].
	LoRA LoRAConfig `toml:"lora"`
}

// LoRAConfig is the section [trainer.torch.lora]: an adapter is trained and published, the weights under it stay those of
// version 0.
type LoRAConfig struct {
	// Rank is the adapter's; 0 to train all weights.
	Rank int `toml:"rank"`
	// Alpha divided by Rank is what the adapter's product is multiplied by.
	Alpha float64 `toml:"alpha"`
	// Targets are the last names of the matrices that get an adapter, q_proj for instance; empty for all of the layers.
	Targets []string `toml:"targets"`
}

// DefaultTorchConfig computes in float32, on a GPU where there is one.
func DefaultTorchConfig() TorchConfig {
	return TorchConfig{
		Python: ".cache/torch/bin/python", Timeout: pipeline.Duration(10 * time.Minute), Device: "auto", DType: "float32",
		Attention: "auto", HeadTokens: 1024, WorldSize: 1, LoRA: LoRAConfig{Alpha: 16},
	}
}

// Validate checks the section on its own.
func (c TorchConfig) Validate() error {
	for _, f := range []struct {
		key, value string
		known      []string
	}{
		{"device", c.Device, []string{"auto", "cpu", "cuda"}},
		{"dtype", c.DType, []string{"float32", "bfloat16"}},
		{"attention", c.Attention, []string{"auto", "varlen", "sdpa"}},
	} {
		if !slices.Contains(f.known, f.value) {
			return fmt.Errorf("trainer.torch.%s = %q: %s", f.key, f.value, strings.Join(f.known, ", "))
		}
	}
	switch {
	case c.Python == "":
		return fmt.Errorf("trainer.torch.python = %q: name an interpreter with PyTorch; `make torch` sets up %s", c.Python, DefaultTorchConfig().Python)
	case c.Timeout < pipeline.Duration(time.Second):
		return fmt.Errorf("trainer.torch.timeout = %v: at least 1s", c.Timeout)
	case c.Attention == "varlen" && (c.Device == "cpu" || c.DType != "bfloat16"):
		return fmt.Errorf("trainer.torch.attention = %q: needs a GPU and trainer.torch.dtype = \"bfloat16\"", c.Attention)
	case c.HeadTokens < 1:
		return fmt.Errorf("trainer.torch.head_tokens = %d: at least 1", c.HeadTokens)
	case !(c.PeakTFLOPS >= 0 && c.PeakTFLOPS < 1e9):
		return fmt.Errorf("trainer.torch.peak_tflops = %g: 0 for what is known of the device, or more", c.PeakTFLOPS)
	case c.WorldSize < 1 || c.WorldSize > 1<<16:
		return fmt.Errorf("trainer.torch.world_size = %d: from 1 to %d", c.WorldSize, 1<<16)
	case c.Rank < 0 || c.Rank >= c.WorldSize:
		return fmt.Errorf("trainer.torch.rank = %d: from 0 to below trainer.torch.world_size = %d", c.Rank, c.WorldSize)
	case c.WorldSize > 1 && !hostPort(c.Rendezvous):
		return fmt.Errorf("trainer.torch.rendezvous = %q: host:port of rank 0, where the %d ranks meet", c.Rendezvous, c.WorldSize)
	}
	return c.LoRA.validate()
}

func hostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	return err == nil && host != "" && port != ""
}

func (c LoRAConfig) validate() error {
	switch {
	case c.Rank < 0 || c.Rank > 1<<12:
		return fmt.Errorf("trainer.torch.lora.rank = %d: 0 for no adapter, at most %d", c.Rank, 1<<12)
	case !(c.Alpha > 0 && c.Alpha <= 1<<16):
		return fmt.Errorf("trainer.torch.lora.alpha = %g: above 0, at most %d", c.Alpha, 1<<16)
	case c.Rank == 0 && len(c.Targets) > 0:
		return fmt.Errorf("trainer.torch.lora.targets = %q: of an adapter, and trainer.torch.lora.rank is 0", c.Targets)
	case slices.Contains(c.Targets, ""):
		return fmt.Errorf("trainer.torch.lora.targets = %q: names of matrices", c.Targets)
	}
	return nil
}

// checkLearner refuses what the learner chosen cannot do.
func (c Config) checkLearner() error {
	t := c.Torch
	switch {
	case c.Optimizer != OptimizerAdamW && c.Optimizer != OptimizerMuon:
		return fmt.Errorf("trainer.optimizer = %q: %s or %s", c.Optimizer, OptimizerAdamW, OptimizerMuon)
	case !(c.Momentum >= 0 && c.Momentum < 1):
		return fmt.Errorf("trainer.momentum = %g: from 0 to below 1", c.Momentum)
	case c.Optimizer != OptimizerMuon && c.Momentum != DefaultConfig().Momentum:
		return fmt.Errorf("trainer.momentum = %g: a setting of trainer.optimizer = %q", c.Momentum, OptimizerMuon)
	case c.Learner == LearnerTorch && t.LoRA.Rank > 0 && c.FullInterval > 1:
		return fmt.Errorf("trainer.full_interval = %d: of versions that are published whole, which those with trainer.torch.lora.rank = %d are not: leave it out", c.FullInterval, t.LoRA.Rank)
	case c.Learner == LearnerTorch:
		return nil
	case c.Optimizer != OptimizerAdamW:
		return fmt.Errorf("trainer.optimizer = %q: needs trainer.learner = %q", c.Optimizer, LearnerTorch)
	case t.LoRA.Rank > 0:
		return fmt.Errorf("trainer.torch.lora.rank = %d: needs trainer.learner = %q", t.LoRA.Rank, LearnerTorch)
	case t.WorldSize > 1:
		return fmt.Errorf("trainer.torch.world_size = %d: needs trainer.learner = %q; the native learner trains all run.ranks in one process", t.WorldSize, LearnerTorch)
	}
	return nil
}

// options are those of the worker (torch/prl_torch/options.py).
func (c TorchConfig) options(seed int64) map[string]any {
	options := map[string]any{
		"device": c.Device, "dtype": c.DType, "attention": c.Attention, "activation_checkpointing": c.ActivationCheckpointing,
		"compile": c.Compile, "head_tokens": c.HeadTokens, "offload_optimizer": c.OffloadOptimizer,
	}
	if c.LoRA.Rank > 0 {
		lora := map[string]any{"r": c.LoRA.Rank, "lora_alpha": c.LoRA.Alpha, "seed": seed}
		if len(c.LoRA.Targets) > 0 {
			lora["target_modules"] = c.LoRA.Targets
		}
		options["lora"] = lora
	}
	return options
}
