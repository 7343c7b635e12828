package inference

import (
	"fmt"
	"net"
	"time"

	"github.com/prl-project/prl/pipeline"
)

// Config is the section [inference].
type Config struct {
	// Backend is what samples: "native" is this process; "vllm" and "sglang" are servers that this stage stands beside and gives
	// the weights to; "openai" are servers of one model that is not trained.
	Backend string `toml:"backend"`
	// URLs are the roots of the servers where the backend is not native.
	URLs []string `toml:"urls"`
	// Remote says how they are led.
	Remote RemoteConfig `toml:"remote"`
	// Listen is the address of the HTTP server, port 0 for any that is free; empty for no HTTP. An address that other
	// machines can reach needs a Token.
	Listen string `toml:"listen"`
	// Token is what clients must send as bearer token; empty for none. Give it in PRL__INFERENCE__TOKEN rather than in a file.
	Token pipeline.Secret `toml:"token"`
	// Model is the name under which the policy is served; empty is the run's name.
	Model string `toml:"model"`
	// Renderer is model.renderer, which is set there; empty for the one that the tokenizer says.
	Renderer string `toml:"-"`
	// MaxModelLen is the longest sequence in tokens, prompt and completion together; 0 is run.seq_len, and never more
	// than the model has positions.
	MaxModelLen int `toml:"max_model_len"`
	// Slots is how many sequences are kept at once: those that are generated, and finished ones whose keys and values
	// serve a prompt that goes on from there.
	Slots int `toml:"slots"`
	// CacheMiB bounds the memory of the slots in MiB; there are fewer of them where they would take more, but one at least.
	// Frozen policies of another shape have slots of their own, as many again, once they play.
	CacheMiB int `toml:"cache_mib"`
	// StepTokens is how many tokens of prompts one step takes in, so that a long prompt does not hold up the others.
	StepTokens int `toml:"step_tokens"`
	// Versions is how many policy versions are loaded at once, the newest among them; the least recently used goes.
	Versions int `toml:"versions"`
	// KeepMiB bounds the whole weights, in MiB, that are kept in memory for the next version in a run whose versions are deltas
	// or adapters; larger ones, and with 0 all, are read from the blob store again for each.
	KeepMiB int `toml:"keep_mib"`
	// MaxRequests bounds the requests in the server, held, waiting or running; beyond, they are refused with 503.
	MaxRequests int `toml:"max_requests"`
	// Hold is how long a request waits for the version it is pinned to.
	Hold pipeline.Duration `toml:"hold"`
	// Timeout bounds a request as a whole, the hold included.
	Timeout pipeline.Duration `toml:"timeout"`
	// Drain is how long running requests may go on when the stage stops.
	Drain pipeline.Duration `toml:"drain"`
}

// DefaultConfig serves on port 8000 of this machine.
func DefaultConfig() Config {
	return Config{
		Backend: BackendNative, Remote: DefaultRemoteConfig(),
		Listen: "localhost:8000", Slots: 512, CacheMiB: 256, StepTokens: 2048, Versions: 4, KeepMiB: 8192, MaxRequests: 4096,
		Hold: pipeline.Duration(10 * time.Minute), Timeout: pipeline.Duration(15 * time.Minute), Drain: pipeline.Duration(10 * time.Second),
	}
}

// Validate checks the section on its own.
func (c Config) Validate() error {
	if err := c.validateBackend(); err != nil {
		return err
	}
	switch {
	case c.MaxModelLen < 0 || c.MaxModelLen == 1:
		return fmt.Errorf("inference.max_model_len = %d: at least 2, or 0 for run.seq_len", c.MaxModelLen)
	case c.Slots < 1:
		return fmt.Errorf("inference.slots = %d: at least 1", c.Slots)
	case c.CacheMiB < 1:
		return fmt.Errorf("inference.cache_mib = %d: at least 1", c.CacheMiB)
	case c.StepTokens < 1:
		return fmt.Errorf("inference.step_tokens = %d: at least 1", c.StepTokens)
	case c.Versions < 2:
		return fmt.Errorf("inference.versions = %d: at least 2, the newest and a pinned one", c.Versions)
	case c.KeepMiB < 0:
		return fmt.Errorf("inference.keep_mib = %d: at least 0", c.KeepMiB)
	case c.MaxRequests < 1:
		return fmt.Errorf("inference.max_requests = %d: at least 1", c.MaxRequests)
	case c.Hold <= 0:
		return fmt.Errorf("inference.hold = %v: must be positive, e.g. \"10m\"", c.Hold)
	case c.Timeout < c.Hold:
		return fmt.Errorf("inference.timeout = %v: at least inference.hold = %v", c.Timeout, c.Hold)
	case c.Drain <= 0:
		return fmt.Errorf("inference.drain = %v: must be positive, e.g. \"10s\"", c.Drain)
	case c.Listen == "":
		return nil
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("inference.listen = %q: want host:port: %w", c.Listen, err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) && c.Token.Reveal() == "" {
		return fmt.Errorf("inference.listen = %q can be reached from other machines: set inference.token (in the environment: PRL__INFERENCE__TOKEN), or listen on localhost", c.Listen)
	}
	return nil
}

// forRun checks the section against the run and fills in what the run decides.
func (c Config) forRun(run pipeline.RunConfig) (Config, error) {
	if err := c.Validate(); err != nil {
		return c, err
	}
	if c.MaxModelLen > run.SeqLen {
		return c, fmt.Errorf("inference.max_model_len = %d is above run.seq_len = %d: longer samples could not be trained", c.MaxModelLen, run.SeqLen)
	}
	if c.MaxModelLen == 0 {
		c.MaxModelLen = run.SeqLen
	}
	if c.Model == "" {
		c.Model = run.Name
	}
	return c, nil
}
