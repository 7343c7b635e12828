package export

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/inference/render"
)

// TestSelection leaves each rollout out for the one reason that it has.
func TestSelection(t *testing.T) {
	w := newWorld(t)
	change := func(p play, f func(p *play)) play { f(&p); return p }
	version := int64(9)
	plays := []play{
		0: w.play(0, 1, "good"),
		1: w.play(1, 0.5, "middling"),
		2: change(w.play(2, 1, "of an eval"), func(p *play) {
			p.trace.Eval, p.trace.Split, p.fate.Fate = "held-out", schemas.SplitEval, schemas.FateEvaluated
		}),
		3: change(w.play(3, 1, "of another env"), func(p *play) { p.trace.Env = "wordle" }),
		4: change(w.play(4, 1, "failed"), func(p *play) {
			p.trace.Errors, p.trace.Reward, p.trace.StopReason = []schemas.TraceError{{Type: "model", Message: "x"}}, nil, ""
			p.fate.Fate, p.fate.Error, p.fate.Reward = schemas.FateErrored, "model: x", nil
		}),
		5: change(w.play(5, 1, "filtered"), func(p *play) { p.fate.Fate = schemas.FateFiltered }),
		6: change(w.play(6, 1, "late"), func(p *play) {
			p.trace.PolicyStart, p.trace.PolicyEnd, p.fate.PolicyStart = &version, &version, &version
		}),
		7: change(w.play(7, 1, "truncated"), func(p *play) { p.trace.Truncated, p.fate.Truncated = true, true }),
		8: change(w.play(8, 1, "nothing"), func(p *play) { p.trace.Nodes = p.trace.Nodes[:2] }),
		9: change(w.play(9, 1, "with an image"), func(p *play) {
			p.trace.Nodes[1].Images = []schemas.Image{{Mime: "image/png", Data: []byte("x"), SHA256: hexOf(sha256.Sum256([]byte("x")))}}
		}),
		10: w.play(10, 1, strings.Repeat("long ", 40)),
		11: change(w.play(11, 1, "no reward"), func(p *play) { p.trace.Reward, p.fate.Reward = nil, nil }),
		12: w.play(12, 0.25, "bad"),
		13: change(w.play(13, 1, "good"), func(p *play) { p.trace.Nodes, p.trace.TaskIndex = w.play(0, 1, "good").trace.Nodes, 99 }),
		14: change(w.play(14, 0.75, "the task of 0, worse"), func(p *play) { p.trace.TaskIndex = 0 }),
	}
	w.run(plays...)
	w.emit("traces", w.play(15, 1, "undecided").trace)
	again := w.play(0, 1, "an attempt that does not count").trace
	again.Attempt = 1
	w.emit("traces", again)
	w.emit("traces", plays[1].trace) // as after a crash
	w.sink()

	out, s := w.export(func(c *Config) {
		c.Envs, c.ToVersion, c.MaxTokens, c.MinReward, c.Best = []string{"catch"}, 5, 100, new(0.5), 1
	})
	want := map[string]int64{
		whyEnv: 1, whyErrored: 2, whyFate: 1, whyVersion: 1, whyTruncated: 1, whyNotSaid: 1, whyImages: 1, whyTokens: 1,
		whyNoReward: 1, whyReward: 1, whySame: 1, whyNotBest: 1, whyUndecided: 1,
	}
	if fmt.Sprint(s.Left) != fmt.Sprint(want) {
		t.Errorf("left out %v, want %v", s.Left, want)
	}
	if got := groups(w.rows(filepath.Join(out, "train.jsonl"))); fmt.Sprint(got) != "[0 1]" {
		t.Errorf("taken: groups %v, want 0 and 1", got)
	}
	for name, c := range map[string]struct {
		set  func(*Config)
		want string
	}{
		"all":       {nil, "[0 1 3 6 10 11 12 14]"},
		"any fate":  {func(c *Config) { c.Fate = AnyFate }, "[0 1 3 5 6 10 11 12 14]"},
		"evals":     {func(c *Config) { c.Evals, c.Envs = true, []string{"catch"} }, "[0 1 2 6 10 11 12 14]"},
		"truncated": {func(c *Config) { c.Truncated, c.FromVersion, c.ToVersion = true, 1, 3 }, "[0 1 3 7 10 11 12 14]"},
		"late":      {func(c *Config) { c.FromVersion = 3 }, "[6]"},
		"best":      {func(c *Config) { c.Best, c.Envs = 1, []string{"catch"} }, "[]"},
	} {
		if name == "best" {
			c.want = "[0 1 6 10 12]"
		}
		out, s := w.export(c.set)
		if got := fmt.Sprint(groups(w.rows(filepath.Join(out, "train.parquet")))); got != c.want {
			t.Errorf("%s: groups %s, want %s (%v)", name, got, c.want, s.Left)
		}
	}
}

