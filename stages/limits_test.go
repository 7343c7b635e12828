package stages

import (
	"log/slog"
	"testing"

	"github.com/prl-project/prl/pipeline"
)

// The environment server gets what the sections of environments say of it.
func TestLimitsOfEnvironments(t *testing.T) {
	cfg := DefaultConfig()
	if err := pipeline.LoadConfig("../configs/demo.toml", nil, []string{"envs.catch.concurrency=3"}, cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Dir = t.TempDir()
	a, err := NewApp(cfg, []string{"localhost:1"}, "one", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if got := a.Config.EnvServer.Limits; got["catch"] != 3 {
		t.Errorf("limits %v", got)
	}
}
