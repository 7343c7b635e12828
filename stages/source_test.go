package stages

import (
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
)

// TestNameEnvs gives environments by name and by source.
func TestNameEnvs(t *testing.T) {
	cfg := DefaultConfig()
	if err := pipeline.LoadConfig("", nil, []string{`envs.mine={source = "python:games:Lockbox", group_size = 4}`}, cfg); err != nil {
		t.Fatal(err)
	}
	names, err := cfg.NameEnvs([]string{"wordle", "python:games:Lockbox", "python:games:WordGame"})
	if err != nil || !slices.Equal(names, []string{"wordle", "mine", "word-game"}) {
		t.Fatalf("%q, %v", names, err)
	}
	if e := cfg.Envs["word-game"]; e.Source != "python:games:WordGame" || e.GroupSize != 8 {
		t.Errorf("its section is %+v", e)
	}
	for source, want := range map[string]string{
		"ruby:games:Lockbox":    "no environment source",
		"python:other:Wordle":   "another environment wordle",
		"python:other:WordGame": "another environment word-game",
	} {
		if _, err := cfg.NameEnvs([]string{source}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", source, err, want)
		}
	}
	if err := pipeline.LoadConfig("", nil, []string{`envs.mine.source="ruby:x"`}, DefaultConfig()); err == nil || !strings.Contains(err.Error(), "envs.mine.source") {
		t.Errorf("a source of no known kind: %v", err)
	}
}
