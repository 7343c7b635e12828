package main

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prl-project/prl/stages/envserver/bridge/verifiers"
	"github.com/prl-project/prl/stages/envserver/bridge/zmtp"
)

// TestServeOpenEnv offers an environment with options, answers, and ends in order with a session open.
func TestServeOpenEnv(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd, _, errs := byHand(t, nil, "--serve", "http://127.0.0.1:0", "--token-file", token, "--sessions", "1", "--set", "envs.wordle.options.prompt=full")
	cmd.Stdout = nil
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := time.AfterFunc(runDeadline, func() { _ = cmd.Process.Kill() })
	defer killed.Stop()
	lines := bufio.NewReader(stdout)
	first, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("%v\n%s", err, errs)
	}
	at := regexp.MustCompile(`^wordle \S+ is an OpenEnv server at (http://127\.0\.0\.1:\d+): .* up to 1 sessions\.\n$`).FindStringSubmatch(first)
	if at == nil {
		t.Fatalf("it says %q", first)
	}
	ask := func(path, body, token string) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at[1]+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		reply, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer reply.Body.Close()
		said, err := io.ReadAll(reply.Body)
		if err != nil {
			t.Fatal(err)
		}
		return reply.StatusCode, string(said)
	}
	if status, said := ask("/reset", `{"index": 2}`, "secret"); status != http.StatusOK || !strings.Contains(said, "You play Wordle") {
		t.Errorf("%d %s", status, said)
	}
	if status, said := ask("/reset", `{}`, "other"); status != http.StatusUnauthorized {
		t.Errorf("with another token: %d %s", status, said)
	}
	const open = `{"jsonrpc":"2.0","method":"openenv/session/create","id":1}`
	for _, want := range []string{"session_id", "at capacity: 1/1"} {
		if _, said := ask("/mcp", open, "secret"); !strings.Contains(said, want) {
			t.Errorf("%q is missing in %s", want, said)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(lines)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, errs)
	}
	if !bytes.Contains(rest, []byte("GenericEnvClient(base_url=\""+at[1])) || bytes.Contains(rest, []byte("secret")) {
		t.Errorf("it says\n%s", rest)
	}
}

// TestServeVerifiers offers an environment to one rollout after the other, of which the first is under way when the process is
// told to end.
func TestServeVerifiers(t *testing.T) {
	asked := make(chan struct{}, 1)
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("asked with %v", r.Header)
		}
		_, _ = io.Copy(io.Discard, r.Body) // only then is it noticed that who asks has gone
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(model.Close)
	cmd, _, errs := byHand(t, nil, "--serve", "zmq://127.0.0.1:0", "--models", model.URL+"=PRL_TEST_MODEL_KEY")
	cmd.Stdout, cmd.Env = nil, append(cmd.Env, "PRL_TEST_MODEL_KEY=secret")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := time.AfterFunc(runDeadline, func() { _ = cmd.Process.Kill() })
	defer killed.Stop()
	lines := bufio.NewReader(stdout)
	first, err := lines.ReadString('\n')
	at := regexp.MustCompile(`^wordle \S+ is a verifiers environment server at (tcp://127\.0\.0\.1:\d+) \(wire 0\.4\.0\): `).FindStringSubmatch(first)
	if err != nil || at == nil {
		t.Fatalf("it says %q, %v\n%s", first, err, errs)
	}
	conn, err := zmtp.Dial(t.Context(), at[1], zmtp.Dealer, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	request := verifiers.Pack(map[string]any{
		"task_data": map[string]any{"idx": 0}, "model": "m", "sampling": map[string]any{},
		"client": map[string]any{"type": "eval", "base_url": model.URL + "/v1", "api_key_var": "PRL_TEST_MODEL_KEY"},
	})
	if err := conn.Send([]byte("1"), []byte("run"), request); err != nil {
		t.Fatal(err)
	}
	<-asked
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(lines)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, errs)
	}
	if !bytes.Contains(rest, []byte("EnvClient(\""+at[1])) {
		t.Errorf("it says\n%s", rest)
	}
}

// TestServeRefused refuses what makes no sense, or is not safe, before anything begins.
func TestServeRefused(t *testing.T) {
	for args, want := range map[string]string{
		"--serve http://0.0.0.0:0":                                "can be reached from other machines",
		"--serve http://:8000":                                    "can be reached from other machines",
		"--serve http://localhost":                                "want one such as",
		"--serve http://localhost:0/v1":                           "want one such as",
		"--serve ftp://localhost:1":                               "want http://",
		"--serve zmq://0.0.0.0:0":                                 "has no token",
		"--serve zmq://127.0.0.1:0?wire=0.3.0":                    "want 0.4.0 or 0.2.1",
		"--serve zmq://127.0.0.1:0?split=eval":                    "wire=0.4.0",
		"--serve zmq://127.0.0.1:0 --models here":                 "no URL of a model",
		"--serve zmq://127.0.0.1:0 --tokenizer .":                 "tokenizer.json",
		"--serve zmq://127.0.0.1:0 --token-env X":                 "know no token",
		"--serve http://127.0.0.1:0 --models http://localhost:1":  "for clients of verifiers",
		"--serve http://localhost:0 --play":                       "leave all but one out",
		"--serve http://localhost:0 --url http://localhost:1":     "the clients have theirs",
		"--serve http://localhost:0 --model m":                    "are for --play and --try",
		"--serve http://localhost:0 --env echo":                   "of one environment",
		"--serve http://localhost:0 --sessions 0":                 "at least one",
		"--serve http://localhost:0 --token-env PRL_TEST_NOTHING": "is not set",
		"--sessions 3": "for --serve",
	} {
		cmd, _, errs := byHand(t, nil, strings.Fields(args)...)
		if err := cmd.Run(); err == nil || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: %v, want %q in\n%s", args, err, want, errs)
		}
	}
}
