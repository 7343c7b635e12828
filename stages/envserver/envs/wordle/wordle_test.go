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
func random(w *Wordle) envtest.Player { return envtest.OneOf(w.lexicon.words...) }

// randomFit guesses any word that begins with the letters it is shown (compact prompt).
func randomFit(w *Wordle) envtest.Player {
	return func(rng *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
		for {
			if word := w.lexicon.words[rng.IntN(len(w.lexicon.words))]; fits(word, conversation) {
				return env.Assistant(word)
			}
		}
	}
}

// fits reports whether the word begins with what the first message shows.
func fits(word string, conversation []env.Message) bool {
	return strings.HasPrefix(word, strings.TrimRight(conversation[0].Content, "."))
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
	if !fits(word, conversation) {
		return false
	}
	for i, m := range conversation {
		if m.Role != env.RoleAssistant || i+1 == len(conversation) {
			continue
		}
		guess := m.Content
		if len(m.ToolCalls) > 0 {
			guess = m.ToolCalls[0].Arguments[len(`{"word":"`):][:length]
		}
		if (hint{guess, feedback(guess, word)}).board() != conversation[i+1].Content {
			return false
		}
	}
	return true
}

func TestConformance(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"default": func(*Config) {},
		"hard":    func(c *Config) { c.Answers, c.Mode = 400, "hard" },
		"full":    func(c *Config) { c.Answers, c.Prompt = 400, "full" },
		"tool":    func(c *Config) { c.Answers, c.Tool = 400, true },
		"small":   func(c *Config) { c.Words, c.CharRewards, c.Weights.Spelling = 200, true, 0.5 },
		"chars":   func(c *Config) { c.Answers, c.Prompt, c.CharRewards = 400, "full", true },
		"shown":   func(c *Config) { c.Answers, c.Shown, c.CharRewards = 400, 2, true },
	} {
		w := open(t, change)
		t.Run(name, func(t *testing.T) { envtest.Run(t, w, random(w)) })
	}
}

