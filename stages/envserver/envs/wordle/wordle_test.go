package wordle

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

func open(t testing.TB, change func(*Config)) *Wordle {
	t.Helper()
	cfg := Defaults()
	change(&cfg)
	w, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// random guesses any word of the list.
func random(w *Wordle) envtest.Player {
	return func(rng *rand.Rand, _ []env.Message, _ []env.Tool) env.Message {
		return env.Assistant(w.lexicon.words[rng.IntN(len(w.lexicon.words))])
	}
}

// reference guesses a random common word that agrees with every hint it reads in the conversation (compact prompt). Played by
// tool calls if there are tools.
func reference(w *Wordle) envtest.Player {
	candidates := w.lexicon.words[:min(common, len(w.lexicon.words))]
	return func(rng *rand.Rand, conversation []env.Message, tools []env.Tool) env.Message {
		var left []string
		for _, word := range candidates {
			if agrees(word, conversation) {
				left = append(left, word)
			}
		}
		word := left[rng.IntN(len(left))]
		if len(tools) == 0 {
			return env.Assistant(word)
		}
		args, _ := json.Marshal(map[string]string{"word": word})
		return env.Message{ToolCalls: []env.ToolCall{{ID: "1", Name: "Guess", Arguments: string(args)}}}
	}
}

func agrees(word string, conversation []env.Message) bool {
	for i, m := range conversation {
		if m.Role != env.RoleAssistant || i+1 == len(conversation) {
			continue
		}
		guess := m.Content
		if len(m.ToolCalls) > 0 {
			guess = m.ToolCalls[0].Arguments[len(`{"word":"`):][:length]
		}
		if (hint{guess, feedback(guess, word)}).String() != conversation[i+1].Content {
			return false
		}
	}
	return true
}

func TestConformance(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"default": func(*Config) {},
		"hard":    func(c *Config) { c.Mode = "hard" },
		"full":    func(c *Config) { c.Prompt = "full" },
		"tool":    func(c *Config) { c.Tool = true },
		"small":   func(c *Config) { c.Words, c.CharRewards, c.Weights.Spelling = 200, true, 0.5 },
		"chars":   func(c *Config) { c.Prompt, c.CharRewards = "full", true },
	} {
		w := open(t, change)
		t.Run(name, func(t *testing.T) { envtest.Run(t, w, random(w)) })
	}
}

func TestReferencePlayer(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"easy":  func(*Config) {},
		"hard":  func(c *Config) { c.Mode = "hard" },
		"tool":  func(c *Config) { c.Tool = true },
		"small": func(c *Config) { c.Words = 200 },
	} {
		w := open(t, func(c *Config) { change(c); c.Weights = Weights{Solved: 1} })
		n := min(w.Info().Eval, 200)
		got, err := envtest.Mean(context.Background(), w, env.Eval, n, reference(w))
		t.Logf("%s: solves %.3f of %d", name, got, n)
		if err != nil || got < 0.85 {
			t.Errorf("%s: the reference player solves %v, %v; want at least 0.85", name, got, err)
		}
	}
}

func TestBaselines(t *testing.T) {
	w := open(t, func(c *Config) { c.Words, c.Answers = 60, 40 })
	for _, split := range []env.Split{env.Train, env.Eval} {
		n := w.Info().Tasks(split)
		best := 0.0
		for _, word := range w.lexicon.words {
			got, err := envtest.Mean(context.Background(), w, split, n, envtest.OneOf(word))
			if err != nil {
				t.Fatal(err)
			}
			best = max(best, got)
		}
		b := w.Baselines(split)
		if got := b["fixed_word"]; math.Abs(got-best) > 1e-9 {
			t.Errorf("%s: fixed_word %v; playing every word gives %v", split, got, best)
		}
		sequence, _ := w.blind(w.rank(w.answers[split]), w.answers[split])
		got, err := envtest.Mean(context.Background(), w, split, n,
			func(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
				return env.Assistant(sequence[len(conversation)/2])
			})
		if err != nil || math.Abs(got-b["blind"]) > 1e-9 || got < best {
			t.Errorf("%s: blind %v; playing its sequence gives %v, %v; fixed_word %v", split, b["blind"], got, err, best)
		}
	}
	w = open(t, func(*Config) {})
	b := w.Baselines(env.Eval)
	t.Logf("full game: %v", b)
	got, err := envtest.Mean(context.Background(), w, env.Eval, w.Info().Eval, random(w))
	if err != nil || math.Abs(got-b["random"]) > 0.01 {
		t.Errorf("random player %v, %v; baseline %v", got, err, b["random"])
	}
	if b["fixed_word"] < 0.1 || b["fixed_word"] > 0.3 {
		t.Errorf("fixed_word %v", b["fixed_word"])
	}
}

