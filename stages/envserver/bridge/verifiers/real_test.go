package verifiers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/stages/envserver/env"
)

// installed is the interpreter of a version of the package.
func installed(t *testing.T, version string) string {
	t.Helper()
	dir, err := filepath.Abs("../../../../.cache/verifiers-" + version)
	if err != nil {
		t.Fatal(err)
	}
	need.Verifiers(t, dir)
	return filepath.Join(dir, "bin", "python")
}

// open makes an environment of testdata; it ends with the test.
func open(t *testing.T, version, id string, change func(*Config)) *Verifiers {
	t.Helper()
	e, err := tryOpen(t, version, id, change)
	if err != nil {
		t.Fatalf("%v\n%s", err, traceback(err))
	}
	return e
}

func tryOpen(t *testing.T, version, id string, change func(*Config)) (*Verifiers, error) {
	t.Helper()
	cfg := Defaults()
	cfg.Python, cfg.Path, cfg.Workers = installed(t, version), filepath.Join("testdata", version), 1
	if change != nil {
		change(&cfg)
	}
	logs := t.TempDir()
	e, err := New("mine", id, logs, cfg)
	if err == nil {
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			if text, err := os.ReadFile(e.log.Path()); t.Failed() && err == nil {
				t.Logf("log:\n%s", text)
			}
		})
	}
	return e, err
}

func traceback(err error) string {
	var traced env.Traced
	if errors.As(err, &traced) {
		return traced.Traceback()
	}
	return ""
}

// task is the one of a split that has a text in it, with another value of a field.
func task(t *testing.T, e *Verifiers, split env.Split, with, field string, value any) string {
	t.Helper()
	for _, row := range e.tasks[split] {
		if strings.Contains(string(row), with) {
			o, err := fromJSON(row)
			if err != nil {
				t.Fatal(err)
			}
			if field != "" {
				if in := objectOf(o, "info"); in != nil {
					o = in
				}
				o[field] = value
				if whole, _ := fromJSON(row); objectOf(whole, "info") != nil {
					whole["info"] = o
					o = whole
				}
			}
			return string(toJSON(o))
		}
	}
	t.Fatalf("no task of split %s with %q among %s", split, with, e.tasks[split])
	return ""
}

func play(t *testing.T, e *Verifiers, m *model, task string) env.Outcome {
	t.Helper()
	out, err := env.RunHost(t.Context(), e, m.job(task))
	if err != nil {
		t.Fatalf("%v\n%s", err, traceback(err))
	}
	return out
}

// fails plays a rollout that must be an error with a message and a traceback.
func fails(t *testing.T, e *Verifiers, m *model, task, message, where string) {
	t.Helper()
	out, err := env.RunHost(t.Context(), e, m.job(task))
	if err == nil || !strings.Contains(err.Error(), message) || !strings.Contains(traceback(err), where) {
		t.Errorf("outcome %+v, error %v, want one with %q and the traceback %q:\n%s", out, err, message, where, traceback(err))
	}
}

func rewarded(t *testing.T, out env.Outcome, want map[string][2]float64) {
	t.Helper()
	if len(out.Score.Rewards) != len(want) {
		t.Errorf("rewards %+v, want %v", out.Score.Rewards, want)
	}
	for name, w := range want {
		r := out.Score.Rewards[name]
		if r.Value == nil || *r.Value != w[0] || r.Weight != w[1] {
			t.Errorf("reward %s is %+v, want %v", name, r, w)
		}
	}
}

