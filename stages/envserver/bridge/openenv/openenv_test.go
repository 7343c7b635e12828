package openenv

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/coder/websocket"

	"github.com/prl-project/prl/stages/envserver/env"
)

func TestValidate(t *testing.T) {
	if err := Defaults().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"tasks = 1":      func(c *Config) { c.Tasks = 1 },
		"eval_percent":   func(c *Config) { c.EvalPercent = 0 },
		"turns":          func(c *Config) { c.Turns = 0 },
		"sessions":       func(c *Config) { c.Sessions = 0 },
		"episodes":       func(c *Config) { c.Episodes = 0 },
		"reply_kb":       func(c *Config) { c.ReplyKB = 0 },
		"idle_s":         func(c *Config) { c.IdleS = 0 },
		"start_s":        func(c *Config) { c.StartS = -1 },
		"timeout_s":      func(c *Config) { c.TimeoutS = math.NaN() },
		"ping_s":         func(c *Config) { c.PingS = math.Inf(1) },
		`actions = "no"`: func(c *Config) { c.Actions = "no" },
		`reward = ""`:    func(c *Config) { c.Reward = "" },
		`raises = "me"`:  func(c *Config) { c.Raises = "me" },
		`field = "text"`: func(c *Config) { c.Field, c.Actions = "text", "tools" },
		"leave one out":  func(c *Config) { c.TokenEnv, c.TokenFile = "A", "b" },
	} {
		cfg := Defaults()
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}

// The README has all options.
func TestREADME(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		if option := field.Tag.Get("toml"); !strings.Contains(string(readme), "`"+option+"`") {
			t.Errorf("no word of the option %s", option)
		}
	}
}

func TestActions(t *testing.T) {
	const meta = `"metadata":{"type":"object"}`
	const text, number, list = `{"type":"string"}`, `{"type":"integer"}`, `{"type":"array","items":{"type":"string"}}`
	for _, test := range []struct{ properties, required, actions, field, want string }{
		{`"message":` + text, `["message"]`, "auto", "", "text message"},
		{`"message":` + text, `[]`, "auto", "", "text message"},
		{`"message":` + text + `,"mood":` + text + `,"n":` + number, `["message"]`, "auto", "", "text message"},
		{`"message":` + text + `,"mood":` + text, `[]`, "auto", "", "step"},
		{`"message":` + text + `,"mood":` + text, `[]`, "auto", "mood", "text mood"},
		{`"message":` + text + `,"mood":` + text, `[]`, "text", "", "message, mood"},
		{`"message":` + text + `,"n":` + number, `["message","n"]`, "auto", "", "step"},
		{`"message":` + text + `,"n":` + number, `["n"]`, "auto", "", "step"},
		{`"move":{"type":"string","enum":["up","down"]}`, `["move"]`, "auto", "", "step"},
		{`"moves":` + list, `["moves"]`, "auto", "", "step"},
		{`"message":` + text, `["message"]`, "step", "", "step"},
		{`"message":` + text, `["message"]`, "tools", "", "tools by rpc"},
		{`"message":` + text, `["message"]`, "auto", "other", `field = "other"`},
		{`"type":{"const":"call_tool","type":"string"},"tool_name":` + text + `,"arguments":{"type":"object"}`, `["tool_name"]`, "auto", "", "tools as actions"},
		{`"type":{"default":"list_tools"}`, `[]`, "auto", "", "tools as actions"},
		{``, `[]`, "auto", "", "tools as actions"},
	} {
		cfg := Defaults()
		cfg.Actions, cfg.Field = test.actions, test.field
		schema := `{"type":"object","description":"d","properties":{` + strings.TrimPrefix(test.properties+","+meta, ",") + `},"required":` + test.required + `}`
		a, err := cfg.actions(json.RawMessage(schema))
		got := a.how
		switch {
		case err != nil:
			got = err.Error()
		case a.how == asText:
			got += " " + a.field
		case a.how == asTools && a.calls:
			got += " as actions"
		case a.how == asTools:
			got += " by rpc"
		}
		if got != test.want && (err == nil || !strings.Contains(got, test.want)) {
			t.Errorf("%+v: %s", test, got)
		}
		if a.how == asStep && err == nil && (a.step.Description != "d" || strings.Contains(string(a.step.Schema), "metadata")) {
			t.Errorf("the tool is %+v", a.step)
		}
	}
}

