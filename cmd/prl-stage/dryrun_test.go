package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/dryrun"
	"github.com/prl-project/prl/stages/ui"
)

// TestDryRun asks what a run would take: its settings load again and are the same, each that was given says where, no secret is
// shown, and nothing is made.
func TestDryRun(t *testing.T) {
	const secret = "hunter2"
	dir := filepath.Join(t.TempDir(), "runs")
	args := []string{"--stage", "all", "--config", "configs/demo.toml", "--run", "dry", "--set", "dir=" + dir, "--set", "ui.listen=localhost:0", "--dry-run"}
	p := startStage(t, []string{"PRL__UI__TOKEN=" + secret, "PRL__RUN__SEED=7"}, args...)
	text := p.ended(t, time.Minute)
	for _, want := range []string{
		"name = \"dry\"  # --run\n", "seed = 7  # environment variable PRL__RUN__SEED\n", "max_steps = 900  # configs/demo.toml:9\n", "token = \"[secret]\"  #",
		"ok       environment wordle ", "skipped  brokers ", "would be made", "Nothing was started, changed or made.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, secret) {
		t.Error("it shows a secret")
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder of the runs was made")
	}

	p = startStage(t, []string{"PRL__RUN__SEED=7"}, append(args, "--json", "--set", "sink.dir="+os.DevNull)...)
	if said := p.refused(t, time.Minute); !strings.Contains(said, "checks failed") {
		t.Errorf("a check fails, but it says %q", said)
	}
	var found struct {
		Settings string
		Checks   []dryrun.Result
		OK       bool
	}
	if err := json.Unmarshal([]byte(p.text(&p.stdout)), &found); err != nil {
		t.Fatal(err)
	}
	failed := dryrun.Failures(found.Checks)
	if found.OK || failed != 1 || len(found.Checks) < 10 {
		t.Errorf("%d of %d checks failed, ok %t: one should have, by sink.dir", failed, len(found.Checks), found.OK)
	}
	file := filepath.Join(t.TempDir(), "settings.toml")
	if err := os.WriteFile(file, []byte(found.Settings), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := configure(flags{Config: file})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PRL__RUN__SEED", "7")
	was, err := configure(flags{Config: "../../configs/demo.toml", Run: "dry", Set: []string{"dir=" + dir, "ui.listen=localhost:0", "sink.dir=" + os.DevNull}})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := asText(t, again), asText(t, was); a != b {
		t.Errorf("the settings that were printed are others:\n%s\ninstead of\n%s", a, b)
	}
}

// TestDryRunStartsNothing asks everything that --stage may name what it would take, without a broker and without a run: each says
// so, and leaves no folder, no lock and no file.
func TestDryRunStartsNothing(t *testing.T) {
	far := []string{"--brokers", "localhost:1"}
	cases := map[string]struct {
		args []string
		want string
		ends bool // without an error
	}{
		"broker": {[]string{"--stage", "broker", "--set", "broker.listen=localhost:0"}, "broker.listen = \"localhost:0\" is free", true},
		"play":   {[]string{"--stage", "envserver", "--env", "wordle", "--play"}, "ok       environment wordle", true},
		"serve":  {[]string{"--stage", "envserver", "--env", "wordle", "--serve", "http://127.0.0.1:8000"}, "ok       environment wordle", true},
		"alone":  {[]string{"--stage", "scorer"}, "needs a broker it shares with the others", false},
		"fleet":  {append([]string{"--stage", "envserver", "--run", "a", "--run", "b"}, far...), "run a: it has not begun", false},
	}
	for _, c := range commands() {
		if _, ok := cases[c.name]; !ok && c.name != allName && c.name != stages.ReplayName && c.name != stages.AuditName && c.name != "top" {
			cases[c.name] = struct {
				args []string
				want string
				ends bool
			}{append([]string{"--stage", c.name}, far...), "reach the brokers at [localhost:1]", false}
		}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "runs")
			args := append(c.args, "--dry-run", "--config", "configs/demo.toml", "--set", "dir="+dir, "--set", "ui.listen=localhost:0")
			if name == ui.Name || name == "export" { // of a run that is there
				dir = t.TempDir()
				args = append(args, "--set", "dir="+dir)
				if err := os.MkdirAll(filepath.Join(dir, "demo"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if name == "shadow" {
				args = append(args, "--shadow", "slow")
			}
			p := startStage(t, nil, args...)
			if c.ends {
				p.ended(t, time.Minute)
			} else {
				p.refused(t, time.Minute)
			}
			if text := p.text(&p.stdout) + p.text(&p.stderr); !strings.Contains(text, c.want) {
				t.Errorf("it does not say %q:\n%s", c.want, tail(text, 2000))
			}
			left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
			if err != nil || len(left) > 0 {
				t.Errorf("it has made %q, %v", left, err)
			}
			if _, err := os.Stat(dir); err == nil && name != ui.Name && name != "export" {
				t.Errorf("it has made %s", dir)
			}
		})
	}
}

func asText(t *testing.T, cfg *stages.Config) string {
	t.Helper()
	text, err := toml.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// testDryRun looks at a run as each stage's user: with the rights of acls.csv nothing is missing, and of each right that is
// taken away the dry run says so before the stage would.
func testDryRun(t *testing.T, s *secured, run string) {
	s.allow(t, aclTable(t, run))
	made := *s.config(t, t.TempDir(), run, "nobody")
	made.Kafka, made.Brokers = pipeline.KafkaConfig{}, s.Addrs()
	if err := runStage(t.Context(), t, &made, stages.SetupName); err != nil {
		t.Fatal(err)
	}
	look := func(t *testing.T, cfg *stages.Config, stage string) map[string]dryrun.Result {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cfg.Telemetry = ""
		r := &dryrun.Run{Config: cfg, Name: stage, Instance: "one", BrokerDir: brokerDir(cfg), Probe: []string{"false"}}
		if row, err := stages.Find(stage); err == nil {
			r.Stages = []stages.Stage{row}
		}
		results := map[string]dryrun.Result{}
		for _, c := range r.Checks(ctx) {
			switch c.Check {
			case "brokers", "topics", "rights", "name":
				results[c.Check] = c
			}
		}
		return results
	}
	for _, stage := range stages.Flow {
		t.Run(stage.Name, func(t *testing.T) {
			t.Parallel()
			cfg := s.config(t, t.TempDir(), run, run+"."+stage.Name, "inference.listen=")
			results := look(t, cfg, stage.Name)
			for _, r := range results {
				if r.State != dryrun.OK && !(r.Check == "name" && r.State == dryrun.Skipped) {
					t.Errorf("%s: %s: %s", r.Check, r.State, r.Says)
				}
			}
			if len(results) < 3 {
				t.Errorf("only %d checks of the brokers", len(results))
			}
		})
	}
	for _, d := range denials {
		t.Run(d.run+" "+d.stage, func(t *testing.T) {
			t.Parallel()
			cfg := s.config(t, t.TempDir(), d.run, d.principal(), "run.trace_partitions=1", "run.task_partitions=1", "inference.listen=")
			var said bytes.Buffer
			for _, r := range look(t, cfg, d.stage) {
				if r.State == dryrun.Failed {
					said.WriteString(r.Says + "\n")
				}
			}
			want := strings.TrimSuffix(d.want, "(deploy/kafka/acls.csv") // the sentence around it may be another
			want = strings.TrimSuffix(strings.TrimSpace(want), " (")
			if _, name, ok := strings.Cut(want, "the right "); ok {
				want = strings.TrimSuffix(name, " (")
			}
			if !strings.Contains(said.String(), want) {
				t.Errorf("it says %q, want %q", said.String(), want)
			}
		})
	}
	if cfg := s.config(t, t.TempDir(), run, run+".scorer"); len(cfg.Brokers) > 0 { // nobody with a wrong password is let in
		cfg.Kafka.User = "nobody"
		if r := look(t, cfg, "scorer")["brokers"]; r.State != dryrun.Failed || !strings.Contains(r.Says, "refuse the user of section [kafka]") {
			t.Errorf("a stranger: %+v", r)
		}
	}
}
