package trainer

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest/need"
)

// rendezvous is an address on this machine that was free a moment ago.
func rendezvous(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// shared are the trainers of a run's two ranks.
func shared(t *testing.T, rt *pipeline.Runtime, change func(rank int, tr *Trainer)) [2]*Trainer {
	t.Helper()
	at := rendezvous(t)
	var both [2]*Trainer
	for rank := range both {
		cfg, model := torchConfig()
		cfg.Torch.WorldSize, cfg.Torch.Rank, cfg.Torch.Rendezvous, cfg.Torch.Device = 2, rank, at, "cpu"
		tr, err := New(rt, cfg, model)
		if err != nil {
			t.Fatal(err)
		}
		change(rank, tr)
		both[rank] = tr
	}
	return both
}

// Two ranks train to the weights of one. When the worker of one dies in a step, all start over, and nothing is trained twice.
func TestTorchRanks(t *testing.T) {
	need.Torch(t, torchDir)
	cluster := testCluster(t)
	native := testRuntime(t, cluster, testRun("ranks-reference"))
	packSteps(t, native, 1, native.Run.MaxSteps)
	runToEnd(t, testTrainer(t, native))
	want, err := native.Blobs.Get(t.Context(), checkChain(t, native, 5)[5].Weights)
	if err != nil {
		t.Fatal(err)
	}
	rt := testRuntime(t, cluster, testRun("ranks"))
	packSteps(t, rt, 1, rt.Run.MaxSteps)
	var died atomic.Bool
	both := shared(t, rt, func(rank int, tr *Trainer) {
		hookShared(tr, func(step int64, l *Torch) {
			if rank == 1 && step == 5 && !died.Swap(true) {
				l.worker.kill()
			}
		})
	})
	_, wait0 := start(t, both[0])
	_, wait1 := start(t, both[1])
	ended := make(chan error, 2)
	go func() { ended <- wait0() }()
	go func() { ended <- wait1() }()
	for range both {
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	if !died.Load() {
		t.Error("no worker died")
	}
	got, err := rt.Blobs.Get(t.Context(), checkChain(t, rt, rt.Run.MaxSteps)[5].Weights)
	if err != nil {
		t.Fatal(err)
	}
	if diff := largest(t, want, got); !(diff <= weightTolerance) {
		t.Errorf("the final weights differ from those of one rank by %g", diff)
	}
}

// hookShared is hook for learners that are shared.
func hookShared(tr *Trainer, onStep func(step int64, l *Torch)) {
	inner := tr.newLearner
	tr.newLearner = func(ctx context.Context, base string) (Learner, error) {
		l, err := inner(ctx, base)
		if err != nil {
			return l, err
		}
		return hookedTorch{hooked{l, false, func(step int64) { onStep(step, l.(*Torch)) }}, l.(*Torch)}, nil
	}
}

type hookedTorch struct {
	hooked
	sharedLearner
}

// toldLearner is a shared learner whose rank 0 says what a test wants.
type toldLearner struct {
	Learner
	said string
}

func (l toldLearner) Agree(context.Context, string, string) (string, error) { return l.said, nil }

// A rank does not train with a rank 0 that has read another history, as one does that was superseded while it slept, or
// that has other settings.
func TestRanksAgree(t *testing.T) {
	rt := testRuntime(t, testCluster(t), testRun("agree"))
	both := shared(t, rt, func(int, *Trainer) {})
	l, err := net.Listen("tcp", both[1].cfg.Torch.Rendezvous)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	packSteps(t, rt, 1, 2)
	stop, wait := start(t, testTrainer(t, rt))
	history := history(published(t, rt, 3))
	stop()
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	say := func(change func(tr *Trainer), read, from int) string {
		change(both[0])
		var told toldLearner
		both[0].learner = &recording{said: &told.said}
		if err := both[0].agree(t.Context(), history[:read], int64(from)); err != nil {
			t.Fatal(err)
		}
		return told.said
	}
	for what, test := range map[string]struct {
		said  string
		fatal bool
		want  string
	}{
		"the same":          {say(func(*Trainer) {}, 3, 0), false, ""},
		"an older history":  {say(func(*Trainer) {}, 2, 0), false, "one of the two is behind"},
		"another beginning": {say(func(*Trainer) {}, 3, 1), false, "one of the two is behind"},
		"other settings":    {say(func(tr *Trainer) { tr.cfg.LR /= 2 }, 3, 0), true, "rank 0 has other sections"},
		"no plan":           {"hello", true, "no plan"},
	} {
		both[1].learner = toldLearner{said: test.said}
		err := both[1].agree(t.Context(), history, 0)
		if test.want == "" && err == nil {
			continue
		}
		if err == nil || errors.Is(err, pipeline.ErrFatal) != test.fatal || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", what, err, test.want)
		}
	}
}

// recording keeps what rank 0 says.
type recording struct {
	Learner
	said *string
}

func (r *recording) Agree(_ context.Context, _, value string) (string, error) {
	*r.said = value
	return value, nil
}

// agreeing is a shared learner whose rank 0 always says the same as this one.
type agreeing struct{ Learner }

func (agreeing) Agree(_ context.Context, _, value string) (string, error) { return value, nil }

// A rank that waits for a batch starts over when rank 0 has gone: that waits for it, and the batch may wait for what rank 0
// publishes.
func TestRankFollowsRankZero(t *testing.T) {
	rt := testRuntime(t, testCluster(t), testRun("follows"))
	stop, wait := start(t, testTrainer(t, rt))
	published(t, rt, 1)
	stop()
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	tr := shared(t, rt, func(int, *Trainer) {})[1]
	lead, err := net.Listen("tcp", tr.cfg.Torch.Rendezvous)
	if err != nil {
		t.Fatal(err)
	}
	defer lead.Close()
	tr.newLearner = func(context.Context, string) (Learner, error) {
		_, model := testConfig()
		l, err := NewNull(rt.Run, model)
		return agreeing{l}, err
	}
	stop, wait = start(t, tr)
	for range 2 { // it comes, and comes again when rank 0 has gone
		if err := lead.(*net.TCPListener).SetDeadline(time.Now().Add(deadline)); err != nil {
			t.Fatal(err)
		}
		conn, err := lead.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if err := wait(); err != nil {
		t.Error(err)
	}
}
