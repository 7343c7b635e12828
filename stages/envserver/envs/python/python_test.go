package python

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/env/envtest"
)

func open(t testing.TB, change func(*Config)) *Python {
	t.Helper()
	need.Python3(t)
	cfg := Defaults()
	cfg.TimeoutS = 20 // a test's machine may be busy
	change(&cfg)
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// reference knows the solutions.
func reference(p *Python) envtest.Player {
	return func(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
		for _, tasks := range p.tasks {
			for _, t := range tasks {
				if t.Prompt == conversation[1].Content {
					return env.Assistant("Here it is:\n```python\n" + t.Solution + "```\nThat is all.")
				}
			}
		}
		return env.Assistant("")
	}
}

// random returns one of some constants.
func random(rng *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
	value := []string{"0", "1", "True", "False", "[]", "''", "None", "-1"}[rng.IntN(8)]
	name, _, _ := strings.Cut(strings.TrimPrefix(conversation[1].Content, "Write a function "), "(")
	return env.Assistant("def " + name + "(*args):\n    return " + value + "\n")
}

// Most replies are no code here, since every one that is takes a process.
func TestConformance(t *testing.T) {
	p := open(t, func(c *Config) { c.Attempts = 2 })
	seldom := func(rng *rand.Rand, conversation []env.Message, tools []env.Tool) env.Message {
		if rng.IntN(20) > 0 {
			return env.Assistant("I do not know.")
		}
		return random(rng, conversation, tools)
	}
	envtest.Run(t, p, seldom)
}

func TestTable(t *testing.T) {
	p := open(t, func(*Config) {})
	envtest.Row(t, "../../README.md", "`python`", p, p.Info().Eval, reference(p), random)
}

// The solutions pass all tests; constants and copies do not.
func TestPlayers(t *testing.T) {
	p := open(t, func(c *Config) { c.Attempts = 1 })
	for _, split := range []env.Split{env.Train, env.Eval} {
		got, err := envtest.Mean(t.Context(), p, split, p.Info().Tasks(split), reference(p))
		if err != nil || math.Abs(got-1.2) > 1e-9 {
			t.Errorf("%s: the reference player has %v, %v; want 1.2", split, got, err)
		}
	}
	split := env.Eval
	baselines := p.Baselines(split)
	copyist := func(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
		name, _, _ := strings.Cut(strings.TrimPrefix(conversation[1].Content, "Write a function "), "(")
		return env.Assistant("def " + name + "(first, *rest):\n    return first\n")
	}
	got, err := envtest.Mean(t.Context(), p, split, p.Info().Tasks(split), copyist)
	if err != nil || math.Abs(got-baselines["copy"]) > 1e-9 {
		t.Errorf("%s: returning the first argument has %v, %v; baseline %v", split, got, err, baselines["copy"])
	}
	if baselines["blind"] <= 0 || baselines["blind"] > 0.15 || baselines["copy"] > 0.15 {
		t.Errorf("%s: %v", split, baselines)
	}
	got, err = envtest.Mean(t.Context(), p, env.Eval, p.Info().Eval, random)
	if err != nil || got > 0.15 {
		t.Errorf("the random player has %v, %v", got, err)
	}
}

const adding = `{"prompt":"Add.","function":"add","tests":[{"args":[1,2],"want":3},{"args":[0.1,0.2],"want":0.3},{"args":["a","b"],"want":"ab"}]}`

func TestAttempts(t *testing.T) {
	p := open(t, func(*Config) {})
	for _, test := range []struct {
		replies []string
		said    []string
		tests   float64
		stop    string
	}{
		{[]string{"def add(a, b): return a + b"}, nil, 1, "solved"},
		{
			[]string{"no idea", "```python\nprint('hm')\ndef add(a, b): return a * b\n```", "first ```\nx\n``` then ```py\ndef add(a, b): return a+b\n```"},
			[]string{"There is no function add", "0 of 3 tests pass. add(1,2) returned 2\nPrinted: hm"}, 1, "solved",
		},
		{
			[]string{"def add(a, b): return a - b", "def add(a, b): return int(a) + int(b)", "def add(a, b): raise KeyError"},
			[]string{"0 of 3 tests pass. add(1,2) returned -1", "1 of 3 tests pass. add(0.1,0.2) returned 0"}, 0, "failed",
		},
		{[]string{"def add(a): pass", "def add: x", "def add(a, b): return abs(a + b)"}, []string{"failed: TypeError", "failed: SyntaxError"}, 2. / 3, "failed"},
	} {
		turn := 0
		r, err := envtest.Play(t.Context(), p, json.RawMessage(adding), 0, func(*rand.Rand, []env.Message, []env.Tool) env.Message {
			turn++
			return env.Assistant(test.replies[turn-1])
		})
		if err != nil || turn != len(test.replies) {
			t.Fatalf("%q: %d turns, %v", test.replies, turn, err)
		}
		for i, want := range test.said {
			if got := r.Messages[2+2*i+1].Content; !strings.Contains(got, want) {
				t.Errorf("after %q it says %q, want %q", test.replies[i], got, want)
			}
		}
		if got := *r.Score.Rewards["tests"].Value; math.Abs(got-test.tests) > 1e-9 || r.Score.Stop != test.stop {
			t.Errorf("%q: %v, %s; want %v, %s", test.replies, got, r.Score.Stop, test.tests, test.stop)
		}
	}
}

// A loop costs the attempt, not the rollout.
func TestTimeoutIsScored(t *testing.T) {
	p := open(t, func(c *Config) { c.TimeoutS, c.Attempts = 0.5, 1 })
	r, err := envtest.Play(t.Context(), p, json.RawMessage(adding), 0, envtest.OneOf("def add(a, b):\n    while a == 0.1: pass\n    return a + b"))
	if err != nil || r.Score.Metrics["timeouts"] != 1 || math.Abs(*r.Score.Rewards["tests"].Value-1./3) > 1e-9 {
		t.Errorf("%+v, %v", r.Score, err)
	}
}

func TestEqual(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{"1", "1", true}, {"1", "2", false}, {"1", "1.0", true}, {"1", "true", false}, {"0.1", "0.10000000000000001", true}, {"0.1", "0.2", false},
		{"100000000000000000001", "100000000000000000000", false}, {`"1"`, "1", false}, {"[1,[2]]", "[1, [2.0]]", true}, {"[1]", "[1,1]", false},
		{`{"a":1,"b":null}`, `{"b":null,"a":1}`, true}, {`{"a":1}`, `{"a":1,"b":1}`, false}, {`{"a":1}`, `{"b":1}`, false}, {"null", "null", true},
		{"null", "0", false}, {"[]", "{}", false}, {"1", "[1]", false}, {"x", "x", false}, {"1e-12", "0", true}, {"1000000000.0", "1000000000.1", true},
	} {
		if got := equal(json.RawMessage(test.a), json.RawMessage(test.b)); got != test.want {
			t.Errorf("%s and %s: %v", test.a, test.b, got)
		}
	}
}

