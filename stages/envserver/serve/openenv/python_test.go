package openenv

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/stages/envserver/bridge/python"
	"github.com/prl-project/prl/stages/envserver/env"
)

// OpenEnv's own clients play.
func TestClients(t *testing.T) {
	t.Parallel()
	cfg := usual()
	cfg.Token = "secret"
	one := cfg
	one.Sessions = 1
	runPython(t, "testdata/clients.py", cfg.Token, "generic="+start(t, words(t, false), cfg).url, "tools="+start(t, words(t, true), cfg).url, "full="+start(t, words(t, false), one).url)
}

// TestTRL plays the README's class for TRL's environment_factory, by TRL's convention as package python has it.
func TestTRL(t *testing.T) {
	t.Parallel()
	const home = "../../../../.cache/openenv"
	need.OpenEnv(t, home)
	served := start(t, words(t, false), usual())
	dir := t.TempDir()
	class, err := os.ReadFile("testdata/wordle_trl.py")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"game.py":    string(class) + "\n\nWordle.url = \"" + served.url + "\"\n",
		"rows.jsonl": "{\"index\": 0, \"prompt\": \"Play: \"}\n{\"index\": 1}\n{\"index\": 2}\n{\"index\": 3}\n{\"index\": 4}\n{\"index\": 5}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := python.Defaults()
	cfg.Path, cfg.Python, cfg.File, cfg.Processes = dir, home+"/bin/python", filepath.Join(dir, "rows.jsonl"), 1
	e, err := python.New("game", "game:Wordle", t.TempDir(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, guesses := range []int{1, 6} {
		s, err := env.Begin(t.Context(), e, []byte(`{"index": 0, "prompt": "Play: "}`), 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Prompt()[0].Content; got != "Play: ....." {
			t.Errorf("the prompt is %q", got)
		}
		for range guesses {
			turn, err := s.Reply(t.Context(), env.Message{Role: env.RoleAssistant, ToolCalls: []env.ToolCall{{ID: "c", Name: "guess", Arguments: `{"word": "crane"}`}}})
			if err != nil || len(turn.Messages) != 1 {
				t.Fatalf("%+v, %v", turn, err)
			}
		}
		score, err := s.Score(t.Context())
		if err != nil || score.Rewards.Total() == nil {
			t.Fatalf("after %d guesses: %+v, %v", guesses, score, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
