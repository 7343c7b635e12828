package envserver

import (
	"fmt"
	"net/url"
	"time"

	"github.com/prl-project/prl/pipeline"
)

// Config is the section [envserver].
type Config struct {
	// Concurrency is how many rollouts run at once, of all environments of the process together.
	Concurrency int `toml:"concurrency"`
	// Limits are how many rollouts of an environment run at once, by its name: envs.<name>.concurrency, which is set there. 0 is no
	// limit of its own.
	Limits map[string]int `toml:"-"`
	// ModelURL is the root of the inference server.
	ModelURL string `toml:"model_url"`
	// Model is the name model calls ask for; empty where the server has only one.
	Model string `toml:"model"`
	// Renderer is model.renderer, which is set there; empty for the one that the tokenizer says.
	Renderer string `toml:"-"`
	// RequestTimeout bounds one try of a model call, which then begins anew; 0 leaves it to the task's own time.
	RequestTimeout pipeline.Duration `toml:"request_timeout"`
	// Retries is how often a model call that failed is tried again, with pauses from 0.2 s to 5 s, before the rollout fails.
	// The default waits about 40 s for a server that starts over.
	Retries int `toml:"retries"`
	// EnvTimeout bounds one call of an environment.
	EnvTimeout pipeline.Duration `toml:"env_timeout"`
	// MaxEnvBytes is how much an environment may say at once: a task, its tools, or the messages of a turn with their images. One that
	// says more has failed.
	MaxEnvBytes int `toml:"max_env_bytes"`
	// MaxStuck is how many calls of one environment may hang, long after env_timeout, before nothing of it is begun any more: its
	// rollouts then fail at once, until one of the calls returns. Those of other environments go on.
	MaxStuck int `toml:"max_stuck"`
	// MaxCrashes is how many ends without warning of the process that ran a task turn it into an errored trace.
	MaxCrashes int `toml:"max_crashes"`
	// Drain is how long a stop waits for what runs. What has not ended then begins anew at the next start.
	Drain pipeline.Duration `toml:"drain"`
}

// DefaultConfig suits one process beside a local inference server.
func DefaultConfig() Config {
	return Config{
		Concurrency: 64, ModelURL: "http://localhost:8000", Retries: 12,
		EnvTimeout: pipeline.Duration(30 * time.Second), MaxEnvBytes: 16 << 20, MaxStuck: 16,
		MaxCrashes: 5, Drain: pipeline.Duration(5 * time.Second),
	}
}

// Validate checks the section.
func (c Config) Validate() error {
	switch {
	case c.Concurrency < 1:
		return fmt.Errorf("envserver.concurrency = %d: at least 1", c.Concurrency)
	case c.RequestTimeout < 0:
		return fmt.Errorf("envserver.request_timeout = %v: 0s for none, or more", c.RequestTimeout)
	case c.Retries < 0:
		return fmt.Errorf("envserver.retries = %d: 0 for none, or more", c.Retries)
	case c.EnvTimeout <= 0:
		return fmt.Errorf("envserver.env_timeout = %v: above 0s", c.EnvTimeout)
	case c.MaxEnvBytes < 1<<10 || c.MaxEnvBytes > 1<<30:
		return fmt.Errorf("envserver.max_env_bytes = %d: 1024 to 1073741824", c.MaxEnvBytes)
	case c.MaxStuck < 1:
		return fmt.Errorf("envserver.max_stuck = %d: at least 1", c.MaxStuck)
	case c.MaxCrashes < 1 || c.MaxCrashes > 100:
		return fmt.Errorf("envserver.max_crashes = %d: 1 to 100", c.MaxCrashes)
	case c.Drain < 0:
		return fmt.Errorf("envserver.drain = %v: 0s to wait for nothing, or more", c.Drain)
	}
	u, err := url.Parse(c.ModelURL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("envserver.model_url = %q: a URL such as http://localhost:8000", c.ModelURL)
	}
	return nil
}
