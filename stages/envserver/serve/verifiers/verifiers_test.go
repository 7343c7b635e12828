package verifiers

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	wire "github.com/prl-project/prl/stages/envserver/bridge/verifiers"
	"github.com/prl-project/prl/stages/envserver/bridge/zmtp"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/serve"
)

// rates is an environment of one reply; the best of a group gets 1.
type rates struct{}

func (rates) Info() env.Info { return env.Info{Name: "rates", Version: "1", Train: 3, MaxTurns: 3} }

func (rates) Task(env.Split, int) (json.RawMessage, error) { return json.RawMessage(`{"n": 1}`), nil }

func (rates) Start(_ context.Context, task json.RawMessage, _ int64) (env.Episode, error) {
	if strings.Contains(string(task), "broken") {
		return nil, errors.New("the task is broken")
	}
	return &rated{}, nil
}

func (rates) ScoreGroup(_ context.Context, _ json.RawMessage, group []env.Rollout) ([]env.Score, error) {
	var scores []env.Score
	for i := range group {
		scores = append(scores, env.Score{Rewards: env.Rewards{"best": env.Value(float64(i)), "none": env.NotApplicable(1)}})
	}
	return scores, nil
}

type rated struct{ turns int }

func (*rated) Prompt() []env.Message { return []env.Message{env.User("Say.")} }

func (r *rated) Reply(context.Context, env.Message) (env.Turn, error) {
	r.turns++
	return env.Turn{Messages: []env.Message{env.User("More.")}}, nil
}

func (r *rated) Score(context.Context) (env.Score, error) {
	return env.Score{Rewards: env.Rewards{"turns": env.Weighted(float64(r.turns), 0.5), "none": env.NotApplicable(1)}}, nil
}

// dealer is a client of a test.
type dealer struct {
	t    *testing.T
	conn *zmtp.Conn
}

func dial(t *testing.T, address string) dealer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	conn, err := zmtp.Dial(ctx, address, zmtp.Dealer, longest)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	killed := time.AfterFunc(deadline, func() { _ = conn.Close() })
	t.Cleanup(func() { killed.Stop() })
	return dealer{t, conn}
}

func (d dealer) send(frames ...string) {
	d.t.Helper()
	var all [][]byte
	for _, f := range frames {
		all = append(all, []byte(f))
	}
	if err := d.conn.Send(all...); err != nil {
		d.t.Fatal(err)
	}
}

// reply is the answer to a request, as JSON; deltas are passed over.
func (d dealer) reply(id string) string {
	d.t.Helper()
	for {
		frames, err := d.conn.Recv()
		if err != nil {
			d.t.Fatal(err)
		}
		if string(frames[0]) == id && string(frames[1]) != "delta" {
			v, err := wire.Unpack(frames[len(frames)-1])
			if err != nil {
				d.t.Fatal(err)
			}
			return string(wire.JSON(v))
		}
	}
}

// ask sends a request and wants each of some texts in the answer.
func (d dealer) ask(id, method string, request object, want ...string) {
	d.t.Helper()
	d.send(id, method, string(wire.Pack(request)))
	reply := d.reply(id)
	for _, w := range want {
		if !strings.Contains(reply, w) {
			d.t.Errorf("%s %v: %q is missing in %s", method, request, w, reply)
		}
	}
}

func run(m *models, mode string, task object) object {
	return object{"task_data": task, "client": object{"type": "eval", "base_url": m.URL + "/" + mode + "/v1", "api_key_var": "X"}, "model": "policy", "sampling": object{}}
}

// What a rollout comes to when the model, the environment or a limit ends it.
func TestRollouts(t *testing.T) {
	m := newModels(t)
	cfg := usual(t, m.URL)
	address, _ := start(t, rates{}, cfg)
	d := dial(t, address)
	d.ask("1", "run", run(m, "ok", object{"idx": 2}), `"success":true`, `"ok":true`, `"calls":3,"id":`, `"nodes":6`)
	d.ask("2", "run", run(m, "cut", object{"idx": 2}), `"ok":true`, `"calls":1`, `"nodes":2`)
	d.ask("3", "run", run(m, "ok", object{"task": object{"broken": true}}), `"success":true`, `"ok":false`, `"calls":0`)
	d.ask("4", "run", run(m, "ok", object{"task": object{"n": 5}}), `"ok":true`)
	d.ask("5", "run", run(m, "ok", object{}), `ValidationError: task_data`, "idx")
	d.ask("6", "run", object{"task_data": object{"idx": 0}}, "ValidationError: client")
	bad := run(m, "ok", object{"idx": 0})
	bad["client"].(object)["base_url"] = "http://127.0.0.1:1/v1"
	d.ask("7", "run", bad, "none of the servers that may be asked")
	cfg.Limits.Rollout = 50 * time.Millisecond
	address, _ = start(t, rates{}, cfg)
	dial(t, address).ask("8", "run", run(m, "hang", object{"idx": 0}), `"ok":false`, `"calls":1`, `"nodes":0`)
}

