package reversetext

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/env/envtest"
)

func open(t *testing.T, change func(*Config)) *ReverseText {
	t.Helper()
	cfg := Defaults()
	change(&cfg)
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func shown(conversation []env.Message) string { return conversation[len(conversation)-1].Content }

func reference(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
	return env.Assistant(string(reverse(shown(conversation))))
}

func copyist(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
	return env.Assistant(shown(conversation))
}

// letters answers a random length within the default bounds and random letters.
func letters(rng *rand.Rand, _ []env.Message, _ []env.Tool) env.Message {
	b := make([]byte, 3+rng.IntN(4))
	for i := range b {
		b[i] = byte('a' + rng.IntN(26))
	}
	return env.Assistant(string(b))
}

func TestConformance(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"default": func(*Config) {},
		"phrases": func(c *Config) { c.PhraseWords, c.MaxLength = 3, 12 },
		"full":    func(c *Config) { c.Prompt = "full" },
	} {
		t.Run(name, func(t *testing.T) { envtest.Run(t, open(t, change), letters, reference) })
	}
}

func TestPlayers(t *testing.T) {
	r := open(t, func(*Config) {})
	n := r.Info().Eval
	baselines := r.Baselines(env.Eval)
	for name, test := range map[string]struct {
		player     envtest.Player
		want, slop float64
	}{
		"reference": {reference, 1, 0},
		"copy":      {copyist, baselines["copy"], 1e-12},
		"random":    {letters, baselines["random"], 0.015},
	} {
		got, err := envtest.Mean(context.Background(), r, env.Eval, n, test.player)
		if err != nil || math.Abs(got-test.want) > test.slop {
			t.Errorf("%s: %v, %v; want %v ± %v", name, got, err, test.want, test.slop)
		}
	}
}

// The best constant answer is at least as good as any word of the split, and is below what looking gives.
func TestConstantBaseline(t *testing.T) {
	r := open(t, func(*Config) {})
	texts := r.texts[env.Eval]
	constant := r.Baselines(env.Eval)["constant"]
	for _, answer := range texts {
		var sum float64
		for _, text := range texts {
			sum += agreement([]rune(answer), reverse(text))
		}
		if mean := sum / float64(len(texts)); mean > constant+1e-12 {
			t.Fatalf("answering %q always gives %v, more than the best constant answer, %v", answer, mean, constant)
		}
	}
	if constant > 0.2 {
		t.Errorf("constant %v", constant)
	}
}