// toolsTold are those that the environment tools has announced.
var toolsTold = []render.Tool{{Name: "Guess", Description: "guesses <b>", Parameters: json.RawMessage(`{"type":"object","properties":{"word":{"type":"string"}}}`)}}

// TestConversations writes what was said, in both formats alike, with the tools beside it, and says where it is from.
func TestConversations(t *testing.T) {
	w := newWorld(t)
	p := w.play(0, 1, "one", "go on", "two", "never seen")
	tools := w.play(1, 0.5, "<call>")
	tools.trace.Env, tools.trace.Nodes = "tools", w.talk(toolsTold, "use one", "I guess.", "answer", "done")
	tools.trace.Nodes[2].ToolCalls = []schemas.ToolCall{{ID: "a", Name: "Guess", Arguments: `{"word": "x"}`}}
	tools.trace.Nodes[2].Reasoning = "hm"
	tools.trace.Nodes[3].Role, tools.trace.Nodes[3].ToolCallID = "tool", "a"
	two := w.play(2, 0, "mine")
	ours := 0.75
	two.trace.Nodes = append(two.trace.Nodes, two.trace.Nodes[2])
	two.trace.Nodes[2].Agent, two.trace.Nodes[3].Agent, two.trace.Nodes[3].Content, two.trace.Nodes[3].Reward = "first", "second", "other", &ours
	two.trace.Nodes[3].Parent = 1
	w.run(p, tools, two)
	w.sink()
	out, s := w.export(nil)
	rows := w.rows(filepath.Join(out, "train.jsonl"))
	if other := w.rows(filepath.Join(out, "train.parquet")); fmt.Sprint(jsonOf(t, rows)) != fmt.Sprint(jsonOf(t, other)) {
		t.Errorf("the two formats differ:\n%s\n%s", jsonOf(t, rows), jsonOf(t, other))
	}
	slices.SortStableFunc(rows, func(a, b Row) int { return int(a.Provenance.GroupID - b.Provenance.GroupID) })
	for i, want := range []string{
		`{"messages":[{"role":"system","content":"Play.","reasoning_content":null,"tool_calls":null,"tool_call_id":null,"name":null},` +
			`{"role":"user","content":"question 0","reasoning_content":null,"tool_calls":null,"tool_call_id":null,"name":null},` +
			`{"role":"assistant","content":"one","reasoning_content":null,"tool_calls":null,"tool_call_id":null,"name":null},` +
			`{"role":"user","content":"go on","reasoning_content":null,"tool_calls":null,"tool_call_id":null,"name":null},` +
			`{"role":"assistant","content":"two","reasoning_content":null,"tool_calls":null,"tool_call_id":null,"name":null}],"tools":null,` +
			`"provenance":{"run":"demo","env":"catch","env_version":"1","eval":"","split":"train","task_index":0,"group_id":0,"rollout_index":0,"attempt":0,"branch":0,` +
			`"agent":"","fate":"packed","step":3,"reward":1,"policy_start":2,"policy_end":2,"policy":"","truncated":false,"tokens":` + fmt.Sprint(rows[0].Provenance.Tokens) + `,"token_exact":true,`,
		`{"messages":[{"role":"system","content":"Play.","reasoning_content":null,"tool_calls":null,"tool_call_id":null,"name":null},` +
			`{"role":"user","content":"use one","reasoning_content":null,"tool_calls":null,"tool_call_id":null,"name":null},` +
			`{"role":"assistant","content":"I guess.","reasoning_content":"hm","tool_calls":[{"id":"a","type":"function","function":{"name":"Guess","arguments":"{\"word\": \"x\"}"}}],"tool_call_id":null,"name":null},` +
			`{"role":"tool","content":"answer","reasoning_content":null,"tool_calls":null,"tool_call_id":"a","name":"Guess"},` +
			`{"role":"assistant","content":"done","reasoning_content":null,"tool_calls":null,"tool_call_id":null,"name":null}],` +
			`"tools":"[{\"type\":\"function\",\"function\":{\"name\":\"Guess\",\"description\":\"guesses \\u003cb\\u003e\",\"parameters\":{\"type\":\"object\",\"properties\":{\"word\":{\"type\":\"string\"}}}}}]","provenance":{`,
	} {
		if got := jsonOf(t, rows[i]); !strings.HasPrefix(got, want) {
			t.Errorf("row %d is\n%s\nwant\n%s", i, got, want)
		}
	}
	var agents []string
	for _, r := range rows[2:] {
		agents = append(agents, fmt.Sprint(r.Provenance.Branch, r.Provenance.Agent, *r.Provenance.Reward, r.Messages[len(r.Messages)-1].Content))
	}
	if fmt.Sprint(agents) != "[0first0mine 1second0.75other]" {
		t.Errorf("of two agents: %v", agents)
	}
	if s.Exact != 2 || s.Inexact != 2 { // what was called is text in this format, and the second agent's tokens are another's
		t.Errorf("%d are rendered to the recorded tokens and %d are not, want 2 and 2", s.Exact, s.Inexact)
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestToolsStay keeps what is told of tools in the text where it is not what the format says.
func TestToolsStay(t *testing.T) {
	w := newWorld(t)
	p := w.play(0, 1, "x")
	p.trace.Env = "tools"
	p.trace.Nodes[0].Content = "# Tools: ask for them" // other tools than the environment has announced
	other := w.play(1, 1, "x")
	other.trace.Env, other.trace.Nodes = "tools", w.talk(toolsTold, "q", "x")
	other.trace.Nodes[0].TokenIDs = schemas.PackInt32s(append(other.trace.Nodes[0].TokenIDs.Values()[1:], 5)) // the same text in other tokens
	w.run(p, other)
	w.sink()
	out, _ := w.export(nil)
	for _, row := range w.rows(filepath.Join(out, "train.jsonl")) {
		if of := []play{p, other}[row.Provenance.GroupID]; row.Tools != nil || row.Messages[0].Content != of.trace.Nodes[0].Content {
			t.Errorf("%s", jsonOf(t, row))
		}
	}
}

// TestInvariant_OneSplit puts no task into both splits, and gives the same export twice, byte for byte.
func TestInvariant_OneSplit(t *testing.T) {
	w := newWorld(t)
	var plays []play
	for i := range int64(60) {
		p := w.play(i, 1, fmt.Sprint("answer ", i))
		p.trace.TaskIndex = i % 20
		plays = append(plays, p)
	}
	w.run(plays...)
	w.sink()
	split := func(c *Config) { c.TestShare, c.Seed = 0.3, 7 }
	out, s := w.export(split)
	tasks := map[int64]string{}
	for _, name := range []string{splitTrain, splitTest} {
		for _, r := range w.rows(filepath.Join(out, name+".jsonl")) {
			if was := tasks[r.Provenance.TaskIndex]; was != "" && was != name {
				t.Errorf("task %d is in both splits", r.Provenance.TaskIndex)
			}
			tasks[r.Provenance.TaskIndex] = name
		}
	}
	if s.Train+s.Test != 60 || s.Test < 9 || s.Test > 30 {
		t.Errorf("%d to train, %d to test", s.Train, s.Test)
	}
	again, _ := w.export(split)
	for _, name := range []string{"train.jsonl", "train.parquet", "test.jsonl", "test.parquet", "README.md", manifest} {
		a, err := os.ReadFile(filepath.Join(out, name))
		b, err2 := os.ReadFile(filepath.Join(again, name))
		if err != nil || err2 != nil || string(a) != string(b) {
			t.Errorf("%s is another one the second time (%v, %v)", name, err, err2)
		}
	}
}

// TestFolder refuses a folder that is there, replaces an export only, and leaves nothing where it fails.
func TestFolder(t *testing.T) {
	w := newWorld(t)
	w.run(w.play(0, 1, "x"))
	w.sink()
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	try := func(change func(*Config)) error {
		cfg := DefaultConfig()
		cfg.Out = out
		if change != nil {
			change(&cfg)
		}
		e, err := New(w.rt, cfg, "", w.parquet, "")
		if err == nil {
			_, err = e.Files(t.Context())
		}
		return err
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, force := range []bool{false, true} {
		if err := try(func(c *Config) { c.Force = force }); err == nil || !strings.Contains(err.Error(), "--out") {
			t.Errorf("force %v, a folder that is no export: %v", force, err)
		}
	}
	if err := os.Remove(out); err != nil {
		t.Fatal(err)
	}
	if err := try(nil); err != nil {
		t.Fatal(err)
	}
	if err := try(nil); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("an export that is there: %v", err)
	}
	lock, err := lockFolder(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := try(func(c *Config) { c.Force = true }); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("an export that grows was replaced: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if err := try(func(c *Config) { c.Force = true }); err != nil {
		t.Errorf("replaced: %v", err)
	}
	parquet := w.parquet
	w.parquet = t.TempDir()
	if err := try(func(c *Config) { c.Force = true }); err == nil {
		t.Error("without files there is an export")
	}
	w.parquet = parquet
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("beside the export there are %v (%v)", entries, err)
	}
	if len(w.rows(filepath.Join(out, "train.jsonl"))) != 1 {
		t.Error("the export is not the one that was made last")
	}
}

// TestDatasets loads an export with Hugging Face's datasets and with pyarrow: both formats, the splits, the columns of the card.
func TestDatasets(t *testing.T) {
	w := newWorld(t)
	var plays []play
	for i := range int64(30) {
		plays = append(plays, w.play(i, 1, fmt.Sprint("answer ", i)))
	}
	plays[29].trace.Nodes[2].ToolCalls = []schemas.ToolCall{{ID: "a", Name: "Guess", Arguments: `{"word": "x"}`}} // in the last row only
	w.run(plays...)
	w.sink()
	out, s := w.export(func(c *Config) { c.TestShare = 0.2 })
	lines, _ := w.export(func(c *Config) { c.TestShare, c.Formats = 0.2, []string{JSONL} })
	var got struct {
		Splits  map[string]map[string]int64
		Rows    map[string][]Row
		Arrow   int64
		Columns []string
	}
	script(t, `
import json, sys
import pyarrow.parquet as pq
from datasets import load_dataset
out = {"Splits": {}, "Rows": {}}
for config, d in [("both", load_dataset(sys.argv[1])), ("jsonl", load_dataset(sys.argv[2]))]:
    out["Splits"][config] = {k: len(v) for k, v in d.items()}
    out["Rows"][config] = [r for r in d["train"]]
t = pq.read_table(sys.argv[1] + "/train.parquet")
out["Arrow"], out["Columns"] = t.num_rows, t.column_names
json.dump(out, sys.stdout)
`, &got, out, lines)
	want := map[string]int64{"train": s.Train, "test": s.Test}
	for _, config := range []string{"both", "jsonl"} {
		if fmt.Sprint(got.Splits[config]) != fmt.Sprint(want) {
			t.Errorf("%s: splits %v, want %v", config, got.Splits[config], want)
		}
		if is, want := jsonOf(t, got.Rows[config]), jsonOf(t, w.rows(filepath.Join(out, "train.jsonl"))); is != want {
			t.Errorf("%s: datasets reads\n%.2000s\nwant\n%.2000s", config, is, want)
		}
	}
	if got.Arrow != s.Train || fmt.Sprint(got.Columns) != "[messages tools provenance]" {
		t.Errorf("pyarrow reads %d rows of %v", got.Arrow, got.Columns)
	}
}
