package stages

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/prl-project/prl/pipeline"
)

// TestNoSecretIsShown gives a run every secret there is, in a file or in the environment, then prints, logs and marshals
// the whole configuration and all that the stages share, and reads what the run leaves on the disk.
func TestNoSecretIsShown(t *testing.T) {
	const secret = "hunter2"
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PRL_TEST_PASSWORD", secret)
	cfg := DefaultConfig()
	err := pipeline.LoadConfig("", []string{"PRL__INFERENCE__TOKEN=" + secret, "PRL__INFERENCE__REMOTE__TOKEN=" + secret, "PRL__FROZEN__FAR__TOKEN=" + secret}, []string{
		`frozen.far={url="http://localhost:1", model="m"}`,
		"dir=" + dir, "kafka.sasl=SCRAM-SHA-512", "kafka.user=alice", "kafka.password_file=" + file,
		"schema_registry.urls=[\"https://localhost:1\"]", "schema_registry.user=alice", "schema_registry.password_env=PRL_TEST_PASSWORD",
	}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	app, err := NewApp(cfg, cfg.Brokers, "test", slog.New(slog.NewTextHandler(&shown, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	if cl, err := app.Runtime.Client(); err != nil {
		t.Fatal(err)
	} else {
		cl.Close()
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		fmt.Fprintf(&shown, verb+verb+verb+"\n", cfg, *cfg, *app.Runtime)
	}
	for _, h := range []slog.Handler{slog.NewTextHandler(&shown, nil), slog.NewJSONHandler(&shown, nil)} {
		slog.New(h).Info("all", "config", cfg, "kafka", cfg.Kafka, "inference", cfg.Inference, "frozen", cfg.Frozen)
	}
	for _, marshal := range []func(any) ([]byte, error){json.Marshal, toml.Marshal} {
		text, err := marshal(cfg)
		if err != nil {
			t.Fatal(err)
		}
		shown.Write(text)
	}
	if err := cfg.agree(); err != nil {
		t.Fatal(err)
	}
	run, err := os.ReadFile(filepath.Join(cfg.RunDir(), "run.toml"))
	if err != nil {
		t.Fatal(err)
	}
	shown.Write(run)
	for _, form := range []string{secret, fmt.Sprintf("%x", secret)} {
		if at := strings.Index(shown.String(), form); at >= 0 {
			t.Errorf("a secret is shown: …%s…", shown.String()[max(0, at-200):min(shown.Len(), at+50)])
		}
	}
	if !strings.Contains(shown.String(), "alice") {
		t.Error("the configuration was not shown at all")
	}
}

// TestREADMESecurity loads the section that the README shows.
func TestREADMESecurity(t *testing.T) {
	_, rest, _ := strings.Cut(read(t, "../deploy/kafka/README.md"), "<!-- kafka -->\n```toml\n")
	section, _, ok := strings.Cut(rest, "```\n<!-- /kafka -->")
	if !ok {
		t.Fatal("deploy/kafka/README.md shows no section [kafka]")
	}
	file := filepath.Join(t.TempDir(), "run.toml")
	if err := os.WriteFile(file, []byte(section), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	if err := pipeline.LoadConfig(file, []string{"PRL__KAFKA__USER=demo.packer"}, nil, cfg); err != nil {
		t.Fatal(err)
	}
	if cfg.Kafka.User != "demo.packer" || !cfg.Kafka.TLS {
		t.Errorf("got %+v", cfg.Kafka)
	}
}

func TestEmbeddedBrokerHasNoUsers(t *testing.T) {
	err := pipeline.LoadConfig("../configs/ordered.toml", nil, []string{"kafka.tls=true"}, DefaultConfig())
	if err == nil || !strings.Contains(err.Error(), "the embedded broker has no TLS and no users") {
		t.Errorf("error %v", err)
	}
	if err := pipeline.LoadConfig("../configs/ordered.toml", nil, []string{"kafka.tls=true", `brokers=["kafka:9093"]`}, DefaultConfig()); err != nil {
		t.Error(err)
	}
}
