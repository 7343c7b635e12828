package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBesideARun trains a shadow, exports and writes event files beside a run in ordered mode, and kills the two processes when it
// ends: the run has the weights that it has alone, and so has the shadow trainer, once it has gone on with what was recorded. The
// export that followed has nothing twice, and nothing that an export of the files has not.
func TestBesideARun(t *testing.T) {
	t.Parallel()
	want := undisturbed(t)
	dir := t.TempDir()
	run := all(t, dir, nil, "board.enabled=true")
	run.await(t, "step", func() bool { return strings.Contains(run.text(&run.stdout), "step 0/12") })
	start := func(args ...string) *process {
		return startStage(t, nil, append(args, "--config", orderedConfig, "--run", "test", "--telemetry", "", "--set", "dir="+dir)...)
	}
	shadow := start("--stage", "shadow", "--shadow", "same")
	shadow.logged(t, "stage runs", "stage=")
	follow := start("--stage", "export", "--follow", "--out", filepath.Join(dir, "followed"))
	follow.logged(t, "conversations go to parts", "dir=")
	if got := finalWeights(t, run.ended(t, runDeadline)); got != want {
		t.Errorf("beside a shadow trainer the run has weights %s, alone %s", got, want)
	}
	audit(t, dir, "test")
	for _, p := range []*process{shadow, follow} {
		_ = p.cmd.Process.Kill() // it may have ended: the broker has gone with the run
		<-p.done
	}
	start("--stage", "shadow", "--shadow", "same").ended(t, runDeadline)
	if got := lastVersion(t, filepath.Join(dir, "test", "shadow", "same", "versions.jsonl")); got != want {
		t.Errorf("the shadow trainer has weights %s, the run %s", got, want)
	}

	start("--stage", "export", "--out", filepath.Join(dir, "files")).ended(t, runDeadline)
	files, followed := sums(t, filepath.Join(dir, "files", "train.jsonl")), sums(t, filepath.Join(dir, "followed", "train-*.jsonl"))
	if len(files) == 0 {
		t.Error("nothing was exported")
	}
	for sum, times := range followed {
		if times > 1 || files[sum] == 0 {
			t.Errorf("conversation %.12s was exported %d times while the run went on, %d times of its files", sum, times, files[sum])
		}
	}
	if out := start("--stage", "board").ended(t, runDeadline); !strings.Contains(out, "points were written") {
		t.Errorf("event files of a run that has ended: %s", out)
	}
	for _, folder := range []string{"", "shadow-same"} {
		if info, err := os.Stat(filepath.Join(dir, "test", "board", folder, "events.out.tfevents.0000000000.prl")); err != nil || info.Size() < 1000 {
			t.Errorf("event file of %q: %v", folder, err)
		}
	}
}

// lastVersion is the SHA-256 of the weights of a shadow trainer's newest version.
func lastVersion(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	var line struct {
		Version struct{ Weights struct{ SHA256 string } }
	}
	if err := json.Unmarshal(lines[len(lines)-1], &line); err != nil {
		t.Fatal(err)
	}
	return line.Version.Weights.SHA256
}

// sums counts conversations of JSONL files by what they say.
func sums(t *testing.T, pattern string) map[string]int {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			var row struct {
				Provenance struct{ SHA256 string } `json:"provenance"`
			}
			if err := json.Unmarshal(line, &row); err != nil {
				t.Fatal(err)
			}
			counts[row.Provenance.SHA256]++
		}
	}
	return counts
}
