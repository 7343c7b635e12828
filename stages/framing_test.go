package stages

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/sr/srfake"
)

// TestRunKeepsItsRegistry sets a run up without a schema registry, then with one, and then may not go back; nor may an
// audit.
func TestRunKeepsItsRegistry(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	reg := srfake.New()
	defer reg.Close()
	dir := t.TempDir()
	with := func(urls []string, do func(*App) error) error {
		cfg := DefaultConfig()
		cfg.Dir, cfg.SchemaRegistry.URLs = dir, urls
		app, err := NewApp(cfg, cluster.ListenAddrs(), "test", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer app.Close()
		return do(app)
	}
	setUp := func(urls ...string) error {
		return with(urls, func(a *App) error { return a.SetUp(t.Context()) })
	}
	for _, urls := range [][]string{nil, nil, {reg.URL()}, {reg.URL()}} {
		if err := setUp(urls...); err != nil {
			t.Fatal(err)
		}
	}
	if !reg.SubjectExists("prl.Trace") {
		t.Error("the schemas are not registered")
	}
	if err := setUp(); err == nil || !strings.Contains(err.Error(), "schema_registry.urls is empty") || !strings.Contains(err.Error(), reg.URL()) {
		t.Errorf("error %v", err)
	}
	audit := func(a *App) error {
		_, err := a.Audit(t.Context())
		return err
	}
	if err := with([]string{reg.URL()}, audit); err != nil {
		t.Error(err)
	}
	if err := with(nil, audit); err == nil || !strings.Contains(err.Error(), "schema_registry.urls is empty") {
		t.Errorf("audit without the registry: error %v", err)
	}
	err = with([]string{reg.URL()}, func(a *App) error {
		a.Config.Run.MaxSteps++
		return audit(a)
	})
	if err == nil || !strings.Contains(err.Error(), "run.max_steps") {
		t.Errorf("audit with other settings: error %v", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := setUp(); err != nil {
		t.Errorf("a run that begins anew: %v", err)
	}
}