// TestReal040 plays a taskset of 0.4.0, and what goes wrong in it.
func TestReal040(t *testing.T) {
	m := newModel(t, backwards)
	e := open(t, "0.4.0", "spelling", func(c *Config) {
		c.EvalArgs = map[string]any{"taskset": map[string]any{"split": "test"}}
		c.HealthS = 20
	})
	if i := e.Info(); i.Train != 10 || i.Eval != 4 || !i.Disjoint || !strings.HasPrefix(i.Version, "0.4.0-") {
		t.Errorf("info %+v", i)
	}
	out := play(t, e, m, task(t, e, env.Train, "candle", "surprise", map[string]any{"x": 1}))
	rewarded(t, out, map[string][2]float64{"correct": {1, 2}, "short": {1, 0.5}})
	if out.Score.Metrics["letters"] != 6 || out.Score.Stop != "agent_completed" || out.Truncated {
		t.Errorf("outcome %+v", out)
	}
	if len(out.Messages) != 2 || out.Messages[1].Content != "eldnac" {
		t.Errorf("messages %+v", out.Messages)
	}
	var info struct {
		Wire    string
		Episode struct{ OK bool }
		Traces  []struct {
			Info   map[string]map[string]any
			Timing map[string]any
			Calls  []map[string]any
		}
	}
	if err := json.Unmarshal(out.Info, &info); err != nil || !info.Episode.OK || info.Wire != "0.4.0" || len(info.Traces) != 1 ||
		info.Traces[0].Info["drawn"]["7"] != "seven" || info.Traces[0].Timing == nil || len(info.Traces[0].Calls) != 1 || strings.Contains(string(out.Info), m.URL) {
		t.Errorf("info %s: %v", out.Info, err)
	}
	out = play(t, e, m, task(t, e, env.Eval, "iver", "", nil))
	rewarded(t, out, map[string][2]float64{"correct": {1, 2}, "short": {1, 0.5}})

	t.Run("from elsewhere", func(t *testing.T) {
		cfg := Defaults()
		cfg.Address, cfg.Python, cfg.Path, cfg.EvalPercent = "ipc://"+filepath.Join(e.foreman.folder, "1"), e.cfg.Python, e.cfg.Path, 50
		far, err := New("far", "spelling", "", cfg) // the tasks come from a process that says them and ends
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
		if i := far.Info(); i.Train+i.Eval != 10 {
			t.Errorf("info %+v", i)
		}
		play(t, far, m, task(t, e, env.Train, "river", "", nil))
	})
	t.Run("a reward raises", func(t *testing.T) {
		fails(t, e, m, task(t, e, env.Train, "river", "fault", "raise"), "the dictionary is lost", "in correct")
	})
	t.Run("not finite", func(t *testing.T) {
		fails(t, e, m, task(t, e, env.Train, "river", "fault", "nan"), "not finite", "")
	})
	t.Run("not valid", func(t *testing.T) {
		fails(t, e, m, `{"prompt":"Say it."}`, "ValidationError", "")
	})
	t.Run("the model fails", func(t *testing.T) {
		broken := newModel(t, func(*http.Request, []object) said { return said{status: 500, text: "out of order"} })
		fails(t, e, broken, task(t, e, env.Train, "river", "", nil), "out of order", "")
	})
	t.Run("the context is full", func(t *testing.T) {
		over := newModel(t, func(*http.Request, []object) said {
			return said{status: 400, code: "context_length_exceeded", text: "no room"}
		})
		out := play(t, e, over, task(t, e, env.Train, "river", "", nil))
		if !out.Truncated || out.Score.Stop != "context_length" || out.Score.Rewards.Total() != nil {
			t.Errorf("outcome %+v", out)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan struct{})
		slow := newModel(t, func(r *http.Request, _ []object) said {
			cancel()
			<-r.Context().Done() // the server gives its request up
			close(gone)
			return said{}
		})
		if _, err := env.RunHost(ctx, e, slow.job(task(t, e, env.Train, "river", "", nil))); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		<-gone
	})
	t.Run("killed", func(t *testing.T) {
		fails(t, e, m, task(t, e, env.Train, "river", "fault", "die"), "signal: killed", "")
		play(t, e, m, task(t, e, env.Train, "river", "", nil))
	})
	t.Run("hangs", func(t *testing.T) {
		fails(t, e, m, task(t, e, env.Train, "river", "fault", "hang"), "health_s", "in correct")
		play(t, e, m, task(t, e, env.Train, "river", "", nil))
	})
}

