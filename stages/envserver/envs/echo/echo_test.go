package echo

import (
	"context"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/env/envtest"
)

func open(t *testing.T, change func(*Config)) *Echo {
	t.Helper()
	cfg := Defaults()
	change(&cfg)
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func reference(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
	return env.Assistant(conversation[len(conversation)-1].Content)
}

// random says five random letters.
func random(rng *rand.Rand, _ []env.Message, _ []env.Tool) env.Message {
	b := make([]byte, 5)
	for i := range b {
		b[i] = byte('a' + rng.IntN(26))
	}
	return env.Assistant(string(b))
}

func TestConformance(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"default": func(*Config) {},
		"full":    func(c *Config) { c.Prompt, c.Length, c.Alphabet = "full", 100, "né ✓" },
	} {
		t.Run(name, func(t *testing.T) { envtest.Run(t, open(t, change), random, reference) })
	}
}

func TestTable(t *testing.T) {
	e := open(t, func(*Config) {})
	envtest.Row(t, "../../README.md", "`echo`", e, e.Info().Eval, reference, random)
}

func TestPlayers(t *testing.T) {
	e := open(t, func(c *Config) { c.EvalTasks = 2000 })
	baselines := e.Baselines(env.Eval)
	for name, test := range map[string]struct {
		player     envtest.Player
		want, slop float64
	}{
		"reference": {reference, 1, 0},
		"random":    {random, baselines["random"], 0.01},
	} {
		got, err := envtest.Mean(context.Background(), e, env.Eval, 2000, test.player)
		if err != nil || math.Abs(got-test.want) > test.slop {
			t.Errorf("%s: %v, %v; want %v ± %v", name, got, err, test.want, test.slop)
		}
	}
}

// The best fixed text is found among all of them.
func TestBlindBaseline(t *testing.T) {
	e := open(t, func(c *Config) { c.Length, c.Alphabet, c.EvalTasks = 4, "xyz", 50 })
	best := 0.0
	for n := range 81 {
		text := ""
		for range 4 {
			text += "xyz"[n%3 : n%3+1]
			n /= 3
		}
		got, err := envtest.Mean(context.Background(), e, env.Eval, 50, envtest.OneOf(text))
		if err != nil {
			t.Fatal(err)
		}
		best = max(best, got)
	}
	if got := e.Baselines(env.Eval)["blind"]; math.Abs(got-best) > 1e-12 {
		t.Errorf("blind %v, the best text has %v", got, best)
	}
}

func TestScore(t *testing.T) {
	for _, test := range []struct {
		text, reply   string
		spaces        bool
		reward, exact float64
	}{
		{"abc", "abc", false, 1, 1},
		{"abc", " abc\n", false, 1, 1},
		{"abc", "abcd", false, 0.75, 0},
		{"abc", "b", false, 0, 0},
		{"abc", "", false, 0, 0},
		{"né", "né", false, 1, 1},
		{" b", " b", true, 1, 1},
		{" b", "b", true, 0, 0},
	} {
		e := &episode{text: test.text, spaces: test.spaces}
		if _, err := e.Reply(context.Background(), env.Assistant(test.reply)); err != nil {
			t.Fatal(err)
		}
		s, err := e.Score(context.Background())
		if err != nil || *s.Rewards.Total() != test.reward || s.Metrics["exact"] != test.exact {
			t.Errorf("%q for %q: %v %v, %v", test.reply, test.text, *s.Rewards.Total(), s.Metrics, err)
		}
	}
}

func TestValidate(t *testing.T) {
	for option, change := range map[string]func(*Config){
		"length":       func(c *Config) { c.Length = 0 },
		"alphabet":     func(c *Config) { c.Alphabet = "aba" },
		"eval_tasks":   func(c *Config) { c.EvalTasks = 0 },
		"eval_percent": func(c *Config) { c.EvalPercent = 51 },
		"prompt":       func(c *Config) { c.Prompt = "" },
		"allow more":   func(c *Config) { c.Length, c.Alphabet, c.EvalPercent = 1, "ab", 1 },
	} {
		cfg := Defaults()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("wrong %s: %v", option, err)
		}
	}
}

func TestDemonstration(t *testing.T) {
	e := open(t, func(*Config) {})
	if text, err := e.Demonstrate([]byte(`{"text":"abcde"}`), 0); text != "abcde" || err != nil {
		t.Errorf("%q %v", text, err)
	}
	if _, err := e.Demonstrate([]byte(`{}`), 0); err == nil {
		t.Error("a task without text is demonstrated")
	}
}
