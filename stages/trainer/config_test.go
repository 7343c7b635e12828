package trainer

import (
	"math"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/internal/lm"
)

func TestDefaultsAreValid(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	if err := DefaultModelConfig().Validate(); err != nil {
		t.Error(err)
	}
	m, _, _, err := newModel(pipeline.DefaultRunConfig(), DefaultModelConfig())
	if err != nil {
		t.Fatal(err)
	}
	if n := parameters(m); n < 95_000 || n > 110_000 {
		t.Errorf("the default model has %d parameters, want about 100,000", n)
	}
}

func parameters(m *lm.Model) (n int) {
	for _, p := range m.Params() {
		n += len(p.Data)
	}
	return n
}

func TestConfigRefuses(t *testing.T) {
	for key, change := range map[string]func(*Config){
		"trainer.learner":             func(c *Config) { c.Learner = "tensor" },
		"trainer.lr":                  func(c *Config) { c.LR = 0 },
		"trainer.lr_final":            func(c *Config) { c.LRFinal = math.NaN() },
		"trainer.schedule":            func(c *Config) { c.Schedule = "step" },
		"trainer.warmup_steps":        func(c *Config) { c.WarmupSteps = -1 },
		"trainer.decay_steps":         func(c *Config) { c.DecaySteps = -1 },
		"trainer.betas":               func(c *Config) { c.Betas[1] = 1 },
		"trainer.eps":                 func(c *Config) { c.Eps = 0 },
		"trainer.max_grad_norm":       func(c *Config) { c.MaxGradNorm = -1 },
		"trainer.entropy_coef":        func(c *Config) { c.EntropyCoef = -1 },
		"trainer.loss":                func(c *Config) { c.Loss = "reinforce" },
		"trainer.kl_tau":              func(c *Config) { c.KLTau = 2 },
		"trainer.dppo_mask_high":      func(c *Config) { c.DPPOMaskHigh = 2 },
		"trainer.tis_cap":             func(c *Config) { c.Loss, c.TISCap = LossTIS, 0 },
		"trainer.ref_kl_mask_low":     func(c *Config) { c.RefKLMaskLow = math.NaN() },
		"trainer.checkpoint_interval": func(c *Config) { c.CheckpointInterval = 0 },
		"trainer.torch.python":        func(c *Config) { c.Torch.Python = "" },
		"trainer.torch.timeout":       func(c *Config) { c.Torch.Timeout = 1 },
		"trainer.torch.device":        func(c *Config) { c.Torch.Device = "tpu" },
		"trainer.torch.dtype":         func(c *Config) { c.Torch.DType = "float16" },
		"trainer.torch.attention":     func(c *Config) { c.Torch.Attention = "varlen" },
		"trainer.torch.head_tokens":   func(c *Config) { c.Torch.HeadTokens = 0 },
		"trainer.torch.peak_tflops":   func(c *Config) { c.Torch.PeakTFLOPS = math.NaN() },
		"trainer.torch.world_size":    func(c *Config) { c.Torch.WorldSize, c.Torch.Rendezvous = 2, "host:1" },
		"trainer.torch.rank":          func(c *Config) { c.Learner, c.Torch.Rank = LearnerTorch, 1 },
		"trainer.torch.rendezvous":    func(c *Config) { c.Learner, c.Torch.WorldSize = LearnerTorch, 2 },
		"trainer.torch.lora.rank":     func(c *Config) { c.Torch.LoRA.Rank = 8 },
		"trainer.torch.lora.alpha":    func(c *Config) { c.Torch.LoRA.Alpha = 0 },
		"trainer.torch.lora.targets":  func(c *Config) { c.Torch.LoRA.Targets = []string{"q_proj"} },
		"trainer.optimizer":           func(c *Config) { c.Optimizer = OptimizerMuon },
		"trainer.momentum":            func(c *Config) { c.Learner, c.Momentum = LearnerTorch, 0.9 },
		"trainer.full_interval":       func(c *Config) { c.FullInterval = 0 },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), key+" = ") {
			t.Errorf("%s: %v", key, err)
		}
	}
	for key, change := range map[string]func(*ModelConfig){
		"model.type":         func(c *ModelConfig) { c.Type = "mixtral" },
		"model.head_dim":     func(c *ModelConfig) { c.HeadDim = 15 },
		"model.hidden_size":  func(c *ModelConfig) { c.HiddenSize = 60 },
		"model.layers":       func(c *ModelConfig) { c.Layers = 0 },
		"model.heads":        func(c *ModelConfig) { c.Heads = 0 },
		"model.kv_heads":     func(c *ModelConfig) { c.KVHeads = 3 },
		"model.ffn":          func(c *ModelConfig) { c.FFN = 0 },
		"model.max_position": func(c *ModelConfig) { c.MaxPosition = 0 },
		"model.alphabet":     func(c *ModelConfig) { c.Alphabet = "aa" },
		"model.renderer":     func(c *ModelConfig) { c.Renderer = "qwen3" }, // without its tokenizer
	} {
		c := DefaultModelConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), key+" = ") {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestNewRefusesWhatDoesNotFitTheRun(t *testing.T) {
	rt := &pipeline.Runtime{Run: testRun("new")}
	cfg, model := testConfig()
	model.MaxPosition = rt.Run.SeqLen + 1
	if _, err := New(rt, cfg, model); err == nil || !strings.HasPrefix(err.Error(), "model.max_position = ") {
		t.Errorf("a context longer than a micro-batch: %v", err)
	}
	cfg, model = torchConfig()
	cfg.Torch.WorldSize, cfg.Torch.Rendezvous = 3, "host:1"
	if _, err := New(rt, cfg, model); err == nil || !strings.HasPrefix(err.Error(), "trainer.torch.world_size = 3: a divisor of run.ranks = 2") {
		t.Errorf("three processes for two partitions: %v", err)
	}
	cfg, model = testConfig()
	cfg.WarmupSteps = int(rt.Run.MaxSteps) + 1
	if _, err := New(rt, cfg, model); err == nil || !strings.HasPrefix(err.Error(), "trainer.warmup_steps = ") {
		t.Errorf("a warm-up longer than the run: %v", err)
	}
}