// play plays fixed replies against an answer.
func play(t *testing.T, w *Wordle, answer string, replies ...string) env.Rollout {
	t.Helper()
	data, _ := json.Marshal(task{answer})
	turn := 0
	r, err := envtest.Play(context.Background(), w, data, 0, func(*rand.Rand, []env.Message, []env.Tool) env.Message {
		turn++
		return env.Assistant(replies[turn-1])
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// said joins what the environment said.
func said(r env.Rollout) string {
	var texts []string
	for _, m := range r.Messages {
		if m.Role != env.RoleAssistant {
			texts = append(texts, m.Content)
		}
	}
	return strings.Join(texts, " ")
}

func TestCompactGame(t *testing.T) {
	easy, hard := open(t, func(*Config) {}), open(t, func(c *Config) { c.Mode = "hard" })
	for _, test := range []struct {
		w                                     *Wordle
		guesses                               string
		said, stop                            string
		solved, green, yellow, valid, refused float64
	}{
		{easy, "crane", ".", "solved", 1, 1, 0, 1, 0},
		{easy, "CRATE  crane", ". ggg.g", "solved", 1, 1, 0, 1, 0},
		{easy, "qqqqq cran craned crane", ". x x x", "solved", 1, 1, 0, 0.25, 0},
		{easy, "sloth sloth sloth sloth sloth sloth", ". ..... ..... ..... ..... .....", "lost", 0, 0, 0, 1, 0},
		{easy, "trace brave sloth sloth sloth sloth", ". .ggyg .gg.g ..... ..... .....", "lost", 0, 0.6, 0.2, 1, 0},
		{easy, "chase lunar sloth sloth sloth sloth", ". g.g.g ..yyy ..... ..... .....", "lost", 0, 0.6, 0.4, 1, 0}, // what both found
		{hard, "crate sloth crane", ". ggg.g x", "solved", 1, 1, 0, 2. / 3, 1},
		{easy, "crate sloth crane", ". ggg.g .....", "solved", 1, 1, 0, 1, 0},
	} {
		r := play(t, test.w, "crane", strings.Split(strings.ReplaceAll(test.guesses, "  ", " "), " ")...)
		if got := said(r); got != test.said {
			t.Errorf("%s: said %q, want %q", test.guesses, got, test.said)
		}
		for name, want := range map[string]float64{"solved": test.solved, "green": test.green, "yellow": test.yellow, "valid": test.valid} {
			if got := *r.Score.Rewards[name].Value; math.Abs(got-want) > 1e-12 {
				t.Errorf("%s: %s %v, want %v", test.guesses, name, got, want)
			}
		}
		if r.Score.Stop != test.stop || r.Score.Metrics["refused"] != test.refused {
			t.Errorf("%s: %s, metrics %v", test.guesses, r.Score.Stop, r.Score.Metrics)
		}
	}
}

func TestFullPromptFindsTheGuess(t *testing.T) {
	w := open(t, func(c *Config) { c.Prompt = "full" })
	for reply, want := range map[string]bool{
		"<guess>crane</guess>": true,
		"crane":                true,
		"I think <guess>sloth</guess>, no: <guess> CRANE</guess>.": true,
		"<guess>crane":                        true,
		"my guess is crane":                   false,
		"<guess>crane</guess><guess></guess>": false,
		"</guess>crane<guess>":                false,
	} {
		g := &chatGame{game: &game{cfg: w.cfg, lexicon: w.lexicon, answer: "crane"}}
		if turn, _ := g.Reply(context.Background(), env.Assistant(reply)); turn.Done != want {
			t.Errorf("%q: solved %v, want %v", reply, turn.Done, want)
		}
	}
}

func TestCharRewards(t *testing.T) {
	w := open(t, func(c *Config) {
		c.CharRewards = true
		c.Weights = Weights{Solved: 100, Green: 5, Yellow: 2.5, Valid: 10, Spelling: 50}
	})
	r := play(t, w, "crane", "crxxx", "\u2003nacre", "crane")
	want := []env.CharRewards{
		{10, 10, 0, 0, 0, 0},
		{0, 10.5, 10.5, 10.5, 10.5, 11, 10},
		{11, 11, 11, 11, 10, 110}, // the e stood there before: no news
	}
	if !w.lexicon.has("nacre") {
		t.Fatal("nacre is not in the list")
	}
	for i := range want {
		if !slices.Equal(r.Score.CharRewards[i], want[i]) {
			t.Errorf("reply %d: %v, want %v", i, r.Score.CharRewards[i], want[i])
		}
	}
}

func TestTool(t *testing.T) {
	w := open(t, func(c *Config) { c.Tool = true })
	ctx := context.Background()
	s, err := env.Begin(ctx, w, json.RawMessage(`{"answer":"crane"}`), 0)
	if err != nil {
		t.Fatal(err)
	}
	if tools := s.Tools(); len(tools) != 1 || tools[0].Name != "Guess" || tools[0].Description == "" {
		t.Fatalf("tools %+v", tools)
	}
	call := func(args string) env.ToolCall { return env.ToolCall{ID: "1", Name: "Guess", Arguments: args} }
	for i, test := range []struct {
		calls []env.ToolCall
		want  string
		done  bool
	}{
		{[]env.ToolCall{call(`{"word":"crate"}`)}, "ggg.g", false},
		{[]env.ToolCall{call(`{"word":"qqqqq"}`)}, "error: qqqqq is not in the word list", false},
		{nil, "x", false},
		{[]env.ToolCall{call(`{"word":"Crane"}`), call(`{"word":"crane"}`)}, "ggggg", true},
	} {
		turn, err := s.Reply(ctx, env.Message{Role: env.RoleAssistant, ToolCalls: test.calls})
		if err != nil || len(turn.Messages) != 1 || turn.Messages[0].Content != test.want || turn.Done != test.done {
			t.Fatalf("reply %d: %+v, %v; want %q", i, turn, err, test.want)
		}
	}
	score, err := s.Score(ctx)
	if err != nil || score.Metrics["turns"] != 4 || *score.Rewards["valid"].Value != 0.5 {
		t.Errorf("%+v, %v", score, err)
	}
}

func TestValidate(t *testing.T) {
	for option, change := range map[string]func(*Config){
		"mode":         func(c *Config) { c.Mode = "" },
		"guesses":      func(c *Config) { c.Guesses = 0 },
		"words":        func(c *Config) { c.Words = 6373 },
		"answers":      func(c *Config) { c.Words, c.Answers = 100, 101 },
		"more of them": func(c *Config) { c.Words = 1 },
		"eval_percent": func(c *Config) { c.EvalPercent = 0 },
		"prompt":       func(c *Config) { c.Prompt = "short" },
		"tool":         func(c *Config) { c.Tool, c.CharRewards = true, true },
		"weights":      func(c *Config) { c.Weights.Green = math.NaN() },
	} {
		cfg := Defaults()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("wrong %s: %v", option, err)
		}
	}
}

func FuzzReply(f *testing.F) {
	f.Add("crane", true)
	f.Add("<guess>\xffcran\xc3e</guess>é", true)
	f.Add("\u2003crane\u2003", false)
	games := map[bool]*Wordle{}
	for _, full := range []bool{false, true} {
		games[full] = open(f, func(c *Config) {
			c.CharRewards, c.Weights.Spelling = true, 1
			if full {
				c.Prompt = "full"
			}
		})
	}
	f.Fuzz(func(t *testing.T, reply string, full bool) {
		_, err := envtest.Play(context.Background(), games[full], json.RawMessage(`{"answer":"crane"}`), 0,
			func(*rand.Rand, []env.Message, []env.Tool) env.Message { return env.Assistant(reply) })
		if err != nil {
			t.Fatal(err)
		}
	})
}
