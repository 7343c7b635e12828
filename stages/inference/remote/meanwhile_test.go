package remote

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/internal/lm"
	"github.com/prl-project/prl/stages/internal/standin"
)

// TestARestartDuringALoad: a server that is started anew when it has the weights, before anybody could give them their label,
// is given them again, and serves nothing else under it.
func TestARestartDuringALoad(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		s := start(t, base(t))
		b := run(t, config(backend, s.URL))
		restarted := false
		s.OnLoad(func() { restarted = true; s.Restart() })
		load(t, b, 3)
		if n := s.Counts().Loads; !restarted || n != 2 {
			t.Errorf("restarted: %t, %d loads", restarted, n)
		}
		by(t, ask(t, b, request(1, 4)), from(0, 3))
	})
}

// TestTwoStagesBesideOneServer: what another stage loads while this one does is not served as this one's.
func TestTwoStagesBesideOneServer(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		s := start(t, base(t))
		b := run(t, config(backend, s.URL))
		other, err := New(runtime(t), config(backend, s.URL), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := other.folders.put(policy(t, 9))
		if err != nil {
			t.Fatal(err)
		}
		met := false
		s.OnLoad(func() {
			met = true
			d, c, loading := other.home.make, other.home.servers[0].client, newLoadingLabel()
			for _, err := range []error{d.pause(soon(t), c), d.relabel(soon(t), c, loading), d.load(soon(t), c, theirs.folder, loading, theirs.label)} {
				if err != nil {
					t.Error(err)
				}
			}
		})
		load(t, b, 3)
		if n := s.Counts().Loads; !met || n != 3 {
			t.Errorf("met: %t, %d loads, want one of theirs between two", met, n)
		}
		by(t, ask(t, b, request(1, 4)), from(0, 3))
	})
}

// TestTheSameFailure reads the same, whatever port it was asked from: so it is logged once.
func TestTheSameFailure(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			err = errors.Join(conn.(*net.TCPConn).SetLinger(0), conn.Close())
		}
		if err != nil {
			t.Error(err)
		}
	}))
	defer s.Close()
	c := &client{base: s.URL, http: s.Client()}
	first, second := vllm{}.health(soon(t), c), vllm{}.health(soon(t), c)
	if first == nil || second == nil || !strings.Contains(first.Error(), "reset by peer") || first.Error() != second.Error() {
		t.Errorf("%v, then %v", first, second)
	}
}

// TestHealthOfServers: the stage is ready while a server can answer or is given another version, and not when all are gone.
func TestHealthOfServers(t *testing.T) {
	s := standin.NewVLLM(t, base(t))
	rt := runtime(t)
	rt.Health = &pipeline.Health{}
	b := runWith(t, rt, config(inference.BackendVLLM, s.URL), t.TempDir())
	if rt.Health.Ready(healthServers) || b.Alive() {
		t.Error("ready before it holds a version")
	}
	load(t, b, 0)
	if !rt.Health.Ready(healthServers) || !b.Alive() {
		t.Error("not ready with a server that holds the version")
	}
	given := false
	s.OnLoad(func() {
		given = true
		if !rt.Health.Ready(healthServers) || !b.Alive() {
			t.Error("not ready while it is given another version")
		}
	})
	load(t, b, 1)
	if !given {
		t.Error("it was not given another version")
	}
	s.Kill()
	became(t, b.home, "it is out", func() bool { return b.home.servers[0].why != nil })
	if rt.Health.Ready(healthServers) || b.Alive() {
		t.Error("ready without a server")
	}
	s.Start()
	became(t, b.home, "it is back", func() bool { return len(b.home.ready(nil)) == 1 })
	if !rt.Health.Ready(healthServers) || !b.Alive() {
		t.Error("not ready when the server is back")
	}
}

// TestHeldWhileServersSwap: a request waits as long as servers are given new weights, and no longer than its patience where
// they are gone.
func TestHeldWhileServersSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := New(runtime(t), config(inference.BackendVLLM, "http://one", "http://two"), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		f := b.home
		patience, goal := time.Duration(f.cfg.Patience), target{version: 1}
		f.goal = &goal
		set := func(to state, why error, holds target) {
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, s := range f.servers {
				s.state, s.why, s.holds = to, why, holds
			}
			f.broadcast()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		set(busy, nil, target{})
		time.AfterFunc(3*patience+time.Second, func() { set(ready, nil, goal) })
		var tried []*server
		if _, err := f.take(ctx, 1, nil, &tried); err != nil {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		began = time.Now()
		set(down, errors.New("refused"), target{})
		if _, err := f.take(ctx, 1, nil, &tried); err == nil || time.Since(began) != patience {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// TestFoldersWhileOneIsWritten: other versions are found and given up however long it takes to write one.
func TestFoldersWhileOneIsWritten(t *testing.T) {
	dir, p := t.TempDir(), policy(t, 2)
	f := newFolders("test", dir, "")
	if _, err := f.put(policy(t, 1)); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(p.Weights)
	slow := filepath.Join(dir, fmt.Sprintf("v000002-%x", sum[:6]), "model.safetensors") // a pipe, which is read to its end
	if err := errors.Join(os.Mkdir(filepath.Dir(slow), 0o755), syscall.Mkfifo(slow, 0o600)); err != nil {
		t.Fatal(err)
	}
	put := make(chan error, 1)
	go func() {
		_, err := f.put(p)
		put <- err
	}()
	pipe, err := os.OpenFile(slow, os.O_WRONLY, 0) // returns when it is being read
	if err != nil {
		t.Fatal(err)
	}
	removed := make(chan error, 1)
	go func() { removed <- f.remove(1) }()
	select {
	case err = <-removed:
	case <-soon(t).Done():
		err = errors.New("it waits for the version that is written")
	}
	if _, there := f.of(1); err != nil || there {
		t.Errorf("version 1 is there: %t, %v", there, err)
	}
	if err := errors.Join(pipe.Close(), <-put); err != nil {
		t.Fatal(err)
	}
	if _, there := f.of(2); !there {
		t.Error("version 2 is not there")
	}
}
