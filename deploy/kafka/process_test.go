package kafka

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestProcessDiesWhenNobodyHoldsIt closes what the end of this process would close, while the command is paused.
func TestProcessDiesWhenNobodyHoldsIt(t *testing.T) {
	p := startSleep(t)
	if err := p.pause(); err != nil {
		t.Fatal(err)
	}
	if err := p.hold.Close(); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, p)
}

func TestProcessKill(t *testing.T) {
	p := startSleep(t)
	if err := p.pause(); err != nil {
		t.Fatal(err)
	}
	if err := p.kill(); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, p)
}

func TestPausedProcessTerminates(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	p, err := startProcess(log, []string{"sh", "-c", `trap "exit 0" TERM; echo trapped; while :; do sleep 0.05; done`})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if said, err := os.ReadFile(log); err != nil || time.Now().After(deadline) {
			t.Fatalf("the command says nothing: %v", err)
		} else if len(said) > 0 {
			break
		}
	}
	if err := p.pause(); err != nil {
		t.Fatal(err)
	}
	if err := p.terminate(); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, p)
}

func TestProcessThatEndsIsSeen(t *testing.T) {
	p, err := startProcess(filepath.Join(t.TempDir(), "log"), []string{"true"})
	if err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, p)
	if err := p.terminate(); err != nil {
		t.Error(err)
	}
}

func startSleep(t *testing.T) *process {
	t.Helper()
	p, err := startProcess(filepath.Join(t.TempDir(), "log"), []string{"sleep", "600"})
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.pid, 0); err != nil {
		t.Fatalf("the command does not run: %v", err)
	}
	return p
}

// awaitEnd fails unless the command and its shell end.
func awaitEnd(t *testing.T, p *process) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		_ = p.kill()
		t.Fatal("it runs on")
	}
	if p.running() {
		t.Error("running")
	}
	if err := syscall.Kill(p.pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the command is not buried: %v", err)
	}
}
