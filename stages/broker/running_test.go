package broker

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRunning finds a broker by its data, as long as it serves.
func TestRunning(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "broker")
	running := func() string {
		t.Helper()
		addr, err := Running(dir)
		if err != nil {
			t.Fatal(err)
		}
		return addr
	}
	if addr := running(); addr != "" {
		t.Errorf("a broker at %s before any was started", addr)
	}
	for range 2 {
		ctx, stop := context.WithCancel(t.Context())
		ready, served := make(chan string, 1), make(chan error, 1)
		go func() {
			served <- Serve(ctx, dir, Config{Listen: "localhost:0"}, slog.New(slog.NewTextHandler(t.Output(), nil)), func(addr string) { ready <- addr })
		}()
		select {
		case addr := <-ready:
			if got := running(); got != addr {
				t.Errorf("found at %q, it is at %s", got, addr)
			}
		case err := <-served:
			t.Fatal(err)
		}
		stop()
		if err := <-served; err != nil {
			t.Fatal(err)
		}
		if addr := running(); addr != "" {
			t.Errorf("a broker at %s after its end", addr)
		}
		// Nor while it stops, when it still holds the lock.
		if text, err := os.ReadFile(dir + ".lock"); err != nil || strings.TrimSpace(string(text)) != "" {
			t.Errorf("its lock says %q, error %v", text, err)
		}
	}
}
