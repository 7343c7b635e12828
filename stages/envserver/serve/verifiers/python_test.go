package verifiers

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"testing"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
)

// client runs a script with a version of the package. When a model that hangs is asked the script is told so.
func client(t *testing.T, version, script, address string, m *models) {
	t.Helper()
	home := "../../../../.cache/verifiers-" + version
	need.Verifiers(t, home)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, home+"/bin/python", "testdata/"+script, address, m.URL)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		select {
		case <-m.asked:
			_, _ = io.WriteString(in, "\n")
		case <-ctx.Done():
		}
	}()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
}

// The client of 0.4.0 plays, and a rollout that it cancels stops asking the model.
func TestClient040(t *testing.T) {
	t.Setenv("PRL_TEST_KEY", "secret")
	m := newModels(t)
	address, _ := start(t, words(t), usual(t, m.URL))
	client(t, "0.4.0", "client040.py", address, m)
	<-m.left
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.seen {
		if h.Get("Authorization") != "Bearer secret" || h.Get("X-Mine") != "1" || h.Get("X-Session-Id") == "" {
			t.Fatalf("asked with %v", h)
		}
	}
}

func TestClient021(t *testing.T) {
	m := newModels(t)
	cfg := usual(t, m.URL)
	cfg.Wire = Wire021
	address, _ := start(t, words(t), cfg)
	client(t, "0.2.1", "client021.py", address, m)
}

func TestClient0114(t *testing.T) {
	m := newModels(t)
	address, _ := start(t, words(t), usual(t, m.URL))
	client(t, "0.1.14", "client0114.py", address, m)
	<-m.left
}
