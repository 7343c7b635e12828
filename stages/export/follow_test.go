package export

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

func following(out, format string) Config {
	cfg := DefaultConfig()
	cfg.Out, cfg.Formats, cfg.Follow = out, []string{format}, true
	return cfg
}

// child follows to the end of the topics and ends.
func child(spec []string) error {
	rt, err := runtimeAt(spec[0], spec[1])
	if err != nil {
		return err
	}
	if parquet := spec[4]; parquet != "" {
		cfg := DefaultConfig()
		cfg.Out, cfg.Force = spec[2], true
		e, err := New(rt, cfg, "", parquet, "")
		if err == nil {
			_, err = e.Files(context.Background())
		}
		return err
	}
	e, err := New(rt, following(spec[2], spec[3]), "", "", "")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.ready = cancel // it reads to the end before it stops
	return e.Run(ctx)
}

func (w *world) child(out, format string, env ...string) error {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), deadline)
	defer cancel()
	cmd := w.command(ctx, out, format, "", env...)
	text, err := cmd.CombinedOutput()
	w.Logf("%s", text)
	return err
}

// command is an export in a process of its own: one that follows, or, with a folder of Parquet files, one of these.
func (w *world) command(ctx context.Context, out, format, parquet string, env ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(append(os.Environ(), childEnv+"="+strings.Join([]string{w.rt.Brokers[0], w.blobs, out, format, parquet}, "|")), env...)
	return cmd
}

func (w *world) parts(out, format string) (all []Row) {
	w.Helper()
	paths, err := filepath.Glob(filepath.Join(out, "train-*."+format))
	if err != nil {
		w.Fatal(err)
	}
	for _, p := range paths {
		all = append(all, w.rows(p)...)
	}
	return all
}

// TestInvariant_FollowOnce kills an export that follows before and after a part appears, and lets more come: every rollout is in
// one part, and they are those that an export of the files has.
func TestInvariant_FollowOnce(t *testing.T) {
	w := newWorld(t)
	for i := range int64(10) {
		w.run(w.play(i, 1, fmt.Sprint("answer ", i)))
	}
	late := w.play(10, 1, "decided late")
	w.emit(topicOf(late.trace), late.trace)
	outs := map[string]string{}
	for _, format := range []string{JSONL, Parquet} {
		for _, place := range []string{"drafted", "published"} {
			out := filepath.Join(t.TempDir(), "out")
			outs[out] = format
			err := w.child(out, format, fmt.Sprintf("PRL_CRASH_AT=%s.%s:1", Name, place))
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("%s: the process was not killed: %v", place, err)
			}
			if got, want := len(w.parts(out, format)), map[string]int{"drafted": 0, "published": 10}[place]; got != want {
				t.Fatalf("%s: the killed process left %d conversations, want %d", place, got, want)
			}
		}
	}
	w.decide(late)
	w.run(w.play(11, 1, "new"), w.play(12, 1, "new"), w.play(12, 1, "came twice"))
	w.sink()
	files, _ := w.export(nil)
	want := groups(w.rows(filepath.Join(files, "train.jsonl")))
	for out, format := range outs {
		for range 2 {
			if err := w.child(out, format); err != nil {
				t.Fatal(err)
			}
			if got := groups(w.parts(out, format)); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: groups %v, of the files %v", format, got, want)
			}
		}
	}
}

// TestFollowedFolder holds an export to what it began with, and its folder to one process.
func TestFollowedFolder(t *testing.T) {
	w := newWorld(t)
	w.run(w.play(0, 1, "x"))
	out := filepath.Join(t.TempDir(), "out")
	if err := w.child(out, JSONL); err != nil {
		t.Fatal(err)
	}
	p, err := openParts(following(out, JSONL), "demo")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openParts(following(out, JSONL), "demo"); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second process: %v", err)
	}
	if err := p.close(); err != nil {
		t.Fatal(err)
	}
	other := following(out, JSONL)
	other.MinReward = new(0.5)
	if _, err := openParts(other, "demo"); err == nil || !strings.Contains(err.Error(), "began of run demo") {
		t.Errorf("other settings: %v", err)
	}
	if _, err := openParts(following(t.TempDir(), JSONL), "demo"); err != nil {
		t.Errorf("an empty folder: %v", err)
	}
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := openParts(following(foreign, JSONL), "demo"); err == nil || !strings.Contains(err.Error(), "is no export") {
		t.Errorf("a folder of somebody's: %v", err)
	}
	var got struct{ Train int64 }
	script(t, `
import json, sys
from datasets import load_dataset
json.dump({"Train": len(load_dataset(sys.argv[1], split="train"))}, sys.stdout)
`, &got, out)
	if got.Train != 1 {
		t.Errorf("datasets reads %d rows of the parts, want 1", got.Train)
	}
}

// TestTracesAndOutcomes takes a rollout when both its trace and its outcome have been read, in any order, and once.
func TestTracesAndOutcomes(t *testing.T) {
	w := newWorld(t)
	p := w.play(0, 1, "x")
	trace := pipeline.Record{Value: p.trace}
	outcome := pipeline.Record{Value: &schemas.GroupOutcome{Env: "catch", Fate: schemas.FatePacked, Rollouts: []schemas.RolloutFate{p.fate}}}
	for name, steps := range map[string][][]pipeline.Record{
		"trace first":    {{trace}, {outcome}, {trace}},
		"outcome first":  {{outcome}, {trace}, {trace}},
		"at once":        {{outcome, trace, trace}},
		"twice":          {{trace, trace}, {outcome}},
		"beside an eval": {{trace}, {outcome, {Value: &schemas.GroupOutcome{Eval: "held-out", Env: "catch", Rollouts: []schemas.RolloutFate{p.fate}}}}},
	} {
		e, err := New(w.rt, following(filepath.Join(t.TempDir(), "out"), JSONL), "", "", "")
		if err != nil {
			t.Fatal(err)
		}
		parts, err := openParts(e.cfg, "demo")
		if err != nil {
			t.Fatal(err)
		}
		f := newFollower(e, parts)
		for _, recs := range steps {
			f.take(t.Context(), recs)
		}
		if n := len(parts.held[splitTrain]); n != 1 || len(f.waiting) > 0 || len(f.outcomes) > 0 {
			t.Errorf("%s: %d conversations; %d groups wait for outcomes, %d for traces", name, n, len(f.waiting), len(f.outcomes))
		}
		if err := parts.close(); err != nil {
			t.Fatal(err)
		}
	}
}
