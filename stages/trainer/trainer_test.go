package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/pipeline"
)

func TestVersionZeroComesFirst(t *testing.T) {
	rt := testRuntime(t, testCluster(t), testRun("zero"))
	stop, wait := start(t, testTrainer(t, rt))
	zero := published(t, rt, 1)[0]
	if zero.Version != 0 || zero.Checkpoint == nil || !slices.Equal(zero.NextOffsets, []int64{0, 0}) {
		t.Errorf("version 0 is %+v", zero)
	}
	stop()
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	checkChain(t, rt, 0)
}

func TestInvariant_TrainedOnce(t *testing.T) {
	cluster := testCluster(t)
	want := reference(t, cluster)
	rt := testRuntime(t, cluster, testRun("restarts"))
	made := 0
	for s := int64(1); s <= rt.Run.MaxSteps; s++ {
		tr := testTrainer(t, rt)
		hook(tr, true, func(int64, Learner) { made++ })
		stop, wait := start(t, tr)
		packSteps(t, rt, s, s)
		published(t, rt, int(s)+1)
		stop()
		if err := wait(); err != nil {
			t.Fatal(err)
		}
	}
	history := checkChain(t, rt, rt.Run.MaxSteps)
	if got := hashes(history); !slices.Equal(got, want) {
		t.Errorf("weights %v, without restarts %v", got, want)
	}
	for _, v := range history {
		if has := v.Checkpoint != nil; has != (v.Version == 0 || v.Version == 3 || v.Version == 5) {
			t.Errorf("version %d: checkpoint %v", v.Version, has)
		}
	}
	// Steps 1 to 5, and again 1, 1 2, (from 3:) none, 4.
	if made != 5+4 {
		t.Errorf("%d steps were trained, want 9", made)
	}
	runToEnd(t, testTrainer(t, rt)) // a run that is over is left alone
	checkChain(t, rt, rt.Run.MaxSteps)
}

func TestInvariant_Determinism(t *testing.T) {
	cluster := testCluster(t)
	want := reference(t, cluster)
	for i, h := range want {
		if i > 0 && h == want[i-1] {
			t.Errorf("step %d changed no weights", i)
		}
	}
	run := testRun("seed")
	run.Seed++
	rt := testRuntime(t, cluster, run)
	packSteps(t, rt, 1, run.MaxSteps)
	runToEnd(t, testTrainer(t, rt))
	if got := hashes(checkChain(t, rt, run.MaxSteps)); got[0] == want[0] {
		t.Error("two seeds give the same weights")
	}
}

func TestSecondTrainerFencesTheFirst(t *testing.T) {
	rt := testRuntime(t, testCluster(t), testRun("fence"))
	sleeper := testTrainer(t, rt)
	asleep, wake := make(chan bool), make(chan bool)
	hook(sleeper, true, func(step int64, _ Learner) {
		if step == 1 {
			asleep <- true
			<-wake
		}
	})
	_, wait := start(t, sleeper)
	packSteps(t, rt, 1, rt.Run.MaxSteps)
	<-asleep
	runToEnd(t, testTrainer(t, rt))
	close(wake)
	if err := wait(); !errors.Is(err, pipeline.ErrFenced) {
		t.Errorf("the sleeper ended with %v, want %v", err, pipeline.ErrFenced)
	}
	checkChain(t, rt, rt.Run.MaxSteps)
}

func TestFailedCommitIsRepeated(t *testing.T) {
	cluster := testCluster(t)
	want := reference(t, cluster)
	rt := testRuntime(t, cluster, testRun("commit"))
	packSteps(t, rt, 1, rt.Run.MaxSteps)
	tr := testTrainer(t, rt)
	fired := false
	hook(tr, true, func(step int64, _ Learner) {
		if step != 2 || fired {
			return
		}
		fired = true
		cluster.ControlKey(int16(kmsg.EndTxn), func(req kmsg.Request) (kmsg.Response, error, bool) {
			resp := req.ResponseKind().(*kmsg.EndTxnResponse)
			resp.ErrorCode = kerr.UnknownServerError.Code
			return resp, nil, true
		})
	})
	runToEnd(t, tr)
	if !fired {
		t.Fatal("no commit failed")
	}
	if got := hashes(checkChain(t, rt, rt.Run.MaxSteps)); !slices.Equal(got, want) {
		t.Errorf("weights %v, without the fault %v", got, want)
	}
}

func TestLearnerIsKeptOverAnError(t *testing.T) {
	rt := testRuntime(t, testCluster(t), testRun("kept"))
	tr := testTrainer(t, rt)
	learners, inner := 0, tr.newLearner
	tr.newLearner = func(ctx context.Context, base string) (Learner, error) { learners++; return inner(ctx, base) }
	for s := int64(1); s <= 2; s++ {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- tr.session(ctx) }()
		packSteps(t, rt, s, s)
		published(t, rt, int(s)+1)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if learners != 1 {
		t.Errorf("%d learners were made, the first one was good", learners)
	}
	checkChain(t, rt, 2)
}

