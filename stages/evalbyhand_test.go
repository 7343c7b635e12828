package stages

import (
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/eval"
)

// TestSuiteOfAnEvalByHand finds the settings: those of the section that is named, or of the environment's, or the
// defaults.
func TestSuiteOfAnEvalByHand(t *testing.T) {
	cfg := DefaultConfig()
	section := func(env string, k int) eval.Config {
		c := eval.DefaultConfig()
		c.Env, c.K = env, k
		return c
	}
	for _, env := range []string{"catch", "wordle", "chess", "go"} {
		cfg.Envs[env] = emitter.DefaultEnvConfig()
	}
	cfg.Evals = map[string]eval.Config{
		"balls": section("catch", 2), "wordle": section("wordle", 3), "hard": section("wordle", 4), "opening": section("chess", 5), "endgame": section("chess", 6),
	}
	five, hot := 5, 0.5
	for _, c := range []struct {
		wish EvalByHand
		name string
		k    int
		err  string
	}{
		{EvalByHand{Env: "catch"}, "balls", 2, ""},
		{EvalByHand{Env: "catch", K: &five, Examples: &five, Temperature: &hot}, "balls", 5, ""},
		{EvalByHand{Env: "wordle"}, "wordle", 3, ""},
		{EvalByHand{Env: "wordle", Suite: "hard"}, "hard", 4, ""},
		{EvalByHand{Suite: "hard"}, "hard", 4, ""},
		{EvalByHand{Env: "go"}, "go", 1, ""},
		{EvalByHand{Env: "chess"}, "", 0, "--env chess has the suites endgame, opening: choose one with --suite"},
		{EvalByHand{Env: "shogi"}, "", 0, "no section [envs.shogi]; there are [catch chess go wordle]"},
		{EvalByHand{Suite: "easy"}, "", 0, "no section [evals.easy]; there are [balls endgame hard opening wordle]"},
		{EvalByHand{Env: "catch", Suite: "hard"}, "", 0, "--suite hard is of environment wordle, not catch"},
	} {
		name, got, err := cfg.suite(c.wish)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%+v: error %v, want %q", c.wish, err, c.err)
			continue
		}
		if err == nil && (name != c.name || got.K != c.k || got.Env == "") {
			t.Errorf("%+v: suite %s %+v", c.wish, name, got)
		}
		if c.wish.Examples != nil && (got.Examples != 5 || got.Temperature != 0.5) {
			t.Errorf("%+v: %+v", c.wish, got)
		}
	}
}
