package main

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/broker"
)

// TestMain turns the test binary into prl-stage itself where PRL_TEST_MAIN is set, children included.
func TestMain(m *testing.M) {
	if os.Getenv("PRL_TEST_MAIN") != "" {
		main()
		os.Exit(0)
	}
	_ = os.Setenv(passwordEnv, password) // for all tests at once: those that need it run beside others
	os.Exit(m.Run())
}

// A process is prl-stage in a process of its own.
type process struct {
	cmd    *exec.Cmd
	done   chan struct{}
	mu     sync.Mutex
	stdout strings.Builder
	stderr strings.Builder
}

// startStage starts prl-stage; it is killed at the end of the test should it still run.
func startStage(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), "PRL_TEST_MAIN=1"), env...)
	cmd.Dir = repository(t)
	p := &process{cmd: cmd, done: make(chan struct{})}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var copies sync.WaitGroup
	copies.Go(func() { p.collect(&p.stdout, out) })
	copies.Go(func() { p.collect(&p.stderr, errs) })
	go func() {
		copies.Wait()
		_ = cmd.Wait() // how it ended is in ProcessState
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("prl-stage %s\n%s%s", strings.Join(args, " "), p.text(&p.stdout), tail(p.text(&p.stderr), 4000))
		}
	})
	return p
}

func (p *process) collect(to *strings.Builder, from io.Reader) {
	for lines := bufio.NewScanner(from); lines.Scan(); {
		p.mu.Lock()
		to.WriteString(lines.Text() + "\n")
		p.mu.Unlock()
	}
}

func (p *process) text(b *strings.Builder) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return b.String()
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// ended waits for the process to end by itself, without an error.
func (p *process) ended(t *testing.T, deadline time.Duration) string {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(deadline):
		t.Fatalf("the process has not ended after %v", deadline)
	}
	if !p.cmd.ProcessState.Success() {
		t.Fatalf("the process ended with %v", p.cmd.ProcessState)
	}
	return p.text(&p.stdout)
}

// refused waits for the process to end with an error, and gives what it said.
func (p *process) refused(t *testing.T, deadline time.Duration) string {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(deadline):
		t.Fatalf("the process has not ended after %v", deadline)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 1 {
		t.Fatalf("the process ended with %v, want 1", p.cmd.ProcessState)
	}
	return p.text(&p.stderr)
}

// killed waits for the process to end by SIGKILL and fails if it ended otherwise.
func (p *process) killed(t *testing.T, deadline time.Duration) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(deadline):
		t.Fatalf("the process was not killed within %v", deadline)
	}
	if s := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !s.Signaled() || s.Signal() != syscall.SIGKILL {
		t.Fatalf("the process ended with %v, not by SIGKILL", p.cmd.ProcessState)
	}
}

func repository(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var shaLine = regexp.MustCompile(`weights SHA-256 ([0-9a-f]{64})`)

// finalWeights reads the SHA-256 of the last weights from the summary.
func finalWeights(t *testing.T, stdout string) string {
	t.Helper()
	m := shaLine.FindStringSubmatch(stdout)
	if m == nil {
		t.Fatalf("no summary in:\n%s", tail(stdout, 2000))
	}
	return m[1]
}

// audit serves the run's data once more and checks the invariants in it.
func audit(t *testing.T, dir, run string, sets ...string) {
	t.Helper()
	withServed(t, dir, run, sets, func(ctx context.Context, app *stages.App) {
		report, err := app.Audit(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range report.Violations {
			t.Error(v)
		}
		if report.Packed == 0 || report.Versions < 2 || !report.Ended {
			t.Errorf("nothing to audit, or the run has not ended:\n%v", report)
		}
		t.Logf("audited %d groups, %d rollouts, %d packed, %d versions", report.Groups, report.Rollouts, report.Packed, report.Versions)
	})
}

// withServed serves the data of a run that stands still while look does.
func withServed(t *testing.T, dir, run string, sets []string, look func(context.Context, *stages.App)) {
	t.Helper()
	cfg, err := configure(flags{Config: filepath.Join(repository(t), orderedConfig), Set: append(sets, "dir="+dir), Run: run})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	addr := make(chan string, 1)
	served := make(chan error, 1)
	go func() {
		served <- broker.Serve(ctx, brokerDir(cfg), broker.Config{Listen: "localhost:0"}, log, func(a string) { addr <- a })
	}()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	var a string
	select {
	case a = <-addr:
	case err := <-served:
		t.Fatalf("serve the run's data: %v", err)
	}
	app, err := stages.NewApp(cfg, []string{a}, "audit", log)
	if err != nil {
		t.Fatal(err)
	}
	look(ctx, app)
}

// logged waits for a log line that holds message and returns the value behind key in it.
func (p *process) logged(t *testing.T, message, key string) (value string) {
	t.Helper()
	p.await(t, message, func() bool {
		for line := range strings.SplitSeq(p.text(&p.stderr), "\n") {
			if _, after, ok := strings.Cut(line, key); ok && strings.Contains(line, message) {
				value, _, _ = strings.Cut(after, " ")
				value = strings.TrimSpace(value)
				return true
			}
		}
		return false
	})
	return value
}

func (p *process) await(t *testing.T, what string, there func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !there() {
		select {
		case <-deadline:
			t.Fatalf("the process never said %q", what)
		case <-p.done:
			if !there() {
				t.Fatalf("the process ended and never said %q", what)
			}
		case <-time.After(20 * time.Millisecond):
		}
	}
}