// lostOnce is a learner of which the first is lost while it loads.
type lostOnce struct {
	Learner
	loads *int
}

func (l lostOnce) Load(ctx context.Context, weights, checkpoint string) error {
	if *l.loads++; *l.loads == 1 {
		return pipeline.ErrTransient
	}
	return l.Learner.Load(ctx, weights, checkpoint)
}

func TestLearnerThatIsLostWhileItLoads(t *testing.T) {
	rt := testRuntime(t, testCluster(t), testRun("lost"))
	stop, wait := start(t, testTrainer(t, rt))
	published(t, rt, 1)
	stop()
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	packSteps(t, rt, 1, rt.Run.MaxSteps)
	tr, loads := testTrainer(t, rt), 0
	inner := tr.newLearner
	tr.newLearner = func(ctx context.Context, base string) (Learner, error) {
		l, err := inner(ctx, base)
		return lostOnce{l, &loads}, err
	}
	runToEnd(t, tr)
	if loads != 2 {
		t.Errorf("%d learners were loaded, want 2", loads)
	}
	checkChain(t, rt, rt.Run.MaxSteps)
}

func TestReplayThatDiffers(t *testing.T) {
	for _, exact := range []bool{true, false} {
		t.Run(fmt.Sprintf("exact=%v", exact), func(t *testing.T) {
			rt := testRuntime(t, testCluster(t), testRun("differs"))
			packSteps(t, rt, 1, 2)
			stop, wait := start(t, testTrainer(t, rt))
			before := published(t, rt, 3)
			stop()
			if err := wait(); err != nil {
				t.Fatal(err)
			}
			cfg, model := testConfig()
			cfg.MaxGradNorm /= 100
			tr, err := New(rt, cfg, model)
			if err != nil {
				t.Fatal(err)
			}
			hook(tr, exact, func(step int64, l Learner) {
				if sum(weightsOf(t, l)) != before[min(step-1, 2)].Weights.SHA256 && step <= 3 {
					t.Errorf("step %d begins with other weights than were published", step)
				}
			})
			packSteps(t, rt, 3, rt.Run.MaxSteps)
			_, wait = start(t, tr)
			if err := wait(); errors.Is(err, pipeline.ErrFatal) != exact || !exact && err != nil {
				t.Fatalf("the trainer ended with %v", err)
			}
			if exact {
				checkChain(t, rt, 2)
				return
			}
			if after := checkChain(t, rt, rt.Run.MaxSteps); !slices.Equal(hashes(after)[:3], hashes(before)) {
				t.Error("published versions changed")
			}
		})
	}
}

// Whatever the learner, a schedule that was changed is noticed when a step is trained again.
func TestReplayWithAnotherSchedule(t *testing.T) {
	rt := testRuntime(t, testCluster(t), testRun("schedule"))
	packSteps(t, rt, 1, 2)
	stop, wait := start(t, testTrainer(t, rt))
	published(t, rt, 3)
	stop()
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	tr := testTrainer(t, rt)
	tr.cfg.LR /= 2
	tr.newLearner = learners(rt.Run, tr.cfg, tr.model)
	hook(tr, false, func(int64, Learner) {})
	_, wait = start(t, tr)
	if err := wait(); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "step 1 trained again has lr = ") {
		t.Errorf("error %v", err)
	}
	checkChain(t, rt, 2)
}

func TestStopFinishesTheStep(t *testing.T) {
	rt := testRuntime(t, testCluster(t), testRun("stop"))
	tr := testTrainer(t, rt)
	busy, release := make(chan bool), make(chan bool)
	hook(tr, true, func(int64, Learner) { busy <- true; <-release })
	stop, wait := start(t, tr)
	packSteps(t, rt, 1, 1)
	<-busy
	stop()
	close(release)
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	checkChain(t, rt, 1)
}

func TestStopGivesUpAStepThatTakesTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		work, cancel := outlive(ctx, stopGrace)
		defer cancel()
		stop()
		began := time.Now()
		<-work.Done()
		if waited := time.Since(began); waited != stopGrace {
			t.Errorf("the step had %v, want %v", waited, stopGrace)
		}
	})
}

func TestNullLearnerPublishesTheSameWeights(t *testing.T) {
	rt := testRuntime(t, testCluster(t), testRun("null"))
	packSteps(t, rt, 1, rt.Run.MaxSteps)
	cfg, model := testConfig()
	cfg.Learner = LearnerNull
	tr, err := New(rt, cfg, model)
	if err != nil {
		t.Fatal(err)
	}
	runToEnd(t, tr)
	got := hashes(checkChain(t, rt, rt.Run.MaxSteps))
	if len(slices.Compact(got)) != 1 {
		t.Errorf("weights changed: %v", got)
	}
}
