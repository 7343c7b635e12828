package alphabetsort

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/env/envtest"
)

func open(t testing.TB, change func(*Config)) *AlphabetSort {
	t.Helper()
	cfg := Defaults()
	change(&cfg)
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// seen reads the task so far off compact messages.
func seen(conversation []env.Message) task {
	var t task
	for _, m := range conversation {
		if m.Role == env.RoleUser {
			words := strings.Fields(m.Content)
			t.By = words[0]
			t.Turns = append(t.Turns, words[1:])
		}
	}
	return t
}

func reference(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
	t := seen(conversation)
	return env.Assistant(strings.Join(t.truth(len(t.Turns)-1, compactMark), " "))
}

func random(rng *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
	t := seen(conversation)
	names := t.truth(len(t.Turns)-1, compactMark)
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return env.Assistant(strings.Join(names, " "))
}

func copyist(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
	t := seen(conversation)
	last := len(t.Turns) - 1
	names := slices.Concat(t.Turns[:last]...)
	for _, n := range t.Turns[last] {
		if last > 0 {
			n += compactMark
		}
		names = append(names, n)
	}
	return env.Assistant(strings.Join(names, " "))
}

func TestConformance(t *testing.T) {
	t.Run("default", func(t *testing.T) { envtest.Run(t, open(t, func(*Config) {}), random, reference) })
	t.Run("full", func(t *testing.T) {
		envtest.Run(t, open(t, func(c *Config) { c.Prompt, c.By = "full", "last" }), envtest.OneOf("<alphabetical_sorted>A</alphabetical_sorted>"))
	})
}

func TestTable(t *testing.T) {
	a := open(t, func(*Config) {})
	envtest.Row(t, "../../README.md", "`alphabet-sort`", a, a.Info().Eval, reference, random)
}

func TestPlayers(t *testing.T) {
	a := open(t, func(c *Config) { c.EvalTasks = 1000 })
	baselines := a.Baselines(env.Eval)
	for name, test := range map[string]struct {
		player     envtest.Player
		want, slop float64
	}{
		"reference": {reference, 1, 0},
		"copy":      {copyist, baselines["copy"], 1e-9},
		"random":    {random, baselines["random"], 0.04},
	} {
		got, err := envtest.Mean(context.Background(), a, env.Eval, 1000, test.player)
		if err != nil || math.Abs(got-test.want) > test.slop {
			t.Errorf("%s: %v, %v; want %v ± %v", name, got, err, test.want, test.slop)
		}
	}
	if baselines["random"] > 0.5 {
		t.Errorf("random %v", baselines["random"])
	}
}

func TestNames(t *testing.T) {
	for _, list := range [][]string{firstNames, lastNames} {
		sorted := slices.Compact(slices.Sorted(slices.Values(list)))
		if len(sorted) != len(list) || len(list) < 100 {
			t.Errorf("%d names, %d different", len(list), len(sorted))
		}
		for _, n := range list {
			if n != strings.ToUpper(n[:1])+strings.ToLower(n[1:]) {
				t.Errorf("%q has capitals inside: where its last name begins would be unclear", n)
			}
		}
	}
	if key("AdaLovelace", "first") != "Ada" || key("AdaLovelace", "last") != "Lovelace" || key("ada", "last") != "ada" {
		t.Errorf("%q %q %q", key("AdaLovelace", "first"), key("AdaLovelace", "last"), key("ada", "last"))
	}
}

func TestTurns(t *testing.T) {
	const data = `{"by":"last","turns":[["AdaYoung","ZoeAbe"],["EmilBaker"],["BelaZhou","IdaAdler"]]}`
	for _, test := range []struct {
		prompt  string
		replies []string
		reward  float64
		exact   float64
	}{
		{"compact", []string{"ZoeAbe AdaYoung", "ZoeAbe EmilBaker+ AdaYoung", "ZoeAbe IdaAdler+ EmilBaker AdaYoung BelaZhou+"}, 1, 1},
		{"compact", []string{"zoeabe\nADAYOUNG", "ZoeAbe EmilBaker AdaYoung", ""}, (1 + math.Pow(2./3, 4)) / 3, 1. / 3},
		{"compact", []string{"AdaYoung ZoeAbe", "", "ZoeAbe"}, (math.Pow(1./2, 4) + math.Pow(2./6, 4)) / 3, 0},
		{"full", []string{
			"Well: <alphabetical_sorted>x</alphabetical_sorted> <alphabetical_sorted>\n ZoeAbe\n\nAdaYoung\n</alphabetical_sorted>",
			"<combined_alphabetical_sorted>ZoeAbe\nEmilBaker // new  name!\nAdaYoung</combined_alphabetical_sorted>",
			"<alphabetical_sorted>ZoeAbe\nIdaAdler // new name!\nEmilBaker\nAdaYoung\nBelaZhou // new name!</alphabetical_sorted>",
		}, 2. / 3, 2. / 3}, // the last has the tag of the first turn
		{"full", []string{"ZoeAbe\nAdaYoung", "<combined_alphabetical_sorted>ZoeAbe", ""}, 0, 0},
	} {
		a := open(t, func(c *Config) { c.Prompt = test.prompt })
		turn := 0
		r, err := envtest.Play(t.Context(), a, []byte(data), 0, func(*rand.Rand, []env.Message, []env.Tool) env.Message {
			turn++
			return env.Assistant(test.replies[turn-1])
		})
		if err != nil || turn != 3 {
			t.Fatalf("%d turns, %v", turn, err)
		}
		if got := *r.Score.Rewards.Total(); math.Abs(got-test.reward) > 1e-9 || math.Abs(r.Score.Metrics["exact"]-test.exact) > 1e-9 {
			t.Errorf("%q: reward %v, metrics %v; want %v, %v", test.replies, got, r.Score.Metrics, test.reward, test.exact)
		}
	}
}

// What is said of later turns in full.
func TestFullPrompt(t *testing.T) {
	a := open(t, func(c *Config) { c.Prompt = "full" })
	e, err := a.Start(t.Context(), []byte(`{"by":"first","turns":[["AdaYoung","ZoeAbe"],["EmilBaker"]]}`), 0)
	if err != nil {
		t.Fatal(err)
	}
	if p := e.Prompt()[0].Content; !strings.Contains(p, "by FIRST name") || !strings.Contains(p, "AdaYoung, ZoeAbe") || strings.Contains(p, "combined") {
		t.Errorf("%q", p)
	}
	turn, err := e.Reply(t.Context(), env.Assistant(""))
	if err != nil || turn.Done {
		t.Fatal(turn, err)
	}
	if p := turn.Messages[0].Content; !strings.Contains(p, "EmilBaker") || !strings.Contains(p, "</combined_alphabetical_sorted>") || !strings.Contains(p, "// new name!") {
		t.Errorf("%q", p)
	}
}

func TestSimilarity(t *testing.T) {
	for _, test := range []struct {
		answer, truth string
		want          float64
	}{
		{"a b c", "a b c", 1}, {"c b a", "a b c", 1. / 3}, {"", "a", 0}, {"a c", "a b c", 0.8}, {"x a x b x c", "a b c", 2. / 3},
		{"x x x x x x a b c", "a b c", 0}, {"b a c", "a b c", 2. / 3},
	} {
		if got := similarity(strings.Fields(test.answer), strings.Fields(test.truth)); math.Abs(got-test.want) > 1e-12 {
			t.Errorf("%q and %q: %v, want %v", test.answer, test.truth, got, test.want)
		}
	}
}

func TestValidate(t *testing.T) {
	for option, change := range map[string]func(*Config){
		"min_turns":    func(c *Config) { c.MinTurns = 4 },
		"min_names":    func(c *Config) { c.MinNames = 0 },
		"100 names":    func(c *Config) { c.MaxTurns, c.MaxNames = 10, 11 },
		"by":           func(c *Config) { c.By = "" },
		"power":        func(c *Config) { c.Power = math.NaN() },
		"eval_tasks":   func(c *Config) { c.EvalTasks = 0 },
		"eval_percent": func(c *Config) { c.EvalPercent = 51 },
		"prompt":       func(c *Config) { c.Prompt = "" },
	} {
		cfg := Defaults()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("wrong %s: %v", option, err)
		}
	}
}

func TestBadTasks(t *testing.T) {
	a := open(t, func(*Config) {})
	for _, data := range []string{`{"by":"middle","turns":[["A"]]}`, `{"by":"first","turns":[]}`, `{"by":"first","turns":[["A"],[]]}`, `{"by":"first","turns":[["A"],["A"],["A"],["A"]]}`} {
		if _, err := a.Start(t.Context(), []byte(data), 0); err == nil {
			t.Errorf("%s is a task", data)
		}
	}
}

func TestDemonstration(t *testing.T) {
	a := open(t, func(*Config) {})
	text, err := a.Demonstrate([]byte(`{"by":"last","turns":[["AdaYoung","ZoeAbe"],["EmilBaker"]]}`), 0)
	if want := "ZoeAbe AdaYoung / ZoeAbe EmilBaker+ AdaYoung"; text != want || err != nil {
		t.Errorf("%q %v", text, err)
	}
}
