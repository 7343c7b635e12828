package stages

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/sr/srfake"
)

// TestRunKeepsItsRegistry sets a run up without a schema registry, then with one, and then may not go back.
func TestRunKeepsItsRegistry(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	reg := srfake.New()
	defer reg.Close()
	dir := t.TempDir()
	setUp := func(urls ...string) error {
		cfg := DefaultConfig()
		cfg.Dir, cfg.SchemaRegistry.URLs = dir, urls
		app, err := NewApp(cfg, cluster.ListenAddrs(), "test", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer app.Close()
		return app.SetUp(t.Context())
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
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := setUp(); err != nil {
		t.Errorf("a run that begins anew: %v", err)
	}
}
