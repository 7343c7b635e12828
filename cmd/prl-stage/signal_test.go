package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// child is the pid of the one process that p has started.
func (p *process) child(t *testing.T) int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		var state string
		var pid, parent int
		if _, err := fmt.Sscan(rest, &state, &parent); err != nil || parent != p.cmd.Process.Pid {
			continue
		}
		if _, err := fmt.Sscan(string(stat), &pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	t.Fatal("the process has no child")
	return 0
}

// stopped reports whether every thread of p stands still. On a busy machine that takes a while after SIGSTOP.
func (p *process) stopped(t *testing.T) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("%d threads, %v", len(threads), err)
	}
	for _, path := range threads {
		stat, err := os.ReadFile(path)
		if _, state, _ := strings.Cut(string(stat), ") "); err != nil || !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return true
}

// TestBrokerDies kills the embedded broker under the pipeline: the pipeline ends, and says where to look and how to go on.
func TestBrokerDies(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := all(t, dir, nil, "run.max_steps=1000")
	p.await(t, "the first weights", func() bool {
		weights, err := filepath.Glob(filepath.Join(dir, "test", "blobs", "weights", "*"))
		return err == nil && len(weights) > 1
	})
	if err := syscall.Kill(p.child(t), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.done:
	case <-time.After(runDeadline):
		t.Fatal("the pipeline goes on without a broker")
	}
	if said := p.text(&p.stderr); p.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(said, "the embedded broker has ended; its last words are in "+dir) || !strings.Contains(said, "the same command goes on from here") {
		t.Errorf("it ended with %v", p.cmd.ProcessState)
	}
}

// TestSecondSignalEndsAtOnce stops a stage that cannot stop in order, as its broker does not answer: a second signal ends
// it there and then.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	args := func(stage string, more ...string) []string {
		return append([]string{"--stage", stage, "--config", orderedConfig, "--run", "test", "--set", "dir=" + t.TempDir()}, more...)
	}
	b := startStage(t, nil, args("broker", "--telemetry", "", "--set", "broker.listen=localhost:0")...)
	p := startStage(t, nil, args("scorer", "--telemetry", "localhost:0", "--leave", "--brokers", b.logged(t, "broker serves", "addr="))...)
	url := p.logged(t, "metrics, healthz and readyz", "addr=")
	p.await(t, "that it is ready", func() bool {
		resp, err := http.Get(url + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	if err := b.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	b.await(t, "that all its threads stand still", func() bool { return b.stopped(t) })
	for ended := false; !ended; {
		if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		select {
		case <-p.done:
			ended = true
		case <-time.After(100 * time.Millisecond): // the first signal is on its way through the process
		}
	}
	if s := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !s.Signaled() || s.Signal() != syscall.SIGINT {
		t.Errorf("it ended with %v, not by the second signal", p.cmd.ProcessState)
	}
}
