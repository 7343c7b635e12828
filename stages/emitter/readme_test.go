package emitter

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
)

// examples is a configuration of what the README's examples set.
type examples struct {
	Emitter Config               `toml:"emitter"`
	Envs    map[string]EnvConfig `toml:"envs"`
}

func (e *examples) Prepare(tree map[string]any) {
	envs, _ := tree["envs"].(map[string]any)
	for name := range envs {
		e.Envs[name] = DefaultEnvConfig()
	}
}

func (e *examples) Validate() error { return Validate(testRun(), e.Emitter, e.Envs) }

// TestREADME holds the README's examples to what they say: they are valid, and repeat the defaults.
func TestREADME(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for line := range strings.Lines(string(readme)) {
		if code, ok := strings.CutPrefix(line, "    "); ok {
			text.WriteString(code)
		}
	}
	path := filepath.Join(t.TempDir(), "examples.toml")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	got := &examples{Emitter: DefaultConfig(), Envs: map[string]EnvConfig{}}
	if err := pipeline.LoadConfig(path, nil, nil, got); err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}
	want := DefaultConfig()
	want.Mix = MixProgress
	if got.Emitter != want || got.Envs["wordle"].Curriculum != poolsConfig(nil) || got.Envs["catch"].Curriculum != gateConfig(nil) {
		t.Errorf("the examples say %+v", got)
	}
}
