package envserver

import (
	"fmt"
	"net/url"
	"time"
)

// Config is the section [envserver].
type Config struct {
	// Concurrency is how many rollouts run at once, of all environments of the process together.
	Concurrency int `toml:"concurrency"`
	// ModelURL is the root of the inference server.
	ModelURL string `toml:"model_url"`
	// Model is the name model calls ask for; empty where the server has only one.
	Model string `toml:"model"`
	// RequestTimeoutMs bounds one model call, in milliseconds; the task's own time does, too.
	RequestTimeoutMs int64 `toml:"request_timeout_ms"`
	// Retries is how often a model call that failed is tried again, with pauses from 0.2 s to 5 s, before the rollout fails.
	// The default waits about 40 s for a server that starts over.
	Retries int `toml:"retries"`
	// EnvTimeoutMs bounds one call of an environment, in milliseconds.
	EnvTimeoutMs int64 `toml:"env_timeout_ms"`
	// MaxCrashes is how many ends without warning of the process that ran a task turn it into an errored trace.
	MaxCrashes int `toml:"max_crashes"`
	// DrainMs is how long a stop waits for what runs, in milliseconds. What has not ended then begins anew at the next start.
	DrainMs int64 `toml:"drain_ms"`
}

// DefaultConfig suits one process beside a local inference server.
func DefaultConfig() Config {
	return Config{
		Concurrency: 64, ModelURL: "http://localhost:8000", RequestTimeoutMs: 120_000, Retries: 12, EnvTimeoutMs: 30_000,
		MaxCrashes: 5, DrainMs: 5_000,
	}
}

// Validate checks the section.
func (c Config) Validate() error {
	switch {
	case c.Concurrency < 1:
		return fmt.Errorf("envserver.concurrency = %d: at least 1", c.Concurrency)
	case c.RequestTimeoutMs < 1:
		return fmt.Errorf("envserver.request_timeout_ms = %d: at least 1", c.RequestTimeoutMs)
	case c.Retries < 0:
		return fmt.Errorf("envserver.retries = %d: 0 for none, or more", c.Retries)
	case c.EnvTimeoutMs < 1:
		return fmt.Errorf("envserver.env_timeout_ms = %d: at least 1", c.EnvTimeoutMs)
	case c.MaxCrashes < 1 || c.MaxCrashes > 100:
		return fmt.Errorf("envserver.max_crashes = %d: 1 to 100", c.MaxCrashes)
	case c.DrainMs < 0:
		return fmt.Errorf("envserver.drain_ms = %d: 0 to wait for nothing, or more", c.DrainMs)
	}
	u, err := url.Parse(c.ModelURL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("envserver.model_url = %q: a URL such as http://localhost:8000", c.ModelURL)
	}
	return nil
}

func (c Config) drain() time.Duration      { return time.Duration(c.DrainMs) * time.Millisecond }
func (c Config) envTimeout() time.Duration { return time.Duration(c.EnvTimeoutMs) * time.Millisecond }
func (c Config) requestTimeout() time.Duration {
	return time.Duration(c.RequestTimeoutMs) * time.Millisecond
}
