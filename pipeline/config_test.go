package pipeline

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type testConfig struct {
	Run  RunConfig             `toml:"run"`
	Envs map[string]testOption `toml:"envs"`
}

func (c *testConfig) Prepare(tree map[string]any) {
	envs, _ := tree["envs"].(map[string]any)
	for name := range envs {
		if _, ok := c.Envs[name]; !ok {
			if c.Envs == nil {
				c.Envs = map[string]testOption{}
			}
			c.Envs[name] = testOption{Size: 8}
		}
	}
}

func (c *testConfig) Validate() error { return c.Run.Validate() }

type testOption struct {
	Size  int            `toml:"size"`
	Ratio float64        `toml:"ratio"`
	Open  map[string]any `toml:"options"`
}

func load(t *testing.T, text string, environ, sets []string) (testConfig, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run.toml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c := testConfig{Run: DefaultRunConfig()}
	err := LoadConfig(path, environ, sets, &c)
	return c, err
}

func TestLoadConfigOverrides(t *testing.T) {
	c, err := load(t, "[run]\nname = \"file\"\nseed = 3\n[envs.catch]\nratio = 0.5\noptions.rows = 5\n",
		[]string{"PRL__RUN__SEED=4", "PRL__RUN__MAX_STEPS=7", "HOME=x"}, []string{"run.seed=5", "run.name=set", "envs.catch.options.columns=9"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Run.Seed != 5 || c.Run.MaxSteps != 7 || c.Run.Name != "set" || c.Run.BatchSize != DefaultRunConfig().BatchSize {
		t.Errorf("run = %+v", c.Run)
	}
	if e := c.Envs["catch"]; e.Ratio != 0.5 || e.Size != 8 || e.Open["rows"] != int64(5) || e.Open["columns"] != int64(9) {
		t.Errorf("envs.catch = %+v", e)
	}
}

func TestLoadConfigErrors(t *testing.T) {
	for _, c := range []struct {
		name, text string
		sets       []string
		want       string
	}{
		{"unknown key", "[run]\nsed = 3\n", nil, "run.toml:2: unknown key run.sed"},
		{"wrong type", "[run]\nseed = \"x\"\n", nil, "run.toml:2: run.seed"},
		{"out of range", "[run]\n\nmax_steps = 0\n", nil, "run.toml:3: run.max_steps = 0: at least 1"},
		{"out of range by a flag", "[run]\nmax_steps = 3\n", []string{"run.max_steps=0"}, "--set run.max_steps: run.max_steps = 0"},
		{"unknown key by a flag", "", []string{"run.sed=0"}, "--set run.sed: unknown key run.sed"},
		{"no value", "", []string{"run.seed"}, "want key=value"},
		{"no TOML", "[run\n", nil, "run.toml:1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := load(t, c.text, nil, c.sets)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}
