package gsm

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/env/envtest"
)

func open(t testing.TB, change func(*Config)) *GSM {
	t.Helper()
	cfg := Defaults()
	cfg.TrainTasks = 500
	change(&cfg)
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

var (
	sentence = regexp.MustCompile(`has (\d+)|finds (\d+) more|gives away (\d+)|there are (\d+) times|one part of (\d+) equal`)
	did      = []func(have, n int) int{
		func(_, n int) int { return n },
		func(have, n int) int { return have + n },
		func(have, n int) int { return have - n },
		func(have, n int) int { return have * n },
		func(have, n int) int { return have / n },
	}
)

// reference does what the sentences say, one after the other.
func reference(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
	have := 0
	steps := ""
	for _, m := range sentence.FindAllStringSubmatch(conversation[len(conversation)-1].Content, -1) {
		for i, f := range did {
			if n, err := strconv.Atoi(m[i+1]); err == nil {
				have = f(have, n)
				steps += fmt.Sprintf("%s, so there are %d. ", m[0], have)
			}
		}
	}
	return env.Assistant(fmt.Sprintf("%s\n#### %d", steps, have))
}

func random(rng *rand.Rand, _ []env.Message, _ []env.Tool) env.Message {
	return env.Assistant(strconv.Itoa(1 + rng.IntN(30)))
}

// write is a file of lines.
func write(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "problems.jsonl")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConformance(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"default": func(*Config) {},
		"compact": func(c *Config) { c.Prompt, c.Strict, c.Steps, c.Largest = "compact", true, 5, 1000 },
	} {
		t.Run(name, func(t *testing.T) { envtest.Run(t, open(t, change), random, reference) })
	}
}

func TestTable(t *testing.T) {
	g := open(t, func(*Config) {})
	envtest.Row(t, "../../README.md", "`gsm`", g, g.Info().Eval, reference, random)
}

func TestPlayers(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.EvalTasks = 1000 },
		func(c *Config) { c.EvalTasks, c.Steps, c.Strict = 1000, 6, true },
	} {
		g := open(t, change)
		got, err := envtest.Mean(context.Background(), g, env.Eval, 1000, reference)
		if err != nil || got != 1 {
			t.Errorf("%+v: the reference player has %v, %v", g.cfg, got, err)
		}
		if g.cfg.Strict {
			continue
		}
		got, err = envtest.Mean(context.Background(), g, env.Eval, 1000, random)
		if want := g.Baselines(env.Eval)["random"]; err != nil || math.Abs(got-want) > 0.025 {
			t.Errorf("the random player has %v, %v; baseline %v", got, err, want)
		}
		blind, best := g.Baselines(env.Eval)["blind"], 0.0
		for n := range 31 {
			got, err := envtest.Mean(context.Background(), g, env.Eval, 1000, envtest.OneOf(strconv.Itoa(n)))
			if err != nil {
				t.Fatal(err)
			}
			best = max(best, got)
		}
		if math.Abs(blind-best) > 1e-12 || blind > 0.2 {
			t.Errorf("blind %v, the best answer has %v", blind, best)
		}
	}
}

func TestGenerated(t *testing.T) {
	g := open(t, func(c *Config) { c.Steps, c.Largest = 4, 50 })
	kinds := map[int]bool{}
	for _, task := range g.tasks[env.Train] {
		all := sentence.FindAllStringSubmatch(task.Question, -1)
		if len(all) != 5 {
			t.Fatalf("%q has not four steps", task.Question)
		}
		for _, m := range all {
			for i := range did {
				if n, err := strconv.Atoi(m[i+1]); err == nil {
					kinds[i] = true
					if n < 1 || n > 50 {
						t.Fatalf("%q", task.Question)
					}
				}
			}
		}
		if n, err := strconv.Atoi(task.Answer); err != nil || n < 1 || n > 50 {
			t.Fatalf("%+v", task)
		}
	}
	if len(kinds) != len(did) {
		t.Errorf("of the events there are only %v", kinds)
	}
}

