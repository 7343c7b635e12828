package envs

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/env/envtest"
)

// strict decodes TOML as the configuration file is decoded.
func strict(text string) func(any) error {
	return func(config any) error {
		return toml.NewDecoder(strings.NewReader(text)).DisallowUnknownFields().Decode(config)
	}
}

func TestNamesAreThoseOfTheEnvironments(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			if name == "python" {
				need.Python3(t) // without one it cannot run code, and says so
			}
			e, err := Open(name, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := e.Info().Name; got != name {
				t.Errorf("environment %q calls itself %q", name, got)
			}
		})
	}
}

// Every environment keeps the contract, whoever plays it; with players that know the game, and other options, it is held to it
// in its own folder.
func TestConformance(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			switch name {
			case "python":
				need.Python3(t)
			case "judge":
				t.Log("it needs a judge: its own test has one")
				return
			}
			e, err := Open(name, nil)
			if err != nil {
				t.Fatal(err)
			}
			envtest.Run(t, e)
		})
	}
}

// The table in the README has every environment.
func TestTableIsComplete(t *testing.T) {
	table, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range Names() {
		if !strings.Contains(string(table), "\n| `"+name+"` |") {
			t.Errorf("no row for %s", name)
		}
	}
}

func TestOptions(t *testing.T) {
	e, err := Open("catch", strict("columns = 5\nrows = 7"))
	if err != nil {
		t.Fatal(err)
	}
	if got := e.Info().MaxTurns; got != 6 {
		t.Errorf("MaxTurns %d on seven rows, want 6", got)
	}
	e, err = Open("wordle", func(config any) error {
		return json.Unmarshal([]byte(`{"words": 200, "weights": {"valid": 0.5}}`), config)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := e.Info(); got.Tasks(env.Train)+got.Tasks(env.Eval) != 200 {
		t.Errorf("%+v with words = 200", got)
	}
}

func TestErrors(t *testing.T) {
	for _, test := range []struct{ name, options, want string }{
		{"nim", "", strings.Join(Names(), ", ")},
		{"catch", "colums = 5", "strict mode"},
		{"catch", "columns = 5", "rows"},
		{"wordle", "[weights]\nsolve = 1", "strict mode"},
		{"reverse-text", "min_length = 'x'", "MinLength"},
		{"judge", "token = 'hush-hush'", "token_file"},
	} {
		if _, err := Open(test.name, strict(test.options)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s with %q: error %v, want one with %q", test.name, test.options, err, test.want)
		}
	}
}
