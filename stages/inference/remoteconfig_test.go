package inference

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/schemas"
)

// TestRemoteConfig: settings of servers of other makes are checked at the start, each error names its key.
func TestRemoteConfig(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*Config)
		want string // the error begins with it; empty for none
	}{
		{"native", func(c *Config) { c.Backend, c.URLs = BackendNative, nil }, ""},
		{"vllm", func(*Config) {}, ""},
		{"unknown", func(c *Config) { c.Backend = "tgi" }, "inference.backend"},
		{"urls of nothing", func(c *Config) { c.Backend = BackendNative }, "inference.urls"},
		{"no urls", func(c *Config) { c.URLs = nil }, "inference.backend"},
		{"no URL", func(c *Config) { c.URLs = []string{"localhost:8000"} }, "inference.urls"},
		{"a password in a URL", func(c *Config) { c.URLs = []string{"http://me:secret@host"} }, "inference.urls"},
		{"the same twice", func(c *Config) { c.Remote.EvalURLs = c.URLs[:1] }, "inference.remote.eval_urls"},
		{"swap", func(c *Config) { c.Remote.Swap = "abort" }, "inference.remote.swap"},
		{"a folder that is nowhere", func(c *Config) { c.Remote.DirOnServers = "/mnt" }, "inference.remote.dir_on_servers"},
		{"a relative folder", func(c *Config) { c.Remote.Dir, c.Remote.DirOnServers = "w", "mnt" }, "inference.remote.dir_on_servers"},
		{"no patience", func(c *Config) { c.Remote.Patience = 0 }, "inference.remote.patience"},
		{"no attempts", func(c *Config) { c.Remote.Attempts = 0 }, "inference.remote.attempts"},
		{"overload", func(c *Config) { c.Remote.Overload = 0.5 }, "inference.remote.overload"},
		{"looks", func(c *Config) { c.Remote.HealthFailures = 0 }, "inference.remote.health_failures"},
		{"openai", func(c *Config) { c.Backend, c.Model, c.Remote.Tokenizer = BackendOpenAI, "m", "/models/m" }, ""},
		{"openai without a model", func(c *Config) { c.Backend, c.Remote.Tokenizer = BackendOpenAI, "/models/m" }, "inference.model"},
		{"openai without a tokenizer", func(c *Config) { c.Backend, c.Model = BackendOpenAI, "m" }, "inference.remote.tokenizer"},
		{"a tokenizer for nothing", func(c *Config) { c.Remote.Tokenizer = "/models/m" }, "inference.remote.tokenizer"},
		{"openai with versions", func(c *Config) {
			c.Backend, c.Model, c.Remote.Tokenizer, c.Remote.EvalURLs = BackendOpenAI, "m", "/models/m", []string{"http://b:1"}
		}, "inference.remote.eval_urls"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Backend, cfg.URLs = BackendVLLM, []string{"http://a:1", "http://a:2"}
			c.set(&cfg)
			err := cfg.Validate()
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v: want an error of %s", err, c.want)
			}
		})
	}
}

// TestOneVersion: where servers hold one version, those before are refused at once, without loading anything.
func TestOneVersion(t *testing.T) {
	var loads []int64
	load := func(_ context.Context, p *schemas.PolicyVersion) error {
		loads = append(loads, p.Version)
		return nil
	}
	p := newPolicies(4, time.Minute, load, func(int64) {})
	p.single = true
	p.publish(&schemas.PolicyVersion{Version: 0})
	if _, err := p.serveNewest(t.Context()); err != nil {
		t.Fatal(err)
	}
	release, err := p.use(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	release()
	p.publish(&schemas.PolicyVersion{Version: 1})
	for range 2 { // before and after the newer one is loaded
		var e *Error
		if _, err := p.use(t.Context(), 0); !errors.As(err, &e) || e.Code != CodeNoVersion || Retryable(err) {
			t.Errorf("version 0: %v", err)
		}
		if _, err := p.serveNewest(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(loads) != 2 {
		t.Errorf("loaded %v", loads)
	}
}
