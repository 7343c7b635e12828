package envserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/internal/lm"
)

// childVariable holds the childConfig of a test binary that is to be a server.
const childVariable = "PRL_ENVSERVER_TEST_CHILD"

// A childConfig is one server in a process of its own.
type childConfig struct {
	Brokers    []string
	Dir        string // of blobs
	Run        string
	Partitions int
	Instance   string
	Leave      bool
	Slots      int
	Takes      time.Duration // for an answer of its model
	Lethal     int           // index of the task whose start kills the process; 0 for none
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		if err := serveChild(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			if errors.Is(err, pipeline.ErrFenced) {
				os.Exit(3)
			}
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serveChild serves until a SIGTERM.
func serveChild(text string) error {
	var c childConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	rt, err := runtimeAt(c.Brokers, c.Dir, slog.New(slog.NewTextHandler(os.Stderr, nil)).With("instance", c.Instance))
	if err != nil {
		return err
	}
	rt.Run.Name, rt.Run.TaskPartitions, rt.Instance, rt.Leave = c.Run, c.Partitions, c.Instance, c.Leave
	tok, err := lm.NewTokenizer("")
	if err != nil {
		return err
	}
	m := &model{answer: func(ctx context.Context, _ int, r inference.Request) (inference.Completion, error) {
		select {
		case <-ctx.Done():
			return inference.Completion{}, ctx.Err()
		case <-time.After(c.Takes):
			return spoken(tok, "hi", r), nil
		}
	}}
	cfg := DefaultConfig()
	cfg.Concurrency = c.Slots
	s, err := New(rt, cfg, map[string]env.Environment{"game": &lethal{index: c.Lethal}}, m, nil)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// lethal is a game of which one task kills the process that starts it.
type lethal struct {
	game
	index int
}

func (l *lethal) Start(ctx context.Context, task json.RawMessage, seed int64) (env.Episode, error) {
	var t struct{ Index int }
	if err := json.Unmarshal(task, &t); err != nil {
		return nil, err
	}
	if l.index > 0 && t.Index == l.index {
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			return nil, err
		}
		select {} // the signal is on its way
	}
	return l.game.Start(ctx, task, seed)
}

// A child is a server in a process of its own.
type child struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// startChild starts a server; it is killed at the end of the test should it still run.
func startChild(t *testing.T, c childConfig, environ ...string) *child {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), childVariable+"="+string(text)), environ...)
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &child{cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in ProcessState
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.done
	})
	return p
}

func (p *child) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("signal %v: %v", s, err)
	}
}

// ended waits for the end of the process and gives how it ended.
func (p *child) ended(t *testing.T) syscall.WaitStatus {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(deadline):
		t.Fatal("the process does not end")
	}
	return p.cmd.ProcessState.Sys().(syscall.WaitStatus)
}

// killed waits for the end of the process and fails unless SIGKILL ended it.
func (p *child) killed(t *testing.T) {
	t.Helper()
	if status := p.ended(t); !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("the process ended with %v, not by SIGKILL", p.cmd.ProcessState)
	}
}
