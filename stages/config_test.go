package stages

import (
	"bytes"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/eval"
)

// TestConfigs loads every configuration that ships and makes every stage of it.
func TestConfigs(t *testing.T) {
	files, err := filepath.Glob("../configs/*.toml")
	algorithms, err2 := filepath.Glob("../configs/algorithms/*.toml")
	if files = append(files, algorithms...); err != nil || err2 != nil || len(files) < 12 {
		t.Fatalf("configs: %v, %v, %v", files, err, err2)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			cfg := DefaultConfig()
			if err := pipeline.LoadConfig(file, nil, nil, cfg); err != nil {
				t.Fatal(err)
			}
			cfg.Dir = t.TempDir()
			// What is played by other processes is in the tests of its bridge.
			maps.DeleteFunc(cfg.Envs, func(_ string, e emitter.EnvConfig) bool { return e.Source != "" })
			maps.DeleteFunc(cfg.Evals, func(_ string, e eval.Config) bool { _, ok := cfg.Envs[e.Env]; return !ok })
			app, err := NewApp(cfg, []string{"localhost:1"}, "test", slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer app.Close()
			for _, s := range Flow {
				if _, err := s.New(app, s); err != nil {
					t.Errorf("stage %s: %v", s.Name, err)
				}
			}
		})
	}
}

// TestStagesNeedNoConfig holds the two commands of the card to their defaults: broker on localhost:9092, run prl.
func TestStagesNeedNoConfig(t *testing.T) {
	cfg := DefaultConfig()
	if err := pipeline.LoadConfig("", nil, nil, cfg); err != nil {
		t.Fatal(err)
	}
	if cfg.Brokers[0] != "localhost:9092" || cfg.Run.Name != "prl" {
		t.Errorf("brokers %v, run %q", cfg.Brokers, cfg.Run.Name)
	}
	cfg.Dir = t.TempDir()
	app, err := NewApp(cfg, cfg.Brokers, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	app.Serve = []string{"wordle"}
	for _, name := range []string{"envserver", "trainer"} {
		s, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.New(app, s); err != nil {
			t.Errorf("stage %s: %v", name, err)
		}
	}
}

// TestRunIsFixed starts a run again with the same and with other settings.
func TestRunIsFixed(t *testing.T) {
	dir := t.TempDir()
	for set, want := range map[string]string{"": "", "run.seed = 1": "", "run.batch_size = 7": "run.batch_size = 7, but the run \"prl\" began with batch_size = 256"} {
		cfg := DefaultConfig()
		cfg.Dir = dir
		if err := cfg.agree(); err != nil {
			t.Fatal(err)
		}
		var sets []string
		if set != "" {
			sets = append(sets, set)
		}
		if err := pipeline.LoadConfig("", nil, sets, cfg); err != nil {
			t.Fatal(err)
		}
		if err := cfg.agree(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", set, err, want)
		}
	}
}

// Names are parts of topics, groups and keys, which dots and slashes separate.
func TestNames(t *testing.T) {
	for set, want := range map[string]string{
		`envs."a.b".group_size=2`: `envs."a.b"`, `evals."a/b".env="catch"`: `evals."a/b"`,
	} {
		err := pipeline.LoadConfig("../configs/ordered.toml", nil, []string{set}, DefaultConfig())
		if err == nil || !strings.Contains(err.Error(), want+": a name has letters") {
			t.Errorf("--set %s: error %v", set, err)
		}
	}
}

func TestConfigErrorsNameFileAndLine(t *testing.T) {
	for set, want := range map[string]string{
		"envs.catch.group_size=0":     "envs.catch.group_size = 0: at least 1",
		"packer.max_waves=0":          "packer.max_waves = 0: at least 1",
		"envs.catch.group_sizes=1":    "unknown key envs.catch.group_sizes",
		"run.max_async_level=9":       "is above run.max_off_policy_steps",
		"trainer.learner=\"tensor\"":  "trainer.learner",
		"emitter.permits=3":           "emitter.permits = 3: at least run.batch_size",
		"evals.catch.env=\"unknown\"": "evals.catch.env",
	} {
		err := pipeline.LoadConfig("../configs/ordered.toml", nil, []string{set}, DefaultConfig())
		key, _, _ := strings.Cut(set, "=")
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--set "+key) {
			t.Errorf("--set %s: error %v, want %q", set, err, want)
		}
	}
}

// What a run writes down of its settings is those settings, but for secrets.
func TestRecordedSettings(t *testing.T) {
	files, err := filepath.Glob("../configs/*.toml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		dir := t.TempDir()
		cfg, again := DefaultConfig(), DefaultConfig()
		if err := pipeline.LoadConfig(file, nil, []string{"dir=" + dir, "inference.token=hush", "run.name=a"}, cfg); err != nil {
			t.Fatal(err)
		}
		if RecordedConfig(dir, "a") != "" {
			t.Error("settings of a run that has not begun")
		}
		if err := os.MkdirAll(cfg.RunDir(), 0o755); err != nil {
			t.Fatal(err)
		}
		for range 2 { // a second start writes them again
			if err := cfg.record(); err != nil {
				t.Fatal(err)
			}
		}
		if err := pipeline.LoadConfig(RecordedConfig(dir, "a"), nil, nil, again); err != nil {
			t.Fatal(err)
		}
		if again.Inference.Token.Reveal() != "" {
			t.Error("the secret came back as something else")
		}
		cfg.Inference.Token = again.Inference.Token
		want, err := toml.Marshal(cfg)
		if err != nil {
			t.Fatal(err)
		}
		got, err := toml.Marshal(again)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: recorded as\n%s\nwant\n%s", file, got, want)
		}
	}
}
