package pipeline

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain turns the test binary into one instance of the toy stage where PRL_TOY names the brokers.
func TestMain(m *testing.M) {
	if brokers := os.Getenv("PRL_TOY"); brokers != "" {
		if err := toyMain(strings.Split(brokers, ",")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			if errors.Is(err, ErrFenced) {
				os.Exit(3)
			}
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func toyMain(brokers []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "toy")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	blobs, err := OpenBlobs(dir)
	if err != nil {
		return err
	}
	rt := newRuntime(brokers, os.Getenv("PRL_TOY_INSTANCE"), blobs, os.Stderr)
	rt.Run.Name = os.Getenv("PRL_TOY_RUN")
	if rt.Run.TracePartitions, err = strconv.Atoi(os.Getenv("PRL_TOY_PARTITIONS")); err != nil {
		return err
	}
	cfg := toyConfig()
	if timeout := os.Getenv("PRL_TOY_TIMEOUT"); timeout != "" {
		if cfg.TransactionTimeout, err = time.ParseDuration(timeout); err != nil {
			return err
		}
	}
	p, err := NewProcessor(rt, cfg)
	if err != nil {
		return err
	}
	return p.Run(ctx)
}

// A toy is the toy stage in a process of its own.
type toy struct {
	cmd  *exec.Cmd
	done chan struct{}
	code int
	last string // line of its log
}

func startToy(t *testing.T, rt *Runtime, instance string, env ...string) *toy {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), "PRL_TOY="+strings.Join(rt.Brokers, ","), "PRL_TOY_RUN="+rt.Run.Name, "PRL_TOY_INSTANCE="+instance,
		"PRL_TOY_PARTITIONS="+strconv.Itoa(rt.Run.TracePartitions)), env...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &toy{cmd: cmd, done: make(chan struct{})}
	go func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			p.last = lines.Text()
			if os.Getenv("PRL_TEST_VERBOSE") != "" {
				fmt.Fprintln(os.Stderr, instance, lines.Text())
			}
		}
		_ = cmd.Wait() // the exit code says how it ended
		p.code = cmd.ProcessState.ExitCode()
		close(p.done)
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-p.done })
	return p
}

func (p *toy) signal(t *testing.T, sig os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("signal %v: %v", sig, err)
	}
}

// kill ends the process with SIGKILL and asserts that it was that which ended it.
func (p *toy) kill(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGKILL)
	p.died(t)
}

func (p *toy) died(t *testing.T) {
	t.Helper()
	p.ended(t)
	if status := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("the process ended with %v, not by SIGKILL", p.cmd.ProcessState)
	}
}

// ended waits for the end and gives the exit code.
func (p *toy) ended(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		t.Fatal("the process does not end")
	}
	return p.code
}

// stopped waits until the process has stopped itself.
func (p *toy) stopped(t *testing.T) {
	t.Helper()
	await(t, "the process to stop itself", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, state, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(state, "T")
	})
}

// await looks again and again until there is what the test waits for.
func await(t testing.TB, what string, there func() bool) {
	t.Helper()
	for deadline := time.Now().Add(40 * time.Second); !there(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s in vain", what)
		}
	}
}
