package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/stages/ui"
)

// TestTop looks at a run of several processes with nothing but its brokers: what waits, who is missing and how it is started, that
// it gets on, and that it has ended.
func TestTop(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	common := func(stage string, more ...string) []string {
		return append([]string{"--stage", stage, "--config", orderedConfig, "--run", "test", "--telemetry", "", "--set", "dir=" + dir, "--set", "run.max_steps=5"}, more...)
	}
	b := startStage(t, nil, common("broker", "--set", "broker.listen=localhost:0")...)
	addr := b.logged(t, "broker serves", "addr=")
	look := func(more ...string) string {
		t.Helper()
		return startStage(t, nil, append([]string{"--stage", "top", "--run", "test", "--brokers", addr, "--set", "dir=" + t.TempDir()}, more...)...).ended(t, time.Minute)
	}
	sight := func() (s ui.Sight) {
		t.Helper()
		if err := json.Unmarshal([]byte(look("--json", "--once")), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	await := func(what string, there func(ui.Sight) bool) {
		t.Helper()
		var s ui.Sight
		for deadline := time.Now().Add(runDeadline); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
			if s = sight(); there(s) {
				return
			}
		}
		t.Fatalf("%s: never seen; at last %+v", what, s)
	}
	if err := startStage(t, nil, "--stage", "top", "--run", "test", "--brokers", addr, "--set", "dir="+dir).refused(t, time.Minute); !strings.Contains(err, "have no run test") {
		t.Errorf("before the run has begun: %s", err)
	}
	more := []string{"--brokers", addr, "--set", "envserver.env_timeout=30s"}
	inf := startStage(t, nil, common("inference", append(more, "--set", "inference.listen=localhost:0")...)...)
	url := inf.logged(t, "inference serves", "addr=")
	for _, stage := range []string{"trainer", "emitter", "scorer", "packer"} {
		startStage(t, nil, common(stage, append(more, "--set", "envserver.model_url="+url)...)...)
	}
	await("version 0", func(s ui.Sight) bool { return s.Version != nil })
	if table := look(); !strings.Contains(table, "waits for a server of the environment catch (prl-stage --stage envserver --env catch)") || !strings.Contains(table, "PROCESSES") {
		t.Errorf("without a server of the environment:\n%s", table)
	}
	startStage(t, nil, common("envserver", append(more, "--env", "catch", "--set", "envserver.model_url="+url)...)...)
	await("steps", func(s ui.Sight) bool {
		running := 0
		for _, v := range s.Flow.Stages {
			running += v.Instances
		}
		return s.Step >= 2 && s.Envs[0].Announced && s.Envs[0].Reward != nil && running >= 4 && s.Flow.Topics["traces"].Rate > 0
	})
	await("the end", func(s ui.Sight) bool { return s.Final && s.Open != nil && s.Open.Groups == 0 })
	if table := look(); !strings.Contains(table, "ended with version 5") {
		t.Errorf("at its end:\n%s", table)
	}
	other := startStage(t, nil, "--stage", "top", "--run", "tset", "--brokers", addr).refused(t, time.Minute)
	if !strings.Contains(other, "have no run tset, they have test") {
		t.Errorf("a run that is not there: %s", other)
	}
	if said := startStage(t, nil, "--stage", "top", "--run", "test", "--brokers", "127.0.0.1:1").refused(t, time.Minute); !strings.Contains(said, "127.0.0.1:1 do not answer") {
		t.Errorf("brokers that are not there: %s", said)
	}
	if said := startStage(t, nil, "--stage", "top", "--run", "test", "--config", orderedConfig, "--set", "dir="+t.TempDir()).refused(t, time.Minute); !strings.Contains(said, "does not run here at the moment") {
		t.Errorf("an embedded broker that does not run: %s", said)
	}
}