// Without a tokenizer there is none who gives tokens.
func TestNoTokenizer(t *testing.T) {
	m := newModels(t)
	cfg := usual(t, m.URL)
	cfg.Renderer = nil
	address, _ := start(t, rates{}, cfg)
	request := run(m, "ok", object{"idx": 0})
	request["client"].(object)["type"] = "train"
	dial(t, address).ask("1", "run", request, "--tokenizer")
}

// Cancelling, leaving and stopping end a rollout and its model call, and make room for the next.
func TestEnds(t *testing.T) {
	m := newModels(t)
	cfg := usual(t, m.URL)
	cfg.Rollouts = 1
	address, stop := start(t, rates{}, cfg)
	d := dial(t, address)
	hang := string(wire.Pack(run(m, "hang", object{"idx": 0})))
	d.send("1", "run", hang)
	<-m.asked
	d.send("2", "run", hang) // it waits
	d.send("2", "run", hang)
	if reply := d.reply("2"); !strings.Contains(reply, "runs already") {
		t.Error(reply)
	}
	d.ask("c2", "cancel", object{"request_id": "2"}, `"cancelled":true`)
	if reply := d.reply("2"); !strings.Contains(reply, `"error":"Cancelled: rollout aborted"`) {
		t.Error(reply)
	}
	d.ask("c1", "cancel", object{"request_id": "1"}, `"cancelled":true`)
	if reply := d.reply("1"); !strings.Contains(reply, `"success":false`) {
		t.Error(reply)
	}
	<-m.left
	d.ask("3", "run", run(m, "ok", object{"idx": 0}), `"ok":true`)
	d.send("4", "run", hang)
	<-m.asked
	_ = d.conn.Close()
	<-m.left
	d = dial(t, address)
	d.send("5", "run", hang)
	<-m.asked
	stop()
	<-m.left
}

// A cancel is of the client's own requests.
func TestOthers(t *testing.T) {
	m := newModels(t)
	address, _ := start(t, rates{}, usual(t, m.URL))
	d, other := dial(t, address), dial(t, address)
	d.send("1", "run", string(wire.Pack(run(m, "hang", object{"idx": 0}))))
	<-m.asked
	other.ask("2", "cancel", object{"request_id": "1"}, `"cancelled":false`)
	d.ask("3", "cancel", object{"request_id": "1"}, `"cancelled":true`)
}

// A group is compared where the client asks for one; a component that does not apply is in no sum.
func TestGroup(t *testing.T) {
	m := newModels(t)
	cfg := usual(t, m.URL)
	cfg.Wire = Wire021
	address, _ := start(t, rates{}, cfg)
	d := dial(t, address)
	d.ask("1", "info", object{}, `"num_tasks":3`, `"requires_group_scoring":true`)
	request := run(m, "ok", nil)
	delete(request, "task_data")
	request["task_idx"], request["n"] = 1, 2
	d.ask("2", "run_group", request, `"rewards":{"best":0}`, `"rewards":{"best":1}`)
	d.ask("3", "run_rollout", request, `"rewards":{"turns":1.5}`)
	request["n"] = 0
	d.ask("4", "run_group", request, "ValidationError: n")
	d.ask("5", "run", request, "unknown method 'run'")
}

// What deltas say is what the reply counts.
func TestDeltas(t *testing.T) {
	m := newModels(t)
	address, _ := start(t, rates{}, usual(t, m.URL))
	d := dial(t, address)
	d.send("1", "run", string(wire.Pack(run(m, "ok", object{"idx": 0}))))
	nodes, opened := 0, 0
	for {
		frames, err := d.conn.Recv()
		if err != nil {
			t.Fatal(err)
		}
		v, err := wire.Unpack(frames[2])
		if err != nil {
			t.Fatal(err)
		}
		said := v.(object)
		if string(frames[1]) == "reply" {
			counted := said["traces"].([]any)[0].(object)
			if counted["nodes"] != int64(nodes) || opened != 1 {
				t.Errorf("%d nodes came, in a trace that was opened %d times; %v", nodes, opened, counted)
			}
			return
		}
		if said["open"] != nil {
			opened++
		}
		if more, ok := said["nodes"].([]any); ok {
			nodes += len(more)
		}
		if r, ok := said["set"].(object)["rewards"].(object); ok && len(r) > 0 {
			if none, ok := r["none"]; !ok || none != nil {
				t.Errorf("rewards %v", r)
			}
		}
	}
}