func TestFile(t *testing.T) {
	var lines []string
	for i := range 40 {
		lines = append(lines, fmt.Sprintf(`{"problem":"What is %d + %d/2?","solution":"Half of it.\n#### %d.5","source":"x"}`, i, 1, i))
	}
	lines = append(lines, "", `{"problem":"And minus a thousand?","solution":-1000}`, lines[3])
	path := write(t, lines...)
	g := open(t, func(c *Config) { c.File, c.Question, c.Answer = path, "problem", "solution" })
	if i := g.Info(); i.Train+i.Eval != 41 || i.Eval < 2 {
		t.Fatalf("%+v", i)
	}
	right := map[string]string{"What is 7 + 1/2?": "#### 15/2", "And minus a thousand?": "-1,000"}
	for _, split := range []env.Split{env.Train, env.Eval} {
		for i := range g.Info().Tasks(split) {
			data, err := g.Task(split, i)
			if err != nil {
				t.Fatal(err)
			}
			var problem task
			if err := json.Unmarshal(data, &problem); err != nil {
				t.Fatal(err)
			}
			reply, ok := right[problem.Question]
			if !ok {
				continue
			}
			delete(right, problem.Question)
			r, err := envtest.Play(t.Context(), g, data, 0, envtest.OneOf(reply))
			if err != nil || *r.Score.Rewards.Total() != 1 || r.Score.Metrics["answered"] != 1 {
				t.Errorf("%s answered with %q: %+v, %v", data, reply, r.Score, err)
			}
		}
	}
	if len(right) > 0 {
		t.Errorf("not among the tasks: %v", right)
	}
	envtest.Run(t, g, random)
}

func TestBadFiles(t *testing.T) {
	const good = `{"question":"1+1?","answer":"2"}`
	for _, test := range []struct {
		lines []string
		want  string
	}{
		{[]string{good, `{"question":"1+1`}, "problems.jsonl:2: not a JSON object"},
		{[]string{good, "", `[1]`}, ":3: not a JSON object"},
		{[]string{`{"question":"1+1?"}`}, `:1: no field "answer"`},
		{[]string{`{"question":["1+1?"],"answer":"2"}`}, `:1: field "question" is neither`},
		{[]string{`{"question":"","answer":"2"}`}, `:1: field "question" is neither`},
		{[]string{good, `{"question":"why?","answer":"nobody knows"}`}, `:2: field "answer" is not one number`},
		{[]string{good, `{"question":"why?","answer":"In 2 days 5"}`}, `:2: field "answer" is not one number`},
		{[]string{good, `{"question":"why?","answer":"#### 1/0"}`}, `:2: field "answer" is not one number`},
		{[]string{good, `{"question":"1+1?","answer":"3"}`}, ":2: the question of line 1 with another answer, 3 instead of 2"},
		{[]string{good, `{"question":"` + strings.Repeat("x", env.LongestLine) + `"}`}, ":2: longer than"},
		{nil, "has no problem"},
		{[]string{good}, "eval_percent"},
	} {
		cfg := Defaults()
		cfg.File = write(t, test.lines...)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.200q: %v, want %q", test.lines, err, test.want)
		}
	}
	cfg := Defaults()
	cfg.File = filepath.Join(t.TempDir(), "nowhere")
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Error(err)
	}
}

func TestValidate(t *testing.T) {
	for option, change := range map[string]func(*Config){
		"question":     func(c *Config) { c.Question = "" },
		"answer":       func(c *Config) { c.Answer = c.Question },
		"steps":        func(c *Config) { c.Steps = 11 },
		"largest":      func(c *Config) { c.Largest = 9 },
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

func TestDemonstration(t *testing.T) {
	g := open(t, func(*Config) {})
	if text, err := g.Demonstrate([]byte(`{"question":"?","answer":"1/2"}`), 0); text != "#### 1/2" || err != nil {
		t.Errorf("%q %v", text, err)
	}
	for _, bad := range []string{`{}`, `{"question":"?","answer":"1e999999999"}`} {
		if _, err := g.Start(t.Context(), []byte(bad), 0); err == nil {
			t.Errorf("%s is a task", bad)
		}
	}
}
