package openenv

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/env/envtest"
)

const installed = "../../../../.cache/openenv"

// real is a process with the environments of testdata/server.py, on the real package. It ends with its standard input, and so
// with this process.
type real struct {
	url string
	cmd *exec.Cmd
	in  io.Closer
}

// launch starts one; port 0 is a free one, version "" the newest.
func launch(version, port string) (*real, error) {
	python, err := filepath.Abs(filepath.Join(installed, "bin", "python"))
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(python, "testdata/server.py", port)
	cmd.Stderr = os.Stderr
	if version != "" {
		cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(installed, version))
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	said := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n') // nothing, if it has ended
		said <- line
	}()
	select {
	case line := <-said:
		var n int
		if _, err := fmt.Sscanf(line, "port %d", &n); err == nil {
			return &real{url: fmt.Sprintf("http://127.0.0.1:%d", n), cmd: cmd, in: in}, nil
		}
	case <-time.After(2 * time.Minute):
	}
	_ = cmd.Process.Kill()
	return nil, fmt.Errorf("testdata/server.py does not start: %w", cmd.Wait())
}

// kill ends it at once.
func (r *real) kill(t *testing.T) {
	t.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = r.cmd.Wait() // it says that it was killed
}

// Those that tests share start when the first asks, and end with this process.
var shared = map[string]func() (*real, error){
	"":      sync.OnceValues(func() (*real, error) { return launch("", "0") }),
	"0.3.0": sync.OnceValues(func() (*real, error) { return launch("0.3.0", "0") }),
}

func server030(t *testing.T) *real    { return serverOf(t, "0.3.0") }
func serverNewest(t *testing.T) *real { return serverOf(t, "") }

