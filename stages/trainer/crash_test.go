package trainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/prl-project/prl/pipeline"
)

// childEnv makes the test binary a trainer of the run it names: run, broker, blob folder and learner, between bars.
const childEnv = "PRL_TEST_TRAINER"

func TestMain(m *testing.M) {
	if op, fate, ok := strings.Cut(os.Getenv(standInEnv), " "); ok {
		standIn(op, fate)
	}
	if spec := os.Getenv(shadowEnv); spec != "" {
		if err := shadowProcess(strings.Split(spec, "|")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if spec := os.Getenv(childEnv); spec != "" {
		if err := trainerProcess(strings.Split(spec, "|")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func trainerProcess(spec []string) error {
	rt, err := runtimeAt([]string{spec[1]}, spec[2], testRun(spec[0]))
	if err != nil {
		return err
	}
	cfg, model := testConfig()
	if spec[3] == LearnerTorch {
		cfg, model = torchConfig()
	}
	tr, err := New(rt, cfg, model)
	if err != nil {
		return err
	}
	return tr.Run(context.Background())
}

// TestInvariant_Crash kills the trainer with SIGKILL at every place that matters, at the first version and at a later
// one: the versions that a new start leaves are those of a run that was never killed.
func TestInvariant_Crash(t *testing.T) {
	cluster := testCluster(t)
	want := reference(t, cluster)
	for _, place := range []string{"before-update", "after-weights", "before-commit", "after-publish"} {
		for _, nth := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/%d", place, nth), func(t *testing.T) {
				run := testRun(fmt.Sprintf("%s-%d", place, nth))
				dir := t.TempDir()
				rt := setUp(t, cluster, dir, run)
				packSteps(t, rt, 1, run.MaxSteps)
				crash(t, rt, dir, LearnerNative, place, nth)
				least, most := nth-1, nth-1
				switch place {
				case "before-update": // of a later version, with the one before on its way
					least, most = nth-1, nth
				case "after-publish":
					least, most = nth, nth
				}
				if err := claimed(t, rt); err != nil {
					t.Fatal(err)
				}
				if history, err := versions(t.Context(), rt); err != nil || len(history) < least || len(history) > most {
					t.Fatalf("the killed process left %d versions, want %d to %d (%v)", len(history), least, most, err)
				}
				if err := child(t, rt, dir, LearnerNative); err != nil {
					t.Fatal(err)
				}
				if got := hashes(checkChain(t, rt, run.MaxSteps)); !slices.Equal(got, want) {
					t.Errorf("weights %v, without a crash %v", got, want)
				}
			})
		}
	}
}

// child runs a trainer of rt's run, whose blobs are in dir, in a process of its own.
func child(t *testing.T, rt *pipeline.Runtime, dir, learner string, env ...string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(append(os.Environ(), childEnv+"="+strings.Join([]string{rt.Run.Name, rt.Brokers[0], dir, learner}, "|")), env...)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	return err
}

// crash runs a child that is killed where it comes to a place for the nth time.
func crash(t *testing.T, rt *pipeline.Runtime, dir, learner, place string, nth int) {
	t.Helper()
	err := child(t, rt, dir, learner, fmt.Sprintf("PRL_CRASH_AT=%s.%s:%d", stage, place, nth))
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the process was not killed: %v", err)
	}
}

// claimed takes the trainer's name and gives it up, so that nothing is open.
func claimed(t *testing.T, rt *pipeline.Runtime) error {
	p, err := claim(t.Context(), rt)
	if err != nil {
		return err
	}
	p.close()
	return nil
}
