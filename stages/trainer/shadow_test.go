package trainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/schemas"
)

// shadowEnv makes the test binary a shadow trainer: run, broker, folder of blobs, learner, name and folder, between bars.
const shadowEnv = "PRL_TEST_SHADOW"

func shadowProcess(spec []string) error {
	rt, err := runtimeAt([]string{spec[1]}, spec[2], testRun(spec[0]))
	if err != nil {
		return err
	}
	rt.Health = &pipeline.Health{}
	cfg, model := testConfig()
	if spec[3] == LearnerTorch {
		cfg, model = torchConfig()
	}
	s, err := NewShadow(rt, cfg, model, ShadowConfig{Name: spec[4], Keep: 1}, spec[5], nil)
	if err != nil {
		return err
	}
	return s.Run(context.Background())
}

// shadowChild runs a shadow trainer in a process of its own.
func shadowChild(t *testing.T, rt *pipeline.Runtime, blobs, learner, name, dir string, env ...string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(append(os.Environ(), shadowEnv+"="+strings.Join([]string{rt.Run.Name, rt.Brokers[0], blobs, learner, name, dir}, "|")), env...)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	return err
}

func testShadow(t *testing.T, rt *pipeline.Runtime, c ShadowConfig, dir string, set func(*Config)) *ShadowTrainer {
	t.Helper()
	cfg, model := testConfig()
	if set != nil {
		set(&cfg)
	}
	c.Keep = max(c.Keep, 1)
	s, err := NewShadow(rt, cfg, model, c, dir, []byte("settings"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// shadowed runs a shadow trainer to its end and gives its versions, or the error it ends with.
func shadowed(t *testing.T, s *ShadowTrainer) ([]string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if err := s.Run(ctx); err != nil {
		return nil, err
	}
	h, err := s.home.versions(ctx)
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return hashes(h), err
}

// pointsTold are the points of a stage with a label, by step and name, and how often each was written.
func pointsTold(t *testing.T, rt *pipeline.Runtime, stage, name string) map[string]int {
	t.Helper()
	f, err := rt.Follow(pipeline.TopicMetrics)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	recs, err := f.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]int{}
	for _, r := range recs {
		if p := r.Value.(*schemas.MetricPoint); p.Stage == stage && p.Labels[Shadow] == name {
			told[fmt.Sprint(*p.Step, " ", p.Name)]++
		}
	}
	return told
}

// TestShadow trains beside the run's trainer: with its settings to its weights, with another learning rate to others. The run
// has what it would have without them.
func TestShadow(t *testing.T) {
	cluster := testCluster(t)
	want := reference(t, cluster)
	rt := testRuntime(t, cluster, testRun("beside"))
	packSteps(t, rt, 1, 2)
	_, trained := start(t, testTrainer(t, rt))
	type end struct {
		versions []string
		err      error
	}
	ends := map[string]chan end{"same": make(chan end, 1), "other": make(chan end, 1)}
	dir := t.TempDir()
	for name, done := range ends {
		s := testShadow(t, rt, ShadowConfig{Name: name}, filepath.Join(dir, name), func(c *Config) {
			if name == "other" {
				c.LR /= 2
			}
		})
		go func() {
			versions, err := shadowed(t, s)
			done <- end{versions, err}
		}()
	}
	packSteps(t, rt, 3, rt.Run.MaxSteps)
	if err := trained(); err != nil {
		t.Fatal(err)
	}
	same, other := <-ends["same"], <-ends["other"]
	if err := errors.Join(same.err, other.err); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(same.versions, want) {
		t.Errorf("with the trainer's settings %v, the run has %v", same.versions, want)
	}
	if len(other.versions) != len(want) || other.versions[0] != want[0] {
		t.Errorf("with another learning rate %v, which must begin with %v", other.versions, want[0])
	}
	for i, sha := range other.versions[1:] {
		if sha == want[i+1] {
			t.Errorf("with another learning rate version %d is the run's", i+1)
		}
	}
	if all, err := versions(t.Context(), rt); err != nil || !slices.Equal(hashes(all), want) {
		t.Errorf("beside shadow trainers the run has %v, alone %v (%v)", hashes(all), want, err)
	}
	run := pointsTold(t, rt, stage, "")
	for name := range ends {
		if got := pointsTold(t, rt, Shadow, name); fmt.Sprint(got) != fmt.Sprint(run) {
			t.Errorf("%s has the points %v, the run %v", name, got, run)
		}
	}
	kept, err := filepath.Glob(filepath.Join(dir, "same", "blobs", checkpointPrefix, "*"))
	if err != nil || len(kept) != 2 { // of the first and the final version
		t.Errorf("%d checkpoints are kept: %v (%v)", len(kept), kept, err)
	}
}

// TestInvariant_ShadowCrash kills a shadow trainer with SIGKILL at every place that matters: its versions and its points are those
// of one that was never killed, each point once.
func TestInvariant_ShadowCrash(t *testing.T) {
	cluster := testCluster(t)
	rt, blobs := shadowRun(t, cluster, "killed")
	want := hashes(checkChain(t, rt, rt.Run.MaxSteps))
	points := pointsTold(t, rt, stage, "")
	for _, place := range []string{stage + ".before-update", stage + ".after-weights", Shadow + ".recorded", stage + ".before-commit", stage + ".after-publish"} {
		for _, nth := range []int{1, 4} {
			name := fmt.Sprintf("%s-%d", strings.ReplaceAll(place, ".", "-"), nth)
			t.Run(name, func(t *testing.T) {
				dir := t.TempDir()
				err := shadowChild(t, rt, blobs, LearnerNative, name, dir, fmt.Sprintf("PRL_CRASH_AT=%s:%d", place, nth))
				if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("the process was not killed: %v", err)
				}
				if err := shadowChild(t, rt, blobs, LearnerNative, name, dir); err != nil {
					t.Fatal(err)
				}
				h := &inFolder{path: filepath.Join(dir, "versions.jsonl")}
				if all, err := h.versions(t.Context()); err != nil || !slices.Equal(hashes(all), want) {
					t.Errorf("versions %v, without a crash %v (%v)", hashes(all), want, err)
				}
				if got := pointsTold(t, rt, Shadow, name); fmt.Sprint(got) != fmt.Sprint(points) {
					t.Errorf("points %v, want %v", got, points)
				}
			})
		}
	}
}

// shadowRun is a run that has ended, and where its blobs are.
func shadowRun(t *testing.T, cluster interface{ ListenAddrs() []string }, name string) (*pipeline.Runtime, string) {
	t.Helper()
	blobs := t.TempDir()
	rt, err := runtimeAt(cluster.ListenAddrs(), blobs, testRun(name))
	if err != nil {
		t.Fatal(err)
	}
	rt.Health = &pipeline.Health{}
	if err := rt.SetUp(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	packSteps(t, rt, 1, rt.Run.MaxSteps)
	runToEnd(t, testTrainer(t, rt))
	return rt, blobs
}

// TestShadowBegins begins with the versions that have a checkpoint and says which have, keeps to what it began with, and has its
// folder for itself.
func TestShadowBegins(t *testing.T) {
	cluster := testCluster(t)
	rt, _ := shadowRun(t, cluster, "begins")
	all, err := versions(t.Context(), rt)
	if err != nil {
		t.Fatal(err)
	}
	want := hashes(all)
	if got, err := shadowed(t, testShadow(t, rt, ShadowConfig{Name: "late", FromVersion: 3}, t.TempDir(), nil)); err != nil || !slices.Equal(got, want[3:]) {
		t.Errorf("from version 3: %v, want %v (%v)", got, want[3:], err)
	}
	for _, c := range []struct {
		name   string
		config ShadowConfig
		want   string
	}{
		{"no checkpoint", ShadowConfig{Name: "a", FromVersion: 4}, "the nearest that have are 3 and 5"},
		{"no such version", ShadowConfig{Name: "b", FromVersion: 9}, "has versions 0 to 5"},
	} {
		if _, err := shadowed(t, testShadow(t, rt, c.config, t.TempDir(), nil)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	dir := t.TempDir()
	if _, err := shadowed(t, testShadow(t, rt, ShadowConfig{Name: "c"}, dir, nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := shadowed(t, testShadow(t, rt, ShadowConfig{Name: "c", FromVersion: 3}, dir, nil)); err == nil || !strings.Contains(err.Error(), "has begun from version 0") {
		t.Errorf("another beginning: %v", err)
	}
	lock, err := lockFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shadowed(t, testShadow(t, rt, ShadowConfig{Name: "c"}, dir, nil)); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second process of the name: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := shadowed(t, testShadow(t, rt, ShadowConfig{Name: "c"}, t.TempDir(), nil)); err == nil || !strings.Contains(err.Error(), "choose another name") {
		t.Errorf("a second one of the name, in another folder: %v", err)
	}
}

// TestShadowBehindCleanUp ends with what to do where the batches that it wants were deleted.
func TestShadowBehindCleanUp(t *testing.T) {
	cluster := testCluster(t)
	rt, _ := shadowRun(t, cluster, "cleaned")
	cl, err := rt.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	all, err := versions(t.Context(), rt)
	if err != nil {
		t.Fatal(err)
	}
	below := kadm.Offsets{}
	for r, o := range all[3].NextOffsets {
		below.AddOffset(rt.TopicName(pipeline.TopicBatches), int32(r), o, -1)
	}
	if _, err := kadm.NewClient(cl).DeleteRecords(t.Context(), below); err != nil {
		t.Fatal(err)
	}
	if _, err := shadowed(t, testShadow(t, rt, ShadowConfig{Name: "first"}, t.TempDir(), nil)); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "--from-version") {
		t.Errorf("from version 0: %v", err)
	}
	if got, err := shadowed(t, testShadow(t, rt, ShadowConfig{Name: "third", FromVersion: 3}, t.TempDir(), nil)); err != nil || !slices.Equal(got, hashes(all)[3:]) {
		t.Errorf("from version 3: %v, want %v (%v)", got, hashes(all)[3:], err)
	}
}

// TestTorchShadow kills a shadow trainer whose learner is not exact, and lets it go on.
func TestTorchShadow(t *testing.T) {
	need.Torch(t, torchDir)
	cluster := testCluster(t)
	rt, blobs := shadowRun(t, cluster, "torch-shadow")
	dir := t.TempDir()
	if err := shadowChild(t, rt, blobs, LearnerTorch, "torch", dir, "PRL_CRASH_AT="+Shadow+".recorded:2"); err == nil {
		t.Fatal("the process was not killed")
	}
	if err := shadowChild(t, rt, blobs, LearnerTorch, "torch", dir); err != nil {
		t.Fatal(err)
	}
	h := &inFolder{path: filepath.Join(dir, "versions.jsonl")}
	if all, err := h.versions(t.Context()); err != nil || len(all) != int(rt.Run.MaxSteps)+1 || !all.newest().Final {
		t.Errorf("%v (%v)", all, err)
	}
}