func serverOf(t *testing.T, version string) *real {
	t.Helper()
	need.OpenEnv(t, installed)
	r, err := shared[version]()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// openReal is an environment of a server.
func openReal(t *testing.T, r *real, path string, change func(*Config)) *OpenEnv {
	t.Helper()
	e, err := tryReal(t, r, path, change)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func tryReal(t *testing.T, r *real, path string, change func(*Config)) (*OpenEnv, error) {
	t.Helper()
	cfg := Defaults()
	cfg.TimeoutS = 60
	if change != nil {
		change(&cfg)
	}
	e, err := New("mine", r.url+path, "", cfg)
	if err == nil {
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return e, err
}

// call calls a tool and returns its answer.
func call(t *testing.T, s *env.Session, tool, args string) (env.Message, bool) {
	t.Helper()
	turn, err := s.Reply(t.Context(), env.Message{Role: env.RoleAssistant, ToolCalls: []env.ToolCall{{ID: "c", Name: tool, Arguments: args}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(turn.Messages) != 1 || turn.Messages[0].ToolCallID != "c" {
		t.Fatalf("%s: answered %+v", tool, turn)
	}
	return turn.Messages[0], turn.Done
}

// What OpenEnv's own environments are on the wire, in both versions of it.
func TestReal(t *testing.T) {
	for name, server := range map[string]func(*testing.T) *real{"0.10.0": serverNewest, "0.3.0": server030} {
		t.Run(name, func(t *testing.T) {
			r := server(t)
			t.Run("text", func(t *testing.T) { realText(t, r, name != "0.3.0") })
			t.Run("step", func(t *testing.T) { realStep(t, r) })
			t.Run("tools", func(t *testing.T) { realTools(t, r, "/desk", "auto") })
			t.Run("tools by JSON-RPC", func(t *testing.T) { realTools(t, r, "/rpc", "tools") })
			t.Run("raises", func(t *testing.T) { realRaises(t, r) })
		})
	}
}

// metadata says that the server sends any: 0.3.0 does not.
func realText(t *testing.T, r *real, metadata bool) {
	e := openReal(t, r, "/echo", func(c *Config) { c.State, c.Show = true, []string{"text"} })
	if v := e.Info().Version; !strings.HasPrefix(v, "1.0.0-") {
		t.Errorf("version %q", v)
	}
	s := begin(t, e, `{"seed":7,"greeting":"hi","color":"blue","prompt":"Echo."}`)
	if p := s.Prompt(); len(p) != 1 || p[0].Content != "Echo.\n\nhi 331" {
		t.Fatalf("prompt %+v", p)
	}
	for _, text := range []string{"ünï \x00 <b>", "yes"} {
		if got, done, err := say(t, s, text); err != nil || got != text || done {
			t.Errorf("%q: %q, %v, %v", text, got, done, err)
		}
	}
	// What does not fit the action is the policy's fault, and told.
	if got, _, err := say(t, s, strings.Repeat("x", 1001)); err != nil || !strings.HasPrefix(got, "error: message: String should have at most 1000") {
		t.Errorf("too long a text: %q, %v", got, err)
	}
	if got, done, err := say(t, s, "bye"); err != nil || got != "bye" || !done {
		t.Errorf("bye: %q, %v, %v", got, done, err)
	}
	score, err := s.Score(t.Context())
	if err != nil || *score.Rewards.Total() != 0.3 {
		t.Fatalf("score %+v, %v", score, err)
	}
	if m := score.Metrics; m["steps"] != 3 || m["errors"] != 1 || m["letters"] != 3*env.Bool(metadata) || m["step_count"] != 3 || m["seed"] != 7 {
		t.Errorf("metrics %v", m)
	}
	// A step without a reward leaves none.
	silent := begin(t, e, `{}`)
	if _, _, err := say(t, silent, "silent"); err != nil {
		t.Fatal(err)
	}
	if score, err := silent.Score(t.Context()); err != nil || score.Rewards.Total() != nil {
		t.Errorf("score %+v, %v", score, err)
	}
}

func realStep(t *testing.T, r *real) {
	e := openReal(t, r, "/number", nil)
	s := begin(t, e, `{"seed":3}`)
	if p := s.Prompt()[0].Content; p != "I think of a digit." || len(s.Tools()) != 1 {
		t.Fatalf("prompt %q, tools %+v", p, s.Tools())
	}
	for args, want := range map[string]string{`{"number":10}`: "error: arguments of step", `{"number":1,"mood":"odd"}`: "enum", `{"number":9}`: "too high"} {
		if m, done := call(t, s, "step", args); !strings.Contains(m.Content, want) || done {
			t.Errorf("%s: %+v, %v", args, m, done)
		}
	}
	for n := range 10 {
		if m, done := call(t, s, "step", fmt.Sprintf(`{"number":%d,"mood":"unsure"}`, n)); done {
			if score, err := s.Score(t.Context()); err != nil || *score.Rewards.Total() != 1 || m.Content != "right" {
				t.Errorf("score %+v, %v, %+v", score, err, m)
			}
			return
		}
	}
	t.Error("no digit is right")
}

func realTools(t *testing.T, r *real, path, actions string) {
	e := openReal(t, r, path, func(c *Config) { c.Actions, c.Alt = actions, "a dot" })
	s := begin(t, e, `{"prompt":"Add 2 and 3."}`)
	var told []string
	for _, tool := range s.Tools() {
		told = append(told, tool.Name+": "+tool.Description)
	}
	if got := strings.Join(told, " "); !strings.Contains(got, "add: Add two numbers.") || len(told) != 4 {
		t.Fatalf("tools %s", got)
	}
	for _, test := range []struct{ tool, args, want string }{
		{"add", `{"a":2,"b":3}`, "5"},
		{"add", `{"a":2}`, "error: arguments of add"},
		{"fail", `{"why":"no reason"}`, "error: "},
		{"subtract", `{}`, "there is no tool"},
	} {
		if m, done := call(t, s, test.tool, test.args); !strings.Contains(m.Content, test.want) || done {
			t.Errorf("%s%s: %+v, %v", test.tool, test.args, m, done)
		}
	}
	m, _ := call(t, s, "draw", `{}`)
	if len(m.Images) != 1 || m.Content != "a dot" || m.Images[0].MIME != "image/png" || string(m.Images[0].Data) != "not really a png" || m.Images[0].Alt != "a dot" {
		t.Errorf("a drawing is %+v", m)
	}
	m, done := call(t, s, "finish", `{"answer":"5"}`)
	score, err := s.Score(t.Context())
	if err != nil || m.Content != "thanks for 5" || score.Metrics["errors"] != 1 {
		t.Fatalf("%+v, score %+v, %v", m, score, err)
	}
	// Only a step has a reward and an end.
	if total := score.Rewards.Total(); path == "/desk" && (!done || total == nil || *total != 1) || path == "/rpc" && (done || total != nil) {
		t.Errorf("done %v, score %+v", done, score)
	}
}

func realRaises(t *testing.T, r *real) {
	server := openReal(t, r, "/echo", nil)
	s := begin(t, server, `{}`)
	if _, _, err := say(t, s, "raise"); err == nil || !strings.Contains(err.Error(), "that was no move") || !strings.Contains(err.Error(), `raises = "policy"`) {
		t.Errorf("error %v", err)
	}
	policy := openReal(t, r, "/echo", func(c *Config) { c.Raises, c.Show = "policy", []string{"text"} })
	s = begin(t, policy, `{}`)
	if got, done, err := say(t, s, "raise"); err != nil || got != "error: that was no move" || done {
		t.Errorf("%q, %v, %v", got, done, err)
	}
	plays(t, s)
	moody := openReal(t, r, "/moody", func(c *Config) { c.Show = []string{"text"} })
	if _, err := env.Begin(t.Context(), moody, json.RawMessage(`{"mood":"bad"}`), 1); err == nil || !strings.Contains(err.Error(), "not in the mood") {
		t.Errorf("error %v", err)
	}
	plays(t, begin(t, moody, `{}`))
	if _, err := tryReal(t, r, "/unmakable", func(c *Config) { c.StartS = 5 }); err == nil || !strings.Contains(err.Error(), "FACTORY_ERROR") {
		t.Errorf("error %v", err)
	}
}

// The contract of package env, with a real server on the other side.
func TestRealConformance(t *testing.T) {
	e := openReal(t, serverNewest(t), "/number", func(c *Config) { c.Tasks, c.Turns, c.Episodes = 20, 6, 1000 })
	envtest.Run(t, e, func(rng *rand.Rand, _ []env.Message, _ []env.Tool) env.Message {
		return env.Message{Role: env.RoleAssistant, ToolCalls: []env.ToolCall{{Name: "step", Arguments: fmt.Sprintf(`{"number":%d}`, rng.IntN(10))}}}
	})
}

// A server of OpenEnv's defaults has one place: eight rollouts at once are played one after the other.
func TestRealCapacity(t *testing.T) {
	r := serverNewest(t)
	for _, path := range []string{"/one", "/three"} {
		e := openReal(t, r, path, func(c *Config) { c.Show = []string{"text"} })
		var all errgroup.Group
		for range 8 {
			all.Go(func() error {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				s, err := env.Begin(ctx, e, json.RawMessage(`{}`), 1)
				if err != nil {
					return err
				}
				defer s.Close()
				for _, text := range []string{"a", "b", "bye"} {
					if _, err := s.Reply(ctx, env.Assistant(text)); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := all.Wait(); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		e.pool.mu.Lock()
		limit, told := e.pool.limit, e.pool.told
		e.pool.mu.Unlock()
		if want := map[string]int{"/one": 1, "/three": 3}[path]; told != want || limit > want {
			t.Errorf("%s: the limit is %d, and the server has said %d", path, limit, told)
		}
	}
}

// Too much, and a hang, cost their episode.
func TestRealFaults(t *testing.T) {
	e := openReal(t, serverNewest(t), "/echo", func(c *Config) { c.ReplyKB, c.TimeoutS, c.Show = 256, 5, []string{"text"} })
	for text, want := range map[string]string{"big": "reply_kb", "hang": "no answer to step in 5s"} {
		broken, other := begin(t, e, `{}`), begin(t, e, `{}`)
		if _, _, err := say(t, broken, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", text, err)
		}
		plays(t, other)
		plays(t, begin(t, e, `{}`))
	}
}

// SIGKILL of the server, or its exit, in the middle of episodes: they end as errors at once, and when it is back there are others.
func TestRealKill(t *testing.T) {
	need.OpenEnv(t, installed)
	r, err := launch("", "0")
	if err != nil {
		t.Fatal(err)
	}
	e := openReal(t, r, "/echo", func(c *Config) { c.Show = []string{"text"} })
	a, b := begin(t, e, `{}`), begin(t, e, `{}`)
	if _, _, err := say(t, a, "x"); err != nil {
		t.Fatal(err)
	}
	r.kill(t)
	for _, s := range []*env.Session{a, b} {
		if _, _, err := say(t, s, "y"); err == nil || !strings.Contains(err.Error(), errBroken.Error()) {
			t.Errorf("error %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	next := make(chan error, 1)
	go func() { // it waits for the server
		s, err := env.Begin(t.Context(), e, json.RawMessage(`{}`), 1)
		if err == nil {
			_, err = s.Reply(t.Context(), env.Assistant("bye"))
			_ = s.Close()
		}
		next <- err
	}()
	again, err := launch("", r.url[strings.LastIndex(r.url, ":")+1:])
	if err != nil {
		t.Fatal(err)
	}
	defer again.kill(t)
	if err := <-next; err != nil {
		t.Error(err)
	}
	exits := begin(t, e, `{}`)
	if _, _, err := say(t, exits, "exit"); err == nil || !strings.Contains(err.Error(), errBroken.Error()) {
		t.Errorf("error %v", err)
	}
}