func TestReferencePlayer(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"easy":  func(*Config) {},
		"shown": func(c *Config) { c.Shown, c.Guesses = 1, 5 },
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

// The figures are those of players that really play; no word does better than fixed_word.
func TestBaselines(t *testing.T) {
	ctx := context.Background()
	for _, shown := range []int{0, 1, 2} {
		w := open(t, func(c *Config) { c.Words, c.Answers, c.Guesses, c.Shown, c.Weights.Spelling = 60, 40, 3, shown, 0.5 })
		for _, split := range []env.Split{env.Train, env.Eval} {
			n := w.Info().Tasks(split)
			best := 0.0
			for _, word := range w.lexicon.words {
				got, err := envtest.Mean(ctx, w, split, n, envtest.OneOf(word))
				if err != nil {
					t.Fatal(err)
				}
				best = max(best, got)
			}
			b := w.Baselines(split)
			if got := b["fixed_word"]; math.Abs(got-best) > 1e-9 {
				t.Errorf("%d shown, %s: fixed_word %v; playing every word gives %v", shown, split, got, best)
			}
			sequence, _ := w.blind(w.rank(w.answers[split]))
			got, err := envtest.Mean(ctx, w, split, n,
				func(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
					return env.Assistant(sequence[len(conversation)/2])
				})
			if err != nil || math.Abs(got-b["blind"]) > 1e-9 {
				t.Errorf("%d shown, %s: blind %v; playing its sequence gives %v, %v", shown, split, b["blind"], got, err)
			}
			if got <= best { // a first guess may solve a game and cost nothing
				t.Errorf("%d shown, %s: blind %v, fixed_word %v", shown, split, got, best)
			}
		}
	}
	w := open(t, func(c *Config) { c.Shown = 1 })
	b := w.Baselines(env.Eval)
	t.Logf("one letter shown: %v", b)
	for name, player := range map[string]envtest.Player{"random": random(w), "random_fit": randomFit(w)} {
		got, err := envtest.Mean(ctx, w, env.Eval, w.Info().Eval, player)
		if err != nil || math.Abs(got-b[name]) > 0.02 {
			t.Errorf("%s player %v, %v; baseline %v", name, got, err, b[name])
		}
	}
	if _, there := open(t, func(*Config) {}).Baselines(env.Eval)["random_fit"]; there {
		t.Error("random_fit where nothing is shown")
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
	shown := open(t, func(c *Config) { c.Guesses, c.Shown = 3, 1 })
	for _, test := range []struct {
		w                                     *Wordle
		guesses                               string
		said, stop                            string
		solved, green, yellow, valid, refused float64
	}{
		{easy, "crane", ".....", "solved", 1, 1, 0, 1, 0},
		{easy, "CRATE  crane", "..... cra.e", "solved", 1, 1, 0, 1, 0},
		{easy, "qqqqq cran craned crane", "..... x x x", "solved", 1, 1, 0, 0.25, 0},
		{easy, "sloth sloth sloth sloth sloth sloth", "..... ..... ..... ..... ..... .....", "lost", 0, 0, 0, 1, 0},
		{easy, "crate sloth sloth sloth sloth sloth", "..... cra.e ..... ..... ..... .....", "lost", 0, 0, 0, 1, 0}, // the last one counts
		{easy, "sloth sloth sloth sloth sloth trace", "..... ..... ..... ..... ..... .....", "lost", 0, 0.6, 0.2, 1, 0},
		{easy, "sloth sloth sloth sloth trace qqqqq", "..... ..... ..... ..... ..... .ra?e", "lost", 0, 0.6, 0.2, 5. / 6, 0}, // of those accepted
		{hard, "crate sloth crane", "..... cra.e x", "solved", 1, 1, 0, 2. / 3, 1},
		{easy, "crate sloth crane", "..... cra.e .....", "solved", 1, 1, 0, 1, 0},
		{shown, "crane", "c....", "solved", 1, 1, 0, 1, 0},
		{shown, "brave trace cream", "c.... x x", "lost", 0, 0.25, 0.5, 1. / 3, 2}, // of the four letters that are not shown
		{shown, "cower cower sloth", "c.... c..?? c..??", "lost", 0, 0, 0.5, 2. / 3, 1},
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
	weights := Weights{Solved: 100, Green: 5, Yellow: 2.5, Valid: 10, Spelling: 50}
	for _, test := range []struct {
		shown   int
		replies []string
		want    []env.CharRewards
	}{
		{0, []string{"crxxx", "\u2003nacre", "nacre", "crane"}, []env.CharRewards{
			{50, 50, 0, 0, 0, 0},
			{0, 52.5, 52.5, 52.5, 52.5, 55, 10},
			{50, 50, 50, 50, 55, 10}, // yellow there before: no news; green earns every time
			{55, 55, 55, 55, 55, 110},
		}},
		{1, []string{"nacre", "crane"}, []env.CharRewards{
			{0, 0, 0, 0, 0, 0},
			{50, 55, 55, 55, 55, 110}, // what is shown is spelled, and no more
		}},
	} {
		w := open(t, func(c *Config) { c.CharRewards, c.Shown, c.Weights = true, test.shown, weights })
		if !w.lexicon.has("nacre") {
			t.Fatal("nacre is not in the list")
		}
		r := play(t, w, "crane", test.replies...)
		for i, want := range test.want {
			if !slices.Equal(r.Score.CharRewards[i], want) {
				t.Errorf("%d shown, reply %d: %v, want %v", test.shown, i, r.Score.CharRewards[i], want)
			}
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
		{[]env.ToolCall{call(`{"word":"crate"}`)}, "cra.e", false},
		{[]env.ToolCall{call(`{"word":"qqqqq"}`)}, "error: qqqqq is not in the word list", false},
		{nil, "x", false},
		{[]env.ToolCall{call(`{"word":"Crane"}`), call(`{"word":"crane"}`)}, "crane", true},
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
		"shown":        func(c *Config) { c.Shown = 5 },
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

func TestDemonstration(t *testing.T) {
	w, err := New(Defaults())
	if err != nil {
		t.Fatal(err)
	}
	if text, err := w.Demonstrate([]byte(`{"answer":"crane"}`), 0); text != "crane" || err != nil {
		t.Errorf("%q %v", text, err)
	}
	if _, err := w.Demonstrate([]byte(`{"answer":"no"}`), 0); err == nil {
		t.Error("a task without a word is demonstrated")
	}
}
