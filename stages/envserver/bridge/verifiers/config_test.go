package verifiers

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

func TestConfig(t *testing.T) {
	if err := Defaults().Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Config){
		"tasks = 1":           func(c *Config) { c.Tasks = 1 },
		"eval_percent = 0":    func(c *Config) { c.EvalPercent = 0 },
		"turns = 0":           func(c *Config) { c.Turns = 0 },
		`pool = "big"`:        func(c *Config) { c.Pool = "big" },
		"workers = -1":        func(c *Config) { c.Workers = -1 },
		"multiplex = 0":       func(c *Config) { c.Multiplex = 0 },
		"idle_s = 0":          func(c *Config) { c.IdleS = 0 },
		"start_s = 1e+06":     func(c *Config) { c.StartS = 1e6 },
		"health_s = 0":        func(c *Config) { c.HealthS = 0 },
		"timeout_s = 0":       func(c *Config) { c.TimeoutS = 0 },
		"reply_mb = 0":        func(c *Config) { c.ReplyMB = 0 },
		"log_mb = 0":          func(c *Config) { c.LogMB = 0 },
		`wire = "0.3.0"`:      func(c *Config) { c.Wire = "0.3.0" },
		`python = ""`:         func(c *Config) { c.Python = "" },
		`address "host:5000"`: func(c *Config) { c.Address = "host:5000" },
		"leave workers out":   func(c *Config) { c.Address, c.Workers = "tcp://host:5000", 2 },
		"leave both out":      func(c *Config) { c.Renderer = "qwen3" },
		"leave one out":       func(c *Config) { c.File, c.EvalArgs = "x", map[string]any{"a": 1} },
	} {
		c := Defaults()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	for id, want := range map[string]string{"": "want verifiers:<id"} {
		if _, err := New("x", id, "", Defaults()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// The README names every option and its default.
func TestREADME(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		if option := field.Tag.Get("toml"); !strings.Contains(string(readme), "| `"+option+"` |") {
			t.Errorf("no line on the option %s", option)
		}
	}
}
