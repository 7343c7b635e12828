package broker

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain turns the test binary into a broker, or into a parent that starts one, where an argument says so.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		var err error
		switch os.Args[1] {
		case "broker":
			err = Serve(WithParent(context.Background()), os.Args[2], Config{Listen: "localhost:0"}, slog.Default(), AnnounceReady)
		case "parent":
			err = beParent(os.Args[2])
		default:
			os.Exit(m.Run())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// beParent starts a broker, says where, and waits to be killed.
func beParent(dir string) error {
	child, err := StartChild(context.Background(), dir, "broker", dir)
	if err != nil {
		return err
	}
	fmt.Println(child.Addr)
	<-child.Done()
	return fmt.Errorf("the child ended before its parent")
}

// TestBrokerOutlivesAKillOfItsParent kills a parent with SIGKILL: its broker stops in order and lets go of the data, and a
// new one serves them.
func TestBrokerOutlivesAKillOfItsParent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "broker")
	parent := exec.Command(os.Args[0], "parent", dir)
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the parent says nothing")
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := parent.Wait(); err == nil || parent.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the parent ended with %v, not by SIGKILL", parent.ProcessState)
	}
	child, err := StartChild(t.Context(), dir, "broker", dir) // waits for the lock
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Stop(); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(dir, "broker.log"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(log), "broker stopped"); n != 2 {
		t.Errorf("%d brokers stopped in order, want 2:\n%s", n, log)
	}
}

func TestLockIsExclusive(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "broker")
	unlock, err := lock(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := lock(ctx, dir); err == nil {
		t.Fatal("locked twice")
	}
	unlock()
	again, err := lock(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestRemoveKeepsTheLock(t *testing.T) {
	run := t.TempDir()
	dir := filepath.Join(run, "broker")
	if err := os.MkdirAll(filepath.Join(run, "parquet", "traces"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Remove(t.Context(), dir, run); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(run)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || entries[0].Name() != "broker.lock" {
		t.Errorf("left: %v", entries)
	}
	if err := Remove(t.Context(), dir, filepath.Join(run, "missing")); err != nil {
		t.Error(err)
	}
}

func TestConfigServesThisMachineOnly(t *testing.T) {
	for listen, ok := range map[string]bool{"localhost:9092": true, "127.0.0.1:0": true, "[::1]:1": true, "0.0.0.0:9092": false, "broker:9092": false, "localhost": false} {
		if err := (Config{Listen: listen}).Validate(); (err == nil) != ok {
			t.Errorf("%s: %v", listen, err)
		}
	}
}
