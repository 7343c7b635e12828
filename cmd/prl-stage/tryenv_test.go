package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alecthomas/kong"
)

// byHand is prl-stage in an empty folder, which must stay empty.
func byHand(t *testing.T, stdin io.Reader, args ...string) (cmd *exec.Cmd, out, errs *bytes.Buffer) {
	t.Helper()
	cmd, out, errs = exec.Command(os.Args[0], append([]string{"--stage", "envserver", "--env", "wordle"}, args...)...), &bytes.Buffer{}, &bytes.Buffer{}
	cmd.Env, cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = append(os.Environ(), "PRL_TEST_MAIN=1"), t.TempDir(), stdin, out, errs
	t.Cleanup(func() {
		if left, err := os.ReadDir(cmd.Dir); err != nil || len(left) > 0 {
			t.Errorf("it left %v, %v", left, err)
		}
	})
	return cmd, out, errs
}

// TestPlayFlags plays a word with options, without a broker.
func TestPlayFlags(t *testing.T) {
	cmd, out, errs := byHand(t, strings.NewReader("crane\n/next\n"), "--play", "--split", "eval", "--task", "2", "--set", "envs.wordle.options.prompt=full")
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, errs)
	}
	for _, want := range []string{"task 2 of eval, seed 0", "You play Wordle", "Guesses left: 5", "reward     ", `{"answer":"`, "task 3 of eval, seed 1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
}

// TestPlayStopsInOrder interrupts while nobody types.
func TestPlayStopsInOrder(t *testing.T) {
	cmd, out, errs := byHand(t, nil, "--play")
	cmd.Stdout = nil
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := time.AfterFunc(runDeadline, func() { _ = cmd.Process.Kill() })
	defer killed.Stop()
	for !strings.HasSuffix(out.String(), "> ") { // it waits for a reply
		b := make([]byte, 1)
		if _, err := stdout.Read(b); err != nil {
			t.Fatalf("%v after\n%s\n%s", err, out, errs)
		}
		out.Write(b)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, stdout); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, errs)
	}
}

// TestTryFlags lets a server play two words.
func TestTryFlags(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var asked struct {
			Model       string
			Temperature float64
			MaxTokens   int `json:"max_tokens"`
		}
		if err == nil {
			err = json.Unmarshal(body, &asked)
		}
		if err != nil || r.URL.Path != "/v1/chat/completions" || asked.Model != "m" || asked.Temperature != 0.25 || asked.MaxTokens != 9 {
			t.Errorf("%s got %s, %v", r.URL.Path, body, err)
		}
		fmt.Fprint(w, `{"choices":[{"finish_reason":"stop","message":{"role":"assistant","content":"crane"}}],"usage":{"prompt_tokens":2,"completion_tokens":1}}`)
	}))
	defer server.Close()
	cmd, out, errs := byHand(t, nil, "--try", "2", "--url", server.URL, "--model", "m", "--temperature", "0.25", "--json", "--set", "envs.wordle.max_tokens=9",
		"--set", "envs.wordle.max_rollout_tokens=64")
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, errs)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for _, l := range lines {
		var res struct {
			Reward     *float64
			Replies    int
			StopReason string `json:"stop_reason"`
		}
		if err := json.Unmarshal([]byte(l), &res); err != nil || res.Reward == nil || res.Replies != 6 || res.StopReason != "lost" {
			t.Errorf("%v: %s", err, l)
		}
	}
	if len(lines) != 2 || !strings.Contains(errs.String(), "2 rollouts: 2 scored, 0 failed") {
		t.Errorf("%d lines, and\n%s", len(lines), errs)
	}
}

// TestTryRefuses refuses flags that do not go together, and says what to do.
func TestTryRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"--stage envserver --play":                                                    "name it with --env",
		"--stage envserver --env echo --env wordle --play":                            "name it with --env",
		"--stage trainer --play --env echo":                                           "--stage envserver",
		"--stage envserver --env echo --play --try 3":                                 "leave one out",
		"--stage envserver --env echo --play --json":                                  "are for --try N",
		"--stage envserver --env echo --play --temperature 0":                         "are for --try N",
		"--stage envserver --env echo --try 3":                                        "--url http://localhost:8000",
		"--stage envserver --env echo --try 0 --url http://localhost:1":               "--try 0: at least 1",
		"--stage envserver --env echo --try 1 --url http://localhost:1 --parallel 0":  "--parallel 0",
		"--stage envserver --env echo --try 1 --url http://a:1 --url http://b:1":      "--try asks one server",
		"--stage envserver --env echo --try 1 --url http://a:1 --backend vllm":        "--backend is for --stage inference",
		"--stage envserver --env echo --try 1 --url http://a:1 --token-env HOME":      "use https",
		"--stage envserver --env echo --try 1 --url http://a:1 --task 1000000":        "(--task)",
		"--stage envserver --env echo --seed 3":                                       "for --play and --try N",
		"--stage envserver --env echo --temperature 3":                                "for an eval by hand",
		"--stage eval --env echo --split eval":                                        "for --play and --try N",
		"--stage envserver --env nothing --play":                                      `no environment "nothing"`,
		"--stage envserver --env echo --play --set envs.echo.options.no_such_thing=1": "envs.echo.options has no option no_such_thing",
	} {
		var f flags
		parser, err := kong.New(&f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if err := run(f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", args, err, want)
		}
	}
}