func TestObserve(t *testing.T) {
	for _, test := range []struct{ observation, show, want string }{
		{`{"text":"hello","metadata":{"a":1}}`, "", "hello"},
		{`{"text":"hello","empty":"","none":null,"list":[],"object":{},"done":false,"reward":1}`, "", "hello"},
		{`{"text":"a < b","n":0}`, "", `{"n":0,"text":"a < b"}`},
		{`{"board":[ [1, 2] ]}`, "", "[[1,2]]"},
		{`{}`, "", ""},
		{`{"text":"hello","board":[1, 2],"n":0}`, "text", "hello"},
		{`{"text":"hello","board":[1, 2],"n":0}`, "board text", "[1,2]\nhello"},
		{`{"text":"hello"}`, "text board", "hello"},
		{`{"text":"hello"}`, "board", "error: show"},
		{`{"metadata":{}}`, "board", ""},
		{`[]`, "", "error: "},
	} {
		cfg := Defaults()
		cfg.Show = strings.Fields(test.show)
		got, err := cfg.observe(json.RawMessage(test.observation))
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != test.want && (err == nil || !strings.HasPrefix(got, test.want)) {
			t.Errorf("%s, show %q: %s, want %s", test.observation, test.show, got, test.want)
		}
	}
}

func TestShown(t *testing.T) {
	for text, want := range map[string]string{
		`null`: "", `"plain"`: "plain", `7`: "7", `[1, 2]`: "[1,2]", `{"a": 1}`: `{"a":1}`,
		`{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"structured_content":{"result":1},"is_error":false}`: "a\nb",
		`{"content":[],"structured_content":{"result": 1}}`:                                                                      `{"result":1}`,
		`{"content":[],"structuredContent":null,"data":5}`:                                                                       "5",
		`{"content":[{"type":"audio","data":"AAAA","mimeType":"audio/wav"}]}`:                                                    "[audio]",
		`{"content":[{"type":"image","data":"aGk=","mimeType":"image/png"}]}`:                                                    "+image/png hi a picture",
		`{"content":[{"type":"text","text":"x"},{"type":"image","data":"aGk=","mime_type":"i"}]}`:                                "x+i hi a picture",
		`{"content":[{"type":"image","data":"aGk=","mime_type":"i","mimeType":"i"}]}`:                                            "+i hi a picture",
		`{"content":[{"type":"text","text":"wrong"}],"isError":true}`:                                                            "refused: wrong",
		`{"content":[{"type":"text","text":"wrong"}],"is_error":true}`:                                                           "refused: wrong",
	} {
		r, err := shown(json.RawMessage(text), "a picture")
		got := r.Text
		for _, i := range r.Images {
			got += "+" + i.MIME + " " + string(i.Data) + " " + i.Alt
		}
		if err != nil {
			got = "refused: " + err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// Rewards: of the last step that has one or of all, and none if none has.
func TestReward(t *testing.T) {
	for _, test := range []struct {
		replies string
		reward  string
		want    float64
	}{{"abc de", "last", 2}, {"abc de", "sum", 5}, {"abc", "last", 3}, {"", "last", math.NaN()}, {"", "sum", math.NaN()}} {
		synctest.Test(t, func(t *testing.T) {
			e := (&fake{}).open(t, func(c *Config) { c.Reward, c.State = test.reward, true })
			s := begin(t, e, `{}`)
			for _, text := range strings.Fields(test.replies) {
				if _, _, err := say(t, s, text); err != nil {
					t.Fatal(err)
				}
			}
			score, err := s.Score(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			total := score.Rewards.Total()
			if _, ok := score.Rewards["reward"]; !ok || (total == nil) != math.IsNaN(test.want) || total != nil && *total != test.want {
				t.Errorf("%+v: %+v", test, score.Rewards)
			}
			if m := score.Metrics; m["steps"] != float64(len(strings.Fields(test.replies))) || m["step_count"] != 3 || m["lucky"] != 1 || m["episode_id"] != 0 {
				t.Errorf("metrics %v", m)
			}
		})
	}
}

// An episode that is over from the start gets no step.
func TestInvariant_NoStepAfterDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, after := &fake{}, 0
		f.serve = func(_ int, c *websocket.Conn) {
			for {
				kind, _, err := receive(c)
				if err != nil || kind == "close" {
					return
				}
				if kind == "step" {
					after++
				}
				send(c, `{"type":"observation","data":{"observation":{"text":"You have won."},"done":true}}`)
			}
		}
		e := f.open(t, nil)
		if _, done, err := say(t, begin(t, e, `{}`), "x"); err != nil || !done {
			t.Errorf("done %v, %v", done, err)
		}
		step := f.open(t, func(c *Config) { c.Actions = "step" })
		s := begin(t, step, `{}`)
		calls := env.Message{Role: env.RoleAssistant, ToolCalls: []env.ToolCall{{Name: "step", Arguments: `{"message":"a"}`}, {Name: "step", Arguments: `{"message":"b"}`}}}
		if turn, err := s.Reply(t.Context(), calls); err != nil || !turn.Done || len(turn.Messages) != 1 {
			t.Errorf("%+v, %v", turn, err)
		}
		if after > 0 {
			t.Errorf("%d steps after done", after)
		}
	})
}

// Tasks are rows of a file: "prompt" is for the policy, the rest for reset, which gets the rollout's seed if the row has none.
func TestTasks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tasks.jsonl")
	var rows strings.Builder
	for _, name := range strings.Split("abcdefghijklmnop", "") {
		rows.WriteString(`{"prompt": "Say ` + name + `.", "word": "` + name + `"}` + "\n")
	}
	if err := os.WriteFile(file, []byte(rows.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		e := (&fake{}).open(t, func(c *Config) { c.File, c.System, c.Show = file, "Obey.", []string{"text", "seed"} })
		if i := e.Info(); i.Train+i.Eval != 16 || i.Eval == 0 || !i.Disjoint || i.Name != "mine" || i.MaxTurns != 32 {
			t.Errorf("info %+v", i)
		}
		task, err := e.Task(env.Train, 0)
		if err != nil || !strings.Contains(string(task), `"word":"`) {
			t.Errorf("task %s, %v", task, err)
		}
		for task, want := range map[string]string{
			`{"prompt":"Go.","seed":7}`: "system:Obey.|user:Go.\n\nhello\n7",
			`{"seed":7}`:                "system:Obey.|user:hello\n7",
			`{}`:                        "system:Obey.|user:hello\n1",
			`{"prompt":[{"role":"system","content":"S"},{"role":"user","content":"Go."}]}`: "system:Obey.|system:S|user:Go.\n\nhello\n1",
		} {
			var said []string
			for _, m := range begin(t, e, task).Prompt() {
				said = append(said, string(m.Role)+":"+m.Content)
			}
			if got := strings.Join(said, "|"); got != want {
				t.Errorf("%s: %q, want %q", task, got, want)
			}
		}
		for _, task := range []string{`[]`, `{"prompt":7}`} {
			if _, err := env.Begin(t.Context(), e, json.RawMessage(task), 1); err == nil || !strings.Contains(err.Error(), "task "+task) {
				t.Errorf("%s: error %v", task, err)
			}
		}
	})
	data, err := resetData(json.RawMessage(`{"prompt":"p","a":[1]}`), -1)
	if err != nil || data["prompt"] != nil || string(data["a"]) != "[1]" || string(data["seed"]) != "2147483647" || len(data["episode_id"]) < 20 {
		t.Errorf("reset gets %s, %v", data, err)
	}
}