// TestReal040Tools plays a taskset without end with verifiers' own harness, a program that uv prepares, and a tool server; by two
// servers when one is not enough, and by one again when they are idle.
func TestReal040Tools(t *testing.T) {
	var e *Verifiers
	m := newModel(t, func(_ *http.Request, messages []object) said {
		if last := messages[len(messages)-1]; textOf(last, "role") == "user" {
			sized(t, e.pool, 2)
			goal := number(textOf(last, "content"))
			return said{calls: []any{object{"id": "x", "type": "function", "function": object{"name": "counter_add", "arguments": `{"n":` + goal + `}`}}}}
		}
		return said{text: "done"}
	})
	e = open(t, "0.4.0", "counting", func(c *Config) {
		c.Args = map[string]any{"agent": map[string]any{"harness": map[string]any{"id": "null"}}}
		c.Workers, c.Multiplex, c.Tasks, c.IdleS = 2, 1, 50, 1
	})
	if i := e.Info(); i.Train+i.Eval != 50 {
		t.Errorf("info %+v", i)
	}
	var both sync.WaitGroup
	for _, goal := range []string{"Count to 7.", "Count to 12."} {
		both.Go(func() {
			row := `{"prompt":"` + goal + `","goal":` + number(goal) + `}`
			out, err := env.RunHost(t.Context(), e, m.job(row))
			if err != nil {
				t.Errorf("%v\n%s", err, traceback(err))
				return
			}
			rewarded(t, out, map[string][2]float64{"reached": {1, 1}})
			if len(out.Messages) != 4 || out.Messages[2].Role != env.RoleTool {
				t.Errorf("messages %+v", out.Messages)
			}
		})
	}
	both.Wait()
	sized(t, e.pool, 1)
}

// number is the goal of "Count to 7."
func number(prompt string) string {
	return strings.TrimSuffix(strings.TrimPrefix(prompt, "Count to "), ".")
}

// sized waits until a pool has so many workers.
func sized(t *testing.T, p *pool, n int) {
	deadline := time.After(5 * time.Minute)
	for {
		p.mu.Lock()
		got, changed := len(p.live), p.changed
		p.mu.Unlock()
		if got == n {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Errorf("%d workers, want %d", got, n)
			return
		}
	}
}

// TestReal021 plays a taskset of 0.2.1, whose server owns the tasks.
func TestReal021(t *testing.T) {
	m := newModel(t, backwards)
	e := open(t, "0.2.1", "spelling", nil)
	if i := e.Info(); i.Train+i.Eval != 10 || i.Eval < 1 || !i.Disjoint || !strings.HasPrefix(i.Version, "0.2.1-") {
		t.Errorf("info %+v", i)
	}
	out := play(t, e, m, `{"task_idx":2,"surprise":1}`)
	rewarded(t, out, map[string][2]float64{"correct": {2, 1}}) // weighted there
	if out.Score.Metrics["letters"] != 6 || out.Score.Stop != "agent_completed" || out.Truncated || len(out.Messages) != 2 ||
		!strings.Contains(string(out.Info), `"generation"`) || strings.Contains(string(out.Info), m.URL) {
		t.Errorf("outcome %+v, info %s", out, out.Info)
	}
	fails(t, e, m, `{"task_idx":7}`, "the dictionary is lost", "in correct")
	fails(t, e, m, `{"task_idx":10}`, "IndexError", "")
	fails(t, e, m, `{"task_idx":8}`, "signal: killed", "")
	play(t, e, m, `{"task_idx":2}`)

	// The same server, from elsewhere: its wire is found out, and tasks are numbers.
	address := "ipc://" + filepath.Join(e.foreman.folder, "2")
	far, err := New("far", "spelling", "", func() Config { c := Defaults(); c.Address, c.EvalPercent = address, 50; return c }())
	if err != nil {
		t.Fatal(err)
	}
	if i := far.Info(); i.Train+i.Eval != 10 || i.Version != "0.2.1" {
		t.Errorf("info %+v", i)
	}
	play(t, far, m, `{"task_idx":2}`)
	if err := far.Close(); err != nil {
		t.Error(err)
	}
	play(t, e, m, `{"task_idx":2}`) // it goes on

	pid := e.pool.live[0].p.child.Pid()
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is still there: %v", pid, err)
	}
	if _, err := env.RunHost(t.Context(), e, m.job(`{"task_idx":2}`)); !errors.Is(err, errClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// TestInvariant_NoOrphans kills a process that has started servers: they end, too.
func TestInvariant_NoOrphans(t *testing.T) {
	if os.Getenv("VERIFIERS_ORPHAN") != "" {
		e := open(t, "0.2.1", "spelling", nil)
		fmt.Println("pid", e.pool.live[0].p.child.Pid())
		select {} // until it is killed
	}
	installed(t, "0.2.1")
	cmd := exec.Command(os.Args[0], "-test.run", "^TestInvariant_NoOrphans$", "-test.v")
	cmd.Env = append(os.Environ(), "VERIFIERS_ORPHAN=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid, lines := 0, bufio.NewScanner(out)
	for pid == 0 && lines.Scan() {
		_, _ = fmt.Sscanf(lines.Text(), "pid %d", &pid) // other lines say other things
	}
	if err := errors.Join(cmd.Process.Kill(), syscall.Kill(pid, 0)); err != nil || pid == 0 {
		t.Fatalf("process %d: %v", pid, err)
	}
	_ = cmd.Wait() // it was killed
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(state), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d outlives us", pid)
		}
	}
}

