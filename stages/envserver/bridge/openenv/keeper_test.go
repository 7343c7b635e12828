package openenv

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
)

// vacant is an address at which nobody listens.
func vacant(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// A command that cannot be of any use is said so at once, with what it has printed.
func TestBadCommands(t *testing.T) {
	at := vacant(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for want, test := range map[string]struct {
		at      string
		command []string
	}{
		"no-such-program":        {at, []string{"no-such-program"}},
		"command":                {at, []string{""}},
		"ModuleNotFound: my_env": {at, []string{"sh", "-c", "echo ModuleNotFound: my_env >&2; exit 3"}},
		"exit status 3":          {at, []string{"sh", "-c", "exit 3"}},
		"leave command out":      {l.Addr().String(), []string{"sh", "-c", "exec sleep 100"}},
		"start_s":                {at, []string{"sh", "-c", "exec sleep 100"}},
	} {
		cfg := Defaults()
		cfg.Command = test.command
		if want == "start_s" {
			cfg.StartS = 0.2
		}
		start := time.Now()
		_, err := New("mine", "http://"+test.at, t.TempDir(), cfg)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "unsupported") {
			t.Errorf("%q: error %v after %v, want one with %q", test.command, err, time.Since(start), want)
		}
	}
}

// A server that this bridge starts is played, is started again with nothing left of the one before when it was killed, and is gone
// after Close, with all that it has started.
func TestKeptServer(t *testing.T) {
	need.OpenEnv(t, installed)
	python, err := filepath.Abs(filepath.Join(installed, "bin", "python"))
	if err != nil {
		t.Fatal(err)
	}
	logs, at := t.TempDir(), vacant(t)
	_, port, _ := net.SplitHostPort(at)
	pids := filepath.Join(logs, "pids")
	cfg := Defaults()
	cfg.StartS = 120
	// The server ends with its input, so something has to hold that open.
	cfg.Command = []string{"sh", "-c", `echo $$ >>"$0"; echo "started $0"; sleep 1000 | "$1" testdata/server.py "$2"`, pids, python, port}
	groups := func() (all []int) {
		text, err := os.ReadFile(pids)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var pid int
			if _, err := fmt.Sscan(line, &pid); err != nil {
				t.Fatal(err)
			}
			all = append(all, pid)
		}
		return all
	}
	e, err := New("mine", "http://"+at+"/echo", logs, cfg)
	if err != nil {
		t.Fatal(err)
	}
	plays := func() {
		t.Helper()
		s := begin(t, e, `{}`)
		if _, _, err := say(t, s, "hello"); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	plays()
	if err := syscall.Kill(groups()[0], syscall.SIGKILL); err != nil { // the shell alone: its children go on
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); len(groups()) < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is not started again")
		}
	}
	plays()
	if err := errors.Join(e.Close(), e.Close()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) { // a process closes what it has after it is gone
		c, err := net.Dial("tcp", at)
		if err != nil {
			break
		}
		if err := c.Close(); err != nil || time.Now().After(deadline) {
			t.Fatalf("somebody answers after Close: %v", err)
		}
	}
	text, err := os.ReadFile(filepath.Join(logs, "mine.log"))
	if err != nil || strings.Count(string(text), "started "+pids) != 2 || !strings.Contains(string(text), "signal: killed") {
		t.Errorf("the log is %s, %v", text, err)
	}
}