func TestScore(t *testing.T) {
	for _, test := range []struct {
		text, reply   string
		reward        float64
		exact, length float64
		chars         env.CharRewards
	}{
		{"cat", "tac", 1, 1, 1, env.CharRewards{1, 1, 1, 1}},
		{"cat", "cat", 1. / 3, 0, 1, env.CharRewards{0, 1, 0, 1}},
		{"cat", "tacs", 3. / 4, 0, 0, env.CharRewards{1, 1, 1, 0, 0}},
		{"cat", "t", 1. / 3, 0, 0, env.CharRewards{1, 0}},
		{"cat", "", 0, 0, 0, env.CharRewards{0}},
		{"cat", " tac\n", 1, 1, 1, env.CharRewards{0, 1, 1, 1, 0, 1}},
		{"cat", "xtac", 0, 0, 0, env.CharRewards{0, 0, 0, 0, 0}},
		{"a cat", "tac a", 1, 1, 1, env.CharRewards{1, 1, 1, 1, 1, 1}},
		{"né", "én", 1, 1, 1, env.CharRewards{1, 1, 1}},
		{"cat", "t\xff\xff", 1. / 3, 0, 1, env.CharRewards{1, 0, 0, 1}},
		{"cat", "TAC", 0, 0, 1, env.CharRewards{0, 0, 0, 1}},
	} {
		e := &episode{text: test.text}
		if _, err := e.Reply(context.Background(), env.Assistant(test.reply)); err != nil {
			t.Fatal(err)
		}
		s, err := e.Score(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if got := *s.Rewards.Total(); math.Abs(got-test.reward) > 1e-12 {
			t.Errorf("%q for %q: reward %v, want %v", test.reply, test.text, got, test.reward)
		}
		if s.Metrics["exact"] != test.exact || s.Metrics["length"] != test.length {
			t.Errorf("%q for %q: metrics %v", test.reply, test.text, s.Metrics)
		}
		if !slices.Equal(s.CharRewards[0], test.chars) {
			t.Errorf("%q for %q: character rewards %v, want %v", test.reply, test.text, s.CharRewards[0], test.chars)
		}
	}
}

// There is enough text: a thousand words to train on and 150 to test with, no fewer than 15 % of all.
func TestSplitSizes(t *testing.T) {
	i := open(t, func(*Config) {}).Info()
	if i.Train < 1000 || i.Eval < 150 || float64(i.Eval) < 0.15*float64(i.Train+i.Eval) {
		t.Errorf("%d training and %d eval words", i.Train, i.Eval)
	}
}

func TestPieces(t *testing.T) {
	cfg := Config{MinLength: 2, MaxLength: 8, PhraseWords: 2}
	got := pieces("CHAPTER IV\n\n  See `I don't see,' said the\nCat: the cat.", cfg)
	slices.Sort(got)
	want := []string{"cat", "chapter", "said", "said the", "see", "the", "the cat"}
	if !slices.Equal(got, want) {
		t.Errorf("pieces %q, want %q", got, want)
	}
	for _, text := range open(t, func(*Config) {}).texts[env.Train] {
		if strings.Trim(text, "abcdefghijklmnopqrstuvwxyz") != "" || len(text) < 3 || len(text) > 6 {
			t.Errorf("training text %q", text)
		}
	}
}

// A text stays in its split when other options add texts beside it.
func TestSplitIsStable(t *testing.T) {
	small, large := open(t, func(*Config) {}), open(t, func(c *Config) { c.MinLength, c.MaxLength, c.PhraseWords = 1, 12, 2 })
	held := map[string]bool{}
	for _, text := range large.texts[env.Eval] {
		held[text] = true
	}
	for _, text := range small.texts[env.Eval] {
		if !held[text] {
			t.Fatalf("%q is held out only without phrases", text)
		}
	}
	for _, text := range small.texts[env.Train] {
		if held[text] {
			t.Fatalf("%q is held out only with phrases", text)
		}
	}
}

func TestValidate(t *testing.T) {
	for option, change := range map[string]func(*Config){
		"min_length":   func(c *Config) { c.MinLength = 0 },
		"max_length":   func(c *Config) { c.MaxLength = 2 },
		"phrase_words": func(c *Config) { c.PhraseWords = 0 },
		"eval_percent": func(c *Config) { c.EvalPercent = 51 },
		"prompt":       func(c *Config) { c.Prompt = "" },
		"widen":        func(c *Config) { c.MinLength, c.MaxLength = 999, 1000 },
	} {
		cfg := Defaults()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("wrong %s: %v", option, err)
		}
	}
}

func FuzzScore(f *testing.F) {
	f.Add("cat", "tac")
	f.Add("é", "\xff é")
	r, err := New(Defaults())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text, reply string) {
		if text == "" {
			return
		}
		data, _ := json.Marshal(task{text})
		p, err := envtest.Play(context.Background(), r, data, 0, func(*rand.Rand, []env.Message, []env.Tool) env.Message {
			return env.Assistant(reply)
		})
		if err != nil {
			t.Fatal(err)
		}
		if total := *p.Score.Rewards.Total(); total < 0 || total > 1 {
			t.Fatalf("reward %v", total)
		}
	})
}

func TestDemonstration(t *testing.T) {
	r, err := New(Defaults())
	if err != nil {
		t.Fatal(err)
	}
	if text, err := r.Demonstrate([]byte(`{"text":"alice"}`), 0); text != "alice ecila" || err != nil {
		t.Errorf("%q %v", text, err)
	}
	if _, err := r.Demonstrate([]byte(`{}`), 0); err == nil {
		t.Error("a task without text is demonstrated")
	}
}
