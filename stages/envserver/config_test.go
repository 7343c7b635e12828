package envserver

import (
	"strings"
	"testing"
)

func TestConfig(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"concurrency = 0":        func(c *Config) { c.Concurrency = 0 },
		"model_url = \"nobody\"": func(c *Config) { c.ModelURL = "nobody" },
		"request_timeout = -1ns": func(c *Config) { c.RequestTimeout = -1 },
		"retries = -1":           func(c *Config) { c.Retries = -1 },
		"env_timeout = 0s":       func(c *Config) { c.EnvTimeout = 0 },
		"max_env_bytes = 1":      func(c *Config) { c.MaxEnvBytes = 1 },
		"max_stuck = 0":          func(c *Config) { c.MaxStuck = 0 },
		"max_crashes = 0":        func(c *Config) { c.MaxCrashes = 0 },
		"drain = -1ns":           func(c *Config) { c.Drain = -1 },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "envserver."+want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