func TestCodeIn(t *testing.T) {
	for reply, want := range map[string]string{
		"x = 1":                      "x = 1",
		"a ```python\nx = 1\n``` b":  "x = 1\n",
		"```\na\n```\n```py\nb\n```": "b\n",
		"```python\ncut":             "cut",
		"```ruby\nx\n```":            "```ruby\nx\n```",
	} {
		if got := codeIn(reply); got != want {
			t.Errorf("%q: %q, want %q", reply, got, want)
		}
	}
}

func TestFile(t *testing.T) {
	need.Python3(t)
	const good = `{"prompt":"Add.","function":"add","tests":[{"args":[],"want":null}]}`
	for _, test := range []struct{ text, want string }{
		{good + "\n{", ":2: not a task"},
		{`{"function":"f","tests":[{"args":[],"want":1}]}`, ":1: no field \"prompt\""},
		{`{"prompt":"?","function":"f()","tests":[{"args":[],"want":1}]}`, `"function" is "f()"`},
		{`{"prompt":"?","function":"f","tests":[]}`, "no test"},
		{"\n" + `{"prompt":"?","function":"f","tests":[{"args":[1]}]}`, ":2: test 1"},
		{good + "\n" + good, ":2: the prompt of line 1"},
		{`{"prompt":"` + strings.Repeat("x", env.LongestLine) + `"}`, ":1: longer"},
		{good, "eval_percent"},
		{"", "eval_percent"},
	} {
		cfg := Defaults()
		cfg.File = filepath.Join(t.TempDir(), "tasks.jsonl")
		if err := os.WriteFile(cfg.File, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.100q: %v, want %q", test.text, err, test.want)
		}
	}
}

func TestValidate(t *testing.T) {
	for option, change := range map[string]func(*Config){
		"file":         func(c *Config) { c.File = "nowhere.jsonl" },
		"python":       func(c *Config) { c.Python = "" },
		"not there":    func(c *Config) { c.Python = "no-such-python" },
		"attempts":     func(c *Config) { c.Attempts = 0 },
		"isolation":    func(c *Config) { c.Isolation = "none" },
		"timeout_s":    func(c *Config) { c.TimeoutS = math.NaN() },
		"memory_mb":    func(c *Config) { c.MemoryMB = 10 },
		"file_mb":      func(c *Config) { c.FileMB = 0 },
		"processes":    func(c *Config) { c.Processes = 0 },
		"output_kb":    func(c *Config) { c.OutputKB = -1 },
		"parallel":     func(c *Config) { c.Parallel = -1 },
		"eval_percent": func(c *Config) { c.EvalPercent = 51 },
		"prompt":       func(c *Config) { c.Prompt = "" },
		"weights":      func(c *Config) { c.Weights.Tests = -1 },
	} {
		cfg := Defaults()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("wrong %s: %v", option, err)
		}
	}
}

func TestDemonstration(t *testing.T) {
	p := open(t, func(*Config) {})
	data, err := p.Task(env.Eval, 0)
	if err != nil {
		t.Fatal(err)
	}
	text, err := p.Demonstrate(data, 0)
	if err != nil {
		t.Fatal(err)
	}
	r, err := envtest.Play(t.Context(), p, data, 0, envtest.OneOf(text))
	if err != nil || r.Score.Stop != "solved" {
		t.Errorf("%+v %v", r.Score, err)
	}
	if _, err := p.Demonstrate([]byte(adding), 0); err == nil {
		t.Error("a task without a solution is demonstrated")
	}
}