// TestReal021Group has rewards that compare a group: those are refused at the start.
func TestReal021Group(t *testing.T) {
	_, err := tryOpen(t, "0.2.1", "spelling", func(c *Config) { c.Args = map[string]any{"taskset": map[string]any{"grouped": true}} })
	if err == nil || !strings.Contains(err.Error(), "compares the rollouts of a group") {
		t.Errorf("error %v", err)
	}
}

// TestRealV0 plays environments of v0, whose client owns the data set.
func TestRealV0(t *testing.T) {
	calls := 0
	m := newModel(t, func(r *http.Request, messages []object) said {
		if textOf(messages[len(messages)-1], "role") == "user" && strings.Contains(textOf(messages[len(messages)-1], "content"), "mirror") {
			calls++
			return said{calls: []any{object{"id": "x", "type": "function", "function": object{"name": "shout", "arguments": `{"word":"mirror"}`}}}}
		}
		if textOf(messages[len(messages)-1], "role") == "tool" {
			return said{text: strings.ToLower("R" + "ORRIM")}
		}
		return backwards(r, messages)
	})
	e := open(t, "0.1.14", "spelling", func(c *Config) { c.Args = map[string]any{"tools": true} })
	if i := e.Info(); i.Train != 10 || i.Eval != 4 || !i.Disjoint || !strings.HasPrefix(i.Version, "0.1.14-") {
		t.Errorf("info %+v", i)
	}
	out := play(t, e, m, task(t, e, env.Train, "mirror", "", nil))
	rewarded(t, out, map[string][2]float64{"reward": {2, 1}})
	if calls != 1 || out.Score.Metrics["correct"] != 1 || out.Score.Metrics["letters"] != 6 || out.Truncated || len(out.Messages) != 4 ||
		len(out.Messages[1].ToolCalls) != 1 || out.Messages[2].Content != "MIRROR" || !strings.Contains(string(out.Info), `"timing"`) {
		t.Errorf("%d calls, outcome %+v, info %s", calls, out, out.Info)
	}
	rewarded(t, play(t, e, m, task(t, e, env.Eval, "iver", "", nil)), map[string][2]float64{"reward": {2, 1}})
	t.Run("says nothing", func(t *testing.T) {
		mute := newModel(t, func(*http.Request, []object) said { return said{} })
		out := play(t, e, mute, task(t, e, env.Train, "river", "", nil))
		if !out.Truncated || out.Score.Stop != "empty_reply" || out.Score.Rewards.Total() != nil {
			t.Errorf("outcome %+v", out)
		}
	})
	t.Run("the context is full", func(t *testing.T) {
		over := newModel(t, func(*http.Request, []object) said {
			return said{status: 400, code: "context_length_exceeded", text: "maximum context length"}
		})
		if out := play(t, e, over, task(t, e, env.Train, "river", "", nil)); !out.Truncated {
			t.Errorf("outcome %+v", out)
		}
	})
	t.Run("the model fails", func(t *testing.T) {
		broken := newModel(t, func(*http.Request, []object) said { return said{status: 422, text: "out of order"} })
		fails(t, e, broken, task(t, e, env.Train, "river", "", nil), "out of order", "")
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan struct{})
		slow := newModel(t, func(r *http.Request, _ []object) said {
			cancel()
			<-r.Context().Done() // the server gives its request up
			close(gone)
			return said{}
		})
		if _, err := env.RunHost(ctx, e, slow.job(task(t, e, env.Train, "river", "", nil))); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		<-gone
	})
	t.Run("killed", func(t *testing.T) {
		// Its process is the worker of a router, which would begin the rollout again by itself.
		fails(t, e, m, task(t, e, env.Train, "river", "fault", "die"), "signal: killed", "")
		play(t, e, m, task(t, e, env.Train, "river", "", nil))
	})
}
