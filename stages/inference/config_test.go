package inference

import (
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
)

func TestConfig(t *testing.T) {
	run := pipeline.DefaultRunConfig()
	for _, c := range []struct {
		change func(*Config)
		want   string // beginning of the error; empty: valid
	}{
		{func(*Config) {}, ""},
		{func(c *Config) { c.Listen = "" }, ""},
		{func(c *Config) { c.Listen = "127.0.0.1:0" }, ""},
		{func(c *Config) { c.Listen = "[::1]:8000" }, ""},
		{func(c *Config) { c.Listen = ":8000" }, "inference.listen"},
		{func(c *Config) { c.Listen = "0.0.0.0:8000" }, "inference.listen"},
		{func(c *Config) { c.Listen = "gpu1:8000" }, "inference.listen"},
		{func(c *Config) { c.Listen, c.Token = "gpu1:8000", pipeline.NewSecret("secret") }, ""},
		{func(c *Config) { c.Listen = "8000" }, "inference.listen"},
		{func(c *Config) { c.MaxModelLen = 1 }, "inference.max_model_len"},
		{func(c *Config) { c.MaxModelLen = run.SeqLen + 1 }, "inference.max_model_len"},
		{func(c *Config) { c.Slots = 0 }, "inference.slots"},
		{func(c *Config) { c.CacheMiB = 0 }, "inference.cache_mib"},
		{func(c *Config) { c.StepTokens = 0 }, "inference.step_tokens"},
		{func(c *Config) { c.Versions = 1 }, "inference.versions"},
		{func(c *Config) { c.MaxRequests = 0 }, "inference.max_requests"},
		{func(c *Config) { c.Hold = 0 }, "inference.hold"},
		{func(c *Config) { c.Timeout = c.Hold - 1 }, "inference.timeout"},
		{func(c *Config) { c.Drain = 0 }, "inference.drain"},
	} {
		cfg := DefaultConfig()
		c.change(&cfg)
		got, err := cfg.forRun(run)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%+v: %v", cfg, err)
		case c.want == "" && (got.MaxModelLen != run.SeqLen || got.Model != run.Name):
			t.Errorf("the run does not fill in %+v", got)
		case c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want+" ")):
			t.Errorf("got %v, want an error on %s", err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the token is shown: %v", err)
		}
	}
}
