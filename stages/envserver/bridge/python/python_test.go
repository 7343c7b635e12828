package python

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/env/envtest"
)

// open makes an environment of a class in testdata; it ends with the test.
func open(t *testing.T, target string, change func(*Config)) *Python {
	t.Helper()
	e, err := tryOpen(t, target, change)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func tryOpen(t *testing.T, target string, change func(*Config)) (*Python, error) {
	t.Helper()
	need.Python3(t)
	cfg := Defaults()
	cfg.Path, cfg.Processes, cfg.TimeoutS = "testdata", 1, 60
	if change != nil {
		change(&cfg)
	}
	e, err := New("mine", target, t.TempDir(), cfg)
	if err == nil {
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return e, err
}

// opener sets wheels of the lock at random, then tries to open the box.
func opener(rng *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
	calls := []env.ToolCall{
		{Name: "turn", Arguments: `{"wheel": 2, "digit": 7}`}, {Name: "turn", Arguments: `{"wheel": 0, "digit": 12, "note": "?"}`},
		{Name: "look", Arguments: `{}`}, {Name: "look", Arguments: `{"side": "right"}`}, {Name: "open", Arguments: `{}`},
	}
	return env.Message{Role: env.RoleAssistant, ToolCalls: calls[rng.IntN(len(calls)-1):]}
}

func TestEnvironment(t *testing.T) {
	envtest.Run(t, open(t, "lockbox:Lockbox", nil), opener)
}

// The example is the whole of what an author writes: its tools are described as the model is to see them.
func TestTools(t *testing.T) {
	e := open(t, "lockbox:Lockbox", nil)
	var told []string
	for _, tool := range e.tools {
		told = append(told, tool.Name+" "+tool.Description+" "+string(tool.Schema))
	}
	want := []string{
		`look Look at a side of the box. {"type": "object", "properties": {"side": {"enum": ["left", "right"]}}, "required": [], "additionalProperties": false}`,
		`open Try to open the box. There are two tries. {"type": "object", "properties": {}, "required": [], "additionalProperties": false}`,
		`turn Set a wheel of the lock. {"type": "object", "properties": {"wheel": {"enum": [0, 1, 2], "description": "which one, from the left"}, ` +
			`"digit": {"type": "integer", "description": "0 to 9"}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "a word to yourself"}}, ` +
			`"required": ["wheel", "digit"], "additionalProperties": false}`,
	}
	if got := strings.Join(told, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("tools\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// The README shows the very file that is tested here.
func TestREADME(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	class, err := os.ReadFile("testdata/lockbox.py")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```python\n"+string(class)+"```\n") {
		t.Error("the example is another one")
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		if option := field.Tag.Get("toml"); !strings.Contains(string(readme), "`"+option+"`") {
			t.Errorf("no word of the option %s", option)
		}
	}
}

// begin starts an episode of a task.
func begin(t *testing.T, e env.Environment, task string) *env.Session {
	t.Helper()
	s, err := env.Begin(t.Context(), e, json.RawMessage(task), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// call calls a tool and returns its answer.
func call(t *testing.T, s *env.Session, tool, args string) (string, error) {
	t.Helper()
	turn, err := s.Reply(t.Context(), env.Message{Role: env.RoleAssistant, ToolCalls: []env.ToolCall{{ID: "c", Name: tool, Arguments: args}}})
	if err != nil {
		return "", err
	}
	if len(turn.Messages) != 1 || turn.Messages[0].ToolCallID != "c" {
		t.Fatalf("%s: answered %+v", tool, turn)
	}
	return turn.Messages[0].Content, nil
}

func TestPrompt(t *testing.T) {
	e := open(t, "lockbox:Lockbox", nil)
	for task, want := range map[string]string{
		`{"code":[1,2,3]}`:                "user: It smells of ",
		`{"code":[1,2,3],"prompt":"Go."}`: "user:Go. It smells of ",
		`{"code":[1,2,3],"prompt":[{"role":"system","content":"S"},{"role":"user","content":"Go."}]}`: "system:S|user:Go. It smells of ",
	} {
		var said []string
		for _, m := range begin(t, e, task).Prompt() {
			said = append(said, string(m.Role)+":"+m.Content)
		}
		if got := strings.Join(said, "|"); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", task, got, want)
		}
	}
	for task, want := range map[string]string{
		`[]`: "object", `{}`: "code", `{"code":[],"prompt":7}`: `"prompt"`, `{"code":[],"prompt":[]}`: `"prompt"`,
		`{"code":[1],"prompt":[{"role":"system","content":"S"}]}`: "not user", `{"code":[1],"prompt":[{"role":"oracle","content":"S"}]}`: "oracle",
	} {
		if _, err := env.Begin(t.Context(), e, json.RawMessage(task), 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", task, err, want)
		}
	}
	if _, err := env.Begin(t.Context(), open(t, "faulty:Faulty", nil), json.RawMessage(`{"start":"silent"}`), 1); err == nil || !strings.Contains(err.Error(), "returned nothing") {
		t.Errorf("an episode without a prompt: %v", err)
	}
}

// Calls that are wrong are answered, and never run: the box stays as it was.
func TestInvariant_WrongCallsAreAnswered(t *testing.T) {
	e := open(t, "lockbox:Lockbox", nil)
	s := begin(t, e, `{"code":[1,2,3]}`)
	for _, wrong := range []struct{ tool, args, want string }{
		{"peek", `{}`, "there is no tool"},
		{"reset", `{"code":[0,0,0]}`, "there is no tool"},
		{"get_reward", `{}`, "there is no tool"},
		{"__init__", `{}`, "there is no tool"},
		{"turn", `{"wheel": 1}`, "digit"},
		{"turn", `{"wheel": 3, "digit": 2}`, "enum"},
		{"turn", `{"wheel": 1, "digit": "2"}`, "integer"},
		{"turn", `{"wheel": 1, "digit": 2.5}`, "integer"},
		{"turn", `{"wheel": 1, "digit": true}`, "integer"},
		{"turn", `{"wheel": 1, "digit": 2, "digit": 3}`, "twice"},
		{"turn", `{"wheel": 1, "digit": 2, "force": 3}`, "force"},
		{"turn", `{"wheel": 1, "digit": 2, "note": [` + strings.Repeat("[", 5000) + strings.Repeat("]", 5001) + `}`, "nested more than"},
		{"turn", `wheel`, "not JSON"},
		{"look", `{"side": "top"}`, "enum"},
	} {
		if got, err := call(t, s, wrong.tool, wrong.args); err != nil || !strings.HasPrefix(got, "error: ") || !strings.Contains(got, wrong.want) {
			t.Errorf("%s%.60s: %.200q, %v; want an error with %q", wrong.tool, wrong.args, got, err, wrong.want)
		}
	}
	if got, err := call(t, s, "turn", `{"wheel": 2.0, "digit": 3.0, "note": null}`); err != nil || got != "right" {
		t.Errorf("a call that is right: %q, %v", got, err)
	}
	if score, err := s.Score(t.Context()); err != nil || *score.Rewards.Total() != 1./3 || score.Metrics["calls"] != 1 {
		t.Errorf("score %+v, %v", score, err)
	}
}

// What a tool raises is told to the policy, and the episode goes on.
func TestExceptionInATool(t *testing.T) {
	e := open(t, "faulty:Faulty", nil)
	s := begin(t, e, `{}`)
	if got, err := call(t, s, "raises", `{}`); err != nil || got != `error: 'no such key'` {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := call(t, s, "noop", `{"word": "\ud800 ünï"}`); err != nil || got != "ok \uFFFD ünï" {
		t.Errorf("and then: %q, %v", got, err)
	}
	if score, err := s.Score(t.Context()); err != nil || *score.Rewards.Total() != 0.25 || score.Metrics["tool_errors"] != 1 {
		t.Errorf("score %+v, %v", score, err)
	}
	if log := logOf(t, e); !strings.Contains(log, "in raises") {
		t.Errorf("the log has no traceback: %s", log)
	}
}

func logOf(t *testing.T, e *Python) string {
	t.Helper()
	text, err := os.ReadFile(e.log.Path())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestRewards(t *testing.T) {
	e := open(t, "faulty:Faulty", func(c *Config) { c.Weights = map[string]float64{"c": 2} })
	s := begin(t, e, `{}`)
	turn, err := s.Reply(t.Context(), env.Message{ToolCalls: []env.ToolCall{{Name: "parts", Arguments: `{}`}, {Name: "noop", Arguments: `{}`}}})
	if err != nil || !turn.Done || len(turn.Messages) != 1 {
		t.Errorf("done after the first call: %+v, %v", turn, err)
	}
	score, err := s.Score(t.Context())
	if b, there := score.Rewards["b"]; err != nil || *score.Rewards.Total() != 2 || b.Value != nil || !there {
		t.Errorf("components %+v, %v", score.Rewards, err)
	}
	s = begin(t, e, `{}`)
	_, _ = call(t, s, "nothing", `{}`)
	if score, err := s.Score(t.Context()); err != nil || score.Rewards.Total() != nil {
		t.Errorf("None: %+v, %v", score.Rewards, err)
	}
	s = begin(t, e, `{}`)
	_, _ = call(t, s, "nan", `{}`)
	if _, err := s.Score(t.Context()); err == nil || !strings.Contains(err.Error(), "nan") {
		t.Errorf("NaN: %v", err)
	}
}

func TestTasks(t *testing.T) {
	e := open(t, "faulty:Dealt", nil)
	if i := e.Info(); i.Train != 2 || i.Eval != 1 || !i.Disjoint {
		t.Errorf("dealt by the class: %+v", i)
	}
	if got, err := call(t, begin(t, e, `{"n":5,"of_a_later_version":1}`), "tell", `{}`); err != nil || got != "1" {
		t.Errorf("the seed is %q, %v", got, err)
	}
	e = open(t, "faulty:Faulty", func(c *Config) { c.Tasks = 40 })
	if task, err := e.Task(env.Train, 0); err != nil || e.Info().Train+e.Info().Eval != 40 || !strings.HasPrefix(string(task), `{"seed":`) {
		t.Errorf("numbers: %s, %+v, %v", task, e.Info(), err)
	}
	file := filepath.Join(t.TempDir(), "tasks.jsonl")
	write := func(text string) func(c *Config) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return func(c *Config) { c.File = file }
	}
	e = open(t, "faulty:Faulty", write("{\"who\": \"a\"}\n\n{\"who\": \"b\"}\n{\"who\": \"c\"}\n{\"who\": \"d\"}\n{\"who\": \"e\"}\n{\"who\": \"f\"}\n"))
	if i := e.Info(); i.Train+i.Eval != 6 || !i.Disjoint {
		t.Errorf("a file: %+v", i)
	}
	if _, err := tryOpen(t, "faulty:Faulty", write("{}\n[1]\n")); err == nil || !strings.Contains(err.Error(), ":2:") {
		t.Errorf("a line that is no object: %v", err)
	}
}

// Classes that do not follow the convention are refused at the start, with what to change.
func TestRefused(t *testing.T) {
	for target, want := range map[string]string{
		"faulty":              "python:<module>:<class>",
		"absent:Faulty":       "No module named 'absent'",
		"faulty:Absent":       "Absent",
		"faulty:os":           "no class",
		"lockbox:Side":        "no method reset",
		"faulty:Vague":        "Vague.tool says no type of its argument a",
		"faulty:Starred":      "Starred.tool takes **words",
		"faulty:Undocumented": "Undocumented.tool has no docstring",
		"faulty:Toolless":     "has no tools",
	} {
		if _, err := tryOpen(t, target, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", target, err, want)
		}
	}
	cfg := Defaults()
	cfg.Turns, cfg.Episodes, cfg.TimeoutS, cfg.Python = 0, 0, 0, ""
	for _, option := range []string{"turns", "episodes", "timeout_s", "python"} {
		if err := cfg.Validate(); !strings.Contains(err.Error(), option) {
			t.Errorf("%v, want %s", err, option)
		}
	}
}