// A variable goes to the server that it is listed for, and nowhere else.
func TestModels(t *testing.T) {
	t.Setenv("PRL_TEST_KEY", "secret")
	t.Setenv("PRL_TEST_OTHER", "other")
	var m Models
	for _, entry := range []string{"https://api.example.com=PRL_TEST_KEY", "http://localhost:8000"} {
		if err := m.Allow(entry); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		base, variable, want string // the key; empty for a refusal
	}{
		{"https://api.example.com/v1", "PRL_TEST_KEY", "secret"},
		{"https://API.example.com:443/v1", "PRL_TEST_KEY", "secret"},
		{"https://api.example.com/v1", "PRL_TEST_OTHER", noKey},
		{"https://api.example.com/v1", "", noKey},
		{"http://localhost:8000/v1", "PRL_TEST_KEY", noKey},
		{"http://api.example.com/v1", "PRL_TEST_KEY", ""},
		{"https://api.example.com.evil.example/v1", "PRL_TEST_KEY", ""},
		{"https://api.example.com@evil.example/v1", "PRL_TEST_KEY", ""},
		{"https://api.example.com:8443/v1", "PRL_TEST_KEY", ""},
		{"file:///etc/passwd", "", ""},
	} {
		a, err := m.access(c.base, c.variable, map[string]string{"Host": "x"}, map[string]string{"X-From": c.variable})
		if (err != nil) != (c.want == "") || err == nil && a.key != c.want {
			t.Errorf("%s, %s: key %q, %v; want %q", c.base, c.variable, a.key, err, c.want)
		}
		if from := a.header.Get("X-From"); from != "" && (c.want != "secret" || from != "secret") || a.header.Get("Host") != "" {
			t.Errorf("%s, %s: headers %v", c.base, c.variable, a.header)
		}
	}
	m.Any = true
	if a, err := m.access("http://api.example.com/v1", "PRL_TEST_KEY", nil, nil); err != nil || a.key != noKey || !slices.Equal(a.refused, []string{"PRL_TEST_KEY"}) {
		t.Errorf("%+v, %v", a, err)
	}
	if err := m.Allow("localhost:8000"); err == nil {
		t.Error("an entry without a scheme")
	}
}

// What cannot be played is refused at the start.
func TestRefused(t *testing.T) {
	cfg := usual(t, "http://localhost:1")
	served := serve.Served{Env: rates{}, Limit: time.Second}
	for _, change := range []func(*Config){
		func(c *Config) { c.Wire = "0.3.0" }, func(c *Config) { c.Rollouts = 0 }, func(c *Config) { c.Limits.Rollout = 0 },
	} {
		c := cfg
		change(&c)
		if _, err := New(t.Context(), served, c, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}

// FuzzRequest: whatever a client sends, it is answered or dropped, and the next request is answered.
func FuzzRequest(f *testing.F) {
	f.Add("run", wire.Pack(object{"task_data": object{"idx": 0}, "client": object{}, "model": "m"}))
	f.Add("cancel", wire.Pack(object{"request_id": 1}))
	f.Add("", wire.Pack(object{"request_type": "run_group", "group_inputs": []any{object{}}, "client_config": object{"api_base_url": "http://x"}, "model": "m"}))
	cfg := Config{Wire: Wire040, Rollouts: 1, Models: Models{Variables: map[string][]string{}}}
	cfg.Limits.Rollout = time.Minute
	s, err := New(f.Context(), serve.Served{Env: rates{}, Limit: time.Minute}, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, method string, payload []byte) {
		p := &peer{Server: s, running: map[string]context.CancelCauseFunc{}}
		if answer, err := p.route(t.Context(), "1", method, payload); err == nil && answer == nil {
			t.Errorf("%s %q begins a rollout of a model that may not be asked", method, payload)
		}
		request, err := decoded(payload)
		if err != nil {
			return
		}
		if _, err := s.playerOfV0(request); err == nil {
			t.Errorf("%q names a model that may be asked", payload)
		}
		_, _ = p.taskOfV0(request)
	})
}
