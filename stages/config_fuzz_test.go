package stages

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/prl-project/prl/pipeline"
)

// FuzzConfig loads any text as a configuration: it is refused, or it is one that validates again.
func FuzzConfig(f *testing.F) {
	paths, err := filepath.Glob("../configs/*.toml")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), "run.seed=7")
	}
	f.Add("[envs]\ncatch = 3\n[evals.x]\nk = -1", "envs.catch.ratio=nan")
	f.Add("run.name = \"\\u0000\"", "=")
	f.Add("[[run]]", "run=1")
	f.Fuzz(func(t *testing.T, text, set string) {
		path := filepath.Join(t.TempDir(), "c.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := DefaultConfig()
		if pipeline.LoadConfig(path, nil, []string{set}, cfg) != nil {
			return
		}
		if err := cfg.Validate(); err != nil {
			t.Fatal(err)
		}
	})
}
