package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
)

// TestPythonEnvironment mixes a class in Python with an environment in Go. The class's process is killed in the middle of a run of
// the whole pipeline: what it played is played again, and everything holds that must.
func TestPythonEnvironment(t *testing.T) {
	need.Python3(t)
	dir := t.TempDir()
	killed, file := filepath.Join(dir, "killed"), filepath.Join(dir, "tasks.jsonl")
	var rows strings.Builder
	for n := range 40 {
		fmt.Fprintf(&rows, "{\"seed\": %d, \"killed\": %q}\n", n, killed)
	}
	if err := os.WriteFile(file, []byte(rows.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	sets := []string{
		"run.max_steps=2", "envs.catch.ratio=1", `model.alphabet=""`, "model.max_position=768", "run.seq_len=768", "run.batch_size=16",
		fmt.Sprintf(`envs.dice={source = "python:dice:Dice", ratio = 1, group_size = 4, max_tokens = 4, options = {path = %q, file = %q}}`,
			filepath.Join(repository(t), "stages/envserver/bridge/python/testdata"), file),
	}
	p := all(t, dir, nil, sets...)
	finalWeights(t, p.ended(t, runDeadline))
	if pid, err := os.ReadFile(killed); err != nil || len(pid) == 0 {
		t.Fatalf("no process was killed: %v", err)
	}
	log, err := os.ReadFile(filepath.Join(dir, "test", "logs", "dice.log"))
	if err != nil || !strings.Contains(string(log), "signal: killed") {
		t.Errorf("the environment's log: %s, %v", log, err)
	}
	audit(t, dir, "test", sets...)
}
