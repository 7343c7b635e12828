package verifiers

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prl-project/prl/stages/envserver/bridge/zmtp"
	"github.com/prl-project/prl/stages/envserver/env"
)

// fake is a server that answers as a function says, to one client at a time.
type fake struct {
	address string
	mu      sync.Mutex
	asked   []object
}

func newFake(t *testing.T, w *wire, answer func(server *zmtp.Conn, id []byte, asked object)) *fake {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	f := &fake{address: "ipc://" + path}
	go func() {
		for {
			rw, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				server, err := zmtp.Open(t.Context(), rw, zmtp.Router, 1<<20)
				if err != nil {
					return
				}
				defer server.Close()
				serve(server, w, func(id []byte, frames [][]byte) {
					asked, err := unpack(frames[len(frames)-1])
					if err != nil {
						return // another wire's
					}
					f.mu.Lock()
					f.asked = append(f.asked, asked.(object))
					f.mu.Unlock()
					answer(server, id, asked.(object))
				})
			}()
		}
	}()
	return f
}

// far opens an environment whose server is a fake, with twenty tasks in a file.
func far(t *testing.T, f *fake, change func(*Config)) *Verifiers {
	t.Helper()
	cfg := Defaults()
	cfg.Address, cfg.EvalPercent, cfg.File = f.address, 50, filepath.Join(t.TempDir(), "tasks.jsonl")
	if err := os.WriteFile(cfg.File, []byte(tasks()), 0o600); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&cfg)
	}
	e, err := New("far", "spelling", t.TempDir(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// tasks are twenty, each there twice.
func tasks() (lines string) {
	for i := range 40 {
		lines += fmt.Sprintf(`{"prompt":"Say %d.","idx":%d}`+"\n", i%20, i)
	}
	return lines
}

func job(task string) env.Job { return env.Job{Task: []byte(task), Model: policy} }

// tell answers a run of wire 0.4.0 with deltas and a reply.
func tell(server *zmtp.Conn, id []byte, reply object, deltas ...object) {
	for _, d := range deltas {
		_ = server.Send(id, []byte("delta"), pack(d))
	}
	_ = server.Send(id, []byte("reply"), pack(reply))
}

// whole is a rollout of 0.4.0 in five deltas, with everything that a delta may have.
func whole() (reply object, deltas []object) {
	array := object{"__nd__": true, "dtype": "uint8", "shape": []any{int64(1)}, "data": []byte{7}}
	return object{
			"success": true, "error": nil,
			"head":   object{"id": "e", "ok": true, "is_timeout": false, "errors": []any{}, "env": object{"id": "x"}, "novel": "of the head"},
			"traces": []any{object{"id": "t", "nodes": int64(2), "calls": int64(1)}},
		}, []object{
			{
				"trace": "t", "open": object{"id": "t", "version": int64(1), "task": object{"type": "T", "data": object{"prompt": "hush"}, "key": "k"}},
				"set":     object{"agent": object{"name": "agent", "trainable": true, "config": object{"client": object{"base_url": "http://secret"}, "model": "policy"}}},
				"pending": []any{object{"role": "user", "content": "Say stone."}},
			},
			{"trace": "t", "nodes": []any{
				object{"parent": nil, "sampled": false, "message": object{"role": "user", "content": []any{object{"type": "text", "text": "Say stone."}}},
					"token_ids": []any{int64(1), int64(2)}, "mask": []any{false, false}},
				object{"parent": int64(0), "sampled": true, "message": object{"role": "assistant", "content": "stone"},
					"token_ids": []any{int64(3), int64(4), int64(5)}, "mask": []any{false, true, true}, "logprobs": []any{-0.5, -0.25}, "routed_experts": array, "novel": "of a node"},
			}, "calls": []any{object{"node": int64(1), "finish_reason": "length", "error": nil}}},
			{"trace": "t", "links": object{"1": []any{object{"node": int64(0), "type": "fork"}}}, "routing_repairs": object{"1": array}},
			{"trace": "t", "set": object{"rewards": object{"a": object{"score": 0.5, "weight": 2.0}, "b": nil}, "metrics": object{"m": 1.5, "none": nil}, "stop_condition": "agent_completed"}},
			{"trace": "t", "set": object{"ok": true}, "novel": object{"of": array}},
		}
}

func TestRun040(t *testing.T) {
	f := newFake(t, wire040, func(server *zmtp.Conn, id []byte, _ object) {
		reply, deltas := whole()
		tell(server, id, reply, deltas...)
	})
	e := far(t, f, func(c *Config) { c.Tokenizer, c.Renderer = "/models/small", "qwen3" })
	if i := e.Info(); i.Train+i.Eval != 20 || !i.Disjoint || i.MaxTurns != 100 || i.Version != "0.4.0" {
		t.Errorf("info %+v", i)
	}
	out, err := env.RunHost(t.Context(), e, job(`{"prompt":"Say stone.","idx":1,"deep":{"x":[1,0.5]}}`))
	if err != nil {
		t.Fatal(err)
	}
	if r := out.Score.Rewards; len(r) != 2 || *r["a"].Value != 0.5 || r["a"].Weight != 2 || r["b"].Value != nil || *r.Total() != 1 {
		t.Errorf("rewards %+v", r)
	}
	if m := out.Score.Metrics; len(m) != 1 || m["m"] != 1.5 {
		t.Errorf("metrics %v", m)
	}
	if !out.Truncated || out.Score.Stop != "agent_completed" {
		t.Errorf("outcome %+v", out)
	}
	if len(out.Replies) != 1 || len(out.Replies[0]) != 2 || out.Replies[0][0] != 4 || out.Replies[0][1] != 5 {
		t.Errorf("replies %v", out.Replies)
	}
	if len(out.Messages) != 2 || out.Messages[0].Content != "Say stone." || out.Messages[1].Role != env.RoleAssistant {
		t.Errorf("messages %+v", out.Messages)
	}
	for _, want := range []string{
		`"novel":"of the head"`, `"novel":"of a node"`, `"novel":{"of":{"__nd__":true,"data":"Bw==","dtype":"uint8","shape":[1]}}`, `"type":"fork"`, `"key":"k"`,
	} {
		if !strings.Contains(string(out.Info), want) {
			t.Errorf("the info lacks %s: %s", want, out.Info)
		}
	}
	for _, not := range []string{"secret", "hush", "token_ids"} {
		if strings.Contains(string(out.Info), not) {
			t.Errorf("the info has %s: %s", not, out.Info)
		}
	}
	asked := f.asked[0]
	client, sampled := objectOf(asked, "client"), objectOf(asked, "sampling")
	if textOf(client, "type") != "train" || textOf(client, "renderer_model_name") != "/models/small" || textOf(objectOf(client, "renderer"), "name") != "qwen3" || textOf(client, "base_url") != policy.BaseURL ||
		textOf(client, "api_key_var") != noKey || textOf(asked, "model") != "policy" || sampled["temperature"] != 1.0 || sampled["max_tokens"] != int64(8) {
		t.Errorf("asked %v", asked)
	}
	if got := string(toJSON(asked["task_data"])); got != `{"deep":{"x":[1,0.5]},"idx":1,"prompt":"Say stone."}` {
		t.Errorf("task %s", got)
	}
}

// What a server says of its rollout is held against itself, and against what this bridge knows.
func TestInvariant_NoScoreWithoutAWholeRollout(t *testing.T) {
	for _, test := range []struct {
		name, want string
		change     func(reply object, deltas []object) []object
	}{
		{"a delta is lost", "has 0 nodes, the server says 2", func(_ object, d []object) []object { return append(d[:1:1], d[3:]...) }},
		{"a call is lost", "has 0 calls, the server says 1", func(_ object, d []object) []object { delete(d[1], "calls"); return d }},
		{"all are lost", "of which nothing came", func(object, []object) []object { return nil }},
		{"tried again", "tried the rollout again by itself", func(_ object, d []object) []object {
			return append([]object{{"trace": "u", "open": object{}}, {"trace": "u", "discard": true}}, d...)
		}},
		{"not ok", "TaskError: lost it", func(r object, d []object) []object {
			objectOf(r, "head")["ok"] = false // success, and no errors in the head
			return append(d, object{"trace": "t", "errors": []any{object{"type": "TaskError", "message": "lost it", "traceback": "in there"}}})
		}},
		{"not ok, of itself", "EnvError: no agent", func(r object, d []object) []object {
			objectOf(r, "head")["ok"] = false
			objectOf(r, "head")["errors"] = []any{object{"type": "EnvError", "message": "no agent"}}
			return d
		}},
		{"not ok, unsaid", "does not say why", func(r object, d []object) []object { objectOf(r, "head")["ok"] = false; return d }},
		{"two players", "2 agents that the policy plays", func(r object, d []object) []object {
			return append(d, object{"trace": "u", "open": object{"id": "u"}})
		}},
		{"a reward that is none", `reward "a" is "high"`, func(_ object, d []object) []object {
			objectOf(d[3], "set")["rewards"] = object{"a": "high"}
			return d
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(t, wire040, func(server *zmtp.Conn, id []byte, _ object) {
				reply, deltas := whole()
				deltas = test.change(reply, deltas)
				tell(server, id, reply, deltas...)
			})
			out, err := env.RunHost(t.Context(), far(t, f, nil), job(`{"prompt":"x"}`))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("outcome %+v, error %v, want one with %q", out, err, test.want)
			}
			if test.name == "not ok" && traceback(err) != "in there" {
				t.Errorf("traceback %q", traceback(err))
			}
		})
	}
}

// An agent of the environment's own is not the policy's trace.
func TestFrozenAgent(t *testing.T) {
	f := newFake(t, wire040, func(server *zmtp.Conn, id []byte, _ object) {
		reply, deltas := whole()
		judge := object{"trace": "u", "open": object{"id": "u"}, "set": object{"agent": object{"name": "judge", "trainable": false}, "rewards": object{}}}
		tell(server, id, reply, append(deltas, judge)...)
	})
	out, err := env.RunHost(t.Context(), far(t, f, nil), job(`{"prompt":"x"}`))
	if err != nil || len(out.Score.Rewards) != 2 || !strings.Contains(string(out.Info), `"judge"`) {
		t.Errorf("%+v, %v", out, err)
	}
}

// What a server says beyond all measure is cut from the info, not from the score.
func TestLongInfo(t *testing.T) {
	f := newFake(t, wire040, func(server *zmtp.Conn, id []byte, _ object) {
		reply, deltas := whole()
		tell(server, id, reply, append(deltas, object{"trace": "t", "set": object{"info": object{"all": []any{strings.Repeat("x", mostInfo)}, "short": "kept"}}})...)
	})
	out, err := env.RunHost(t.Context(), far(t, f, nil), job(`{"prompt":"x"}`))
	if err != nil || len(out.Info) > mostInfo || !strings.Contains(string(out.Info), `"short":"kept"`) || !strings.Contains(string(out.Info), `"cut":true`) {
		t.Errorf("info of %d bytes, %v", len(out.Info), err)
	}
}

// A connection that is lost is made again; the rollout on it is an error.
func TestReconnect(t *testing.T) {
	var once sync.Once
	f := newFake(t, wire040, func(server *zmtp.Conn, id []byte, _ object) {
		lost := false
		once.Do(func() { lost = true; _ = server.Close() })
		if reply, deltas := whole(); !lost {
			tell(server, id, reply, deltas...)
		}
	})
	e := far(t, f, nil)
	if _, err := env.RunHost(t.Context(), e, job(`{"prompt":"x"}`)); err == nil || !strings.Contains(err.Error(), "connection is lost") {
		t.Errorf("error %v", err)
	}
	if _, err := env.RunHost(t.Context(), e, job(`{"prompt":"x"}`)); err != nil {
		t.Error(err)
	}
}

// The wrong wire is an error that says what to do: its messages are dropped there.
func TestWrongWire(t *testing.T) {
	f := newFake(t, wire040, func(*zmtp.Conn, []byte, object) {})
	e := far(t, f, func(c *Config) { c.Wire, c.HealthS = "v0", 0.1 })
	if _, err := env.RunHost(t.Context(), e, job(`{"prompt":"x"}`)); err == nil || !strings.Contains(err.Error(), "speaks another wire") {
		t.Errorf("error %v", err)
	}
}

// A server of 0.2.1 says how many tasks it has, or that they have no end.
func TestFacts(t *testing.T) {
	for _, test := range []struct {
		said object
		n    int
		want string
	}{
		{object{"num_tasks": int64(40)}, 40, ""},
		{object{"num_tasks": nil}, 64, ""},
		{object{"num_tasks": int64(40), "requires_group_scoring": true}, 0, "compares the rollouts"},
		{object{"num_tasks": "many"}, 0, "want 2 to"},
		{object{"success": false, "error": "unknown method 'info'"}, 0, "unknown method"},
	} {
		if _, ok := test.said["success"]; !ok {
			test.said["success"] = true
		}
		f := newFake(t, wire021, func(server *zmtp.Conn, id []byte, _ object) { _ = server.Send(id, pack(test.said)) })
		cfg := Defaults()
		cfg.Address, cfg.Tasks = f.address, 64
		e, err := New("far", "x", "", cfg)
		switch {
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) || test.want == "" && err != nil:
			t.Errorf("%v: %v", test.said, err)
		case err == nil:
			if i := e.Info(); i.Train+i.Eval != test.n {
				t.Errorf("%v: info %+v", test.said, i)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A key goes by the name of its variable, never over the wire.
func TestKey(t *testing.T) {
	f := newFake(t, wire040, func(server *zmtp.Conn, id []byte, _ object) {
		reply, deltas := whole()
		tell(server, id, reply, deltas...)
	})
	e := far(t, f, nil)
	j := job(`{"prompt":"x"}`)
	j.Model.Key = "hush"
	if _, err := env.RunHost(t.Context(), e, j); err == nil || !strings.Contains(err.Error(), "in no variable") {
		t.Errorf("error %v", err)
	}
	j.Model.KeyVar = "OPENAI_API_KEY"
	if _, err := env.RunHost(t.Context(), e, j); err != nil {
		t.Error(err)
	}
	if textOf(objectOf(f.asked[0], "client"), "api_key_var") != "OPENAI_API_KEY" || strings.Contains(string(toJSON(f.asked[0])), "hush") {
		t.Errorf("asked %v", f.asked[0])
	}
}
