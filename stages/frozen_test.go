package stages

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/envserver"
	"github.com/prl-project/prl/stages/eval"
	"github.com/prl-project/prl/stages/inference"
)

// TestFrozenPolicies gives the sections [frozen.<name>], and what names them, one mistake at a time.
func TestFrozenPolicies(t *testing.T) {
	load := func(sets ...string) (*Config, error) {
		cfg := DefaultConfig()
		return cfg, pipeline.LoadConfig("../configs/ordered.toml", nil, append([]string{
			`frozen.old.folder="runs/demo/model-900"`, `frozen.far.url="http://gpu:8000"`, `frozen.far.model="m"`,
		}, sets...), cfg)
	}
	cfg, err := load(`envs.catch.teacher="far"`, `scorer.advantage="opd"`, `frozen.far.token="word"`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := load(`envs.catch.policy="old"`, `scorer.advantage="sft"`); err != nil {
		t.Error(err)
	}
	app := &App{Config: cfg}
	if f := cfg.Frozen["far"]; app.teachers()["catch"].Policy != "far" || f.URL != "http://gpu:8000" || f.Model != "m" || f.Token.Reveal() != "word" {
		t.Errorf("teachers %v, frozen %+v", app.teachers(), cfg.Frozen)
	}
	if _, err := load(`envs.catch.teacher="self"`, `scorer.advantage="opsd"`); err != nil {
		t.Error(err)
	}
	if _, err := load(`envs.catch.policy="old"`, `scorer.advantage="sft"`, "model.max_position=32"); err == nil || !strings.Contains(err.Error(), "envs.catch.max_rollout_tokens = 64") {
		t.Errorf("rollouts that are longer than the policy's context: %v", err)
	}
	for set, want := range map[string]string{
		`envs.catch.teacher="new"`:      `envs.catch.teacher = "new": no section [frozen.new]; there are far, old`,
		`envs.catch.policy="new"`:       `envs.catch.policy = "new": no section [frozen.new]; there are far, old`,
		`envs.catch.policy="self"`:      `envs.catch.policy = "self"`,
		`frozen.old.url="http://gpu:1"`: "frozen.old: either folder, or url and model",
		`frozen.old.folders="x"`:        "unknown key frozen.old.folders",
		`frozen.self.folder="x"`:        "frozen.self: the name stands for the policy that is trained",
	} {
		_, err := load(set)
		if key, _, _ := strings.Cut(set, "="); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--set "+key) && !strings.HasPrefix(want, "frozen") {
			t.Errorf("--set %s: error %v, want %q", set, err, want)
		}
	}
	if err := pipeline.LoadConfig("../configs/ordered.toml", nil, []string{`envs.catch.teacher="old"`}, DefaultConfig()); err == nil || !strings.Contains(err.Error(), "there are none") {
		t.Errorf("without sections: %v", err)
	}
}

// TestUses asks what the environment server of a process needs of frozen policies: what its own environments name, or the
// eval by hand that it plays.
func TestUses(t *testing.T) {
	cfg := DefaultConfig()
	if err := pipeline.LoadConfig("../configs/ordered.toml", nil, []string{
		`frozen.old.folder="x"`, `frozen.far={url = "http://gpu:8000", model = "m"}`, `frozen.idle.folder="y"`,
		`envs.catch.teacher="far"`, "envs.catch.temperature=0.5", "model.max_position=100",
		`envs.wordle={policy = "old", max_rollout_tokens = 70}`, `scorer.envs.wordle.advantage="sft"`,
		`envs.reverse-text={teacher = "self", max_rollout_tokens = 80}`,
	}, cfg); err != nil {
		t.Fatal(err)
	}
	app := &App{Config: cfg}
	catch := inference.Use{Policy: "far", Key: "envs.catch.teacher", Teaches: true, Tokens: 64, Temperature: 0.5}
	wordle := inference.Use{Policy: "old", Key: "envs.wordle.policy", Tokens: 70, Temperature: 1}
	if got := app.uses(); !slices.Equal(got, []inference.Use{catch, wordle}) {
		t.Errorf("uses %+v", got)
	}
	if got := app.teachers()["reverse-text"]; got != (envserver.Teacher{Policy: "self", Room: 20}) {
		t.Errorf("teacher %+v", got)
	}
	cfg.Inference.MaxModelLen = 60
	if app.Serve = []string{"catch"}; len(app.uses()) != 1 || app.uses()[0].Tokens != 60 {
		t.Errorf("uses of one environment: %+v", app.uses())
	}
	for policy, want := range map[string][]inference.Use{"": nil, "idle": {{Policy: "idle", Key: "--policy"}}} {
		app.measures = &eval.ByHand{Plan: eval.Plan{Policy: policy}}
		if got := app.uses(); !slices.Equal(got, want) || len(app.teachers()) > 0 {
			t.Errorf("uses of an eval of %q: %+v, teachers %v", policy, got, app.teachers())
		}
	}
}

// TestTeacherSelf makes the environment server of the built-in environments, which all have demonstrations.
func TestTeacherSelf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.toml")
	if err := os.WriteFile(file, []byte("[envs.catch]\nteacher = \"self\"\n[envs.reverse-text]\nteacher = \"self\"\n[envs.wordle]\nteacher = \"self\"\n[scorer]\nadvantage = \"opsd\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	if err := pipeline.LoadConfig(file, nil, nil, cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Dir = t.TempDir()
	app, err := NewApp(cfg, []string{"localhost:1"}, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	s, err := Find("envserver")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.New(app, s); err != nil {
		t.Errorf("the built-in environments demonstrate: %v", err)
	}
}
