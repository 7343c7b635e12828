package trainer

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
)

// standInEnv makes the test binary a worker without PyTorch, which answers every request but one. It names the request and
// what becomes of it: "accumulate dies", or "save waits for accumulate", whose answer then comes first.
const standInEnv = "TEST_TORCH_WORKER"

func standIn(op, fate string) {
	requests, answers := os.NewFile(3, "requests"), os.NewFile(4, "answers")
	late, waits := strings.CutPrefix(fate, "waits for ")
	var waiting []uint64
	for {
		var prefix [12]byte
		if _, err := io.ReadFull(requests, prefix[:]); err != nil {
			os.Exit(0)
		}
		head := make([]byte, binary.LittleEndian.Uint32(prefix[:]))
		var request struct {
			ID uint64
			Op string
		}
		if _, err := io.ReadFull(requests, head); err != nil || json.Unmarshal(head, &request) != nil {
			os.Exit(1)
		}
		if _, err := io.CopyN(io.Discard, requests, int64(binary.LittleEndian.Uint64(prefix[4:]))); err != nil {
			os.Exit(1)
		}
		text := `"applied": true, "vocabulary": 99, "positions": 99`
		if request.Op == op && waits {
			waiting = append(waiting, request.ID)
			continue
		}
		if request.Op == op {
			fmt.Println("a thing the worker said")
			switch fate {
			case "dies":
				os.Exit(3)
			case "is killed":
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			case "hangs":
				time.Sleep(time.Hour) // it is killed before
			case "has no memory":
				text = `"error": "MemoryError: 8 TiB", "out_of_memory": true`
			case "loses a peer":
				text = `"error": "ConnectionError: rank 0 does not listen", "peer_lost": true`
			case "fails":
				text = `"error": "ValueError: no such thing"`
			}
		}
		done := []uint64{request.ID}
		if waits && request.Op == late {
			done, waiting = append(done, waiting...), nil
		}
		for _, id := range done {
			head := fmt.Sprintf(`{"id": %d, %s}`, id, text)
			answer := binary.LittleEndian.AppendUint32(nil, uint32(len(head)))
			answer = append(binary.LittleEndian.AppendUint64(answer, 0), head...)
			if _, err := answers.Write(answer); err != nil || strings.Contains(text, "error") {
				os.Exit(1)
			}
		}
	}
}

// withStandIn makes a learner whose worker ends in a certain way.
func withStandIn(t *testing.T, fate string, deaths *deaths) (*Torch, error) {
	t.Helper()
	t.Setenv(standInEnv, fate)
	cfg, model := testConfig()
	cfg.Learner, cfg.Torch = LearnerTorch, TorchConfig{Python: os.Args[0], Timeout: pipeline.Duration(deadline)}
	if strings.HasSuffix(fate, "hangs") {
		cfg.Torch.Timeout = pipeline.Duration(2 * time.Second)
	}
	return NewTorch(t.Context(), testRun("stand-in"), cfg, model, "", deaths)
}

// gone fails unless the worker's process has ended.
func gone(t *testing.T, w *worker) {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(deadline):
		t.Error("the worker's process lives on")
	}
}

// Whatever becomes of a worker ends in an error that says so, with its last words, and leaves no process.
func TestTorchWorkerEnds(t *testing.T) {
	for fate, test := range map[string]struct {
		fatal bool
		want  []string
	}{
		"accumulate dies":          {false, []string{"micro-batch 0: not available now: the torch worker died at accumulate (exit status 3); its last words:\na thing the worker said"}},
		"update is killed":         {false, []string{"died at update (signal: killed, as the kernel does where memory runs out)"}},
		"accumulate hangs":         {false, []string{"has not answered accumulate for 2s and was killed; its last words:\na thing the worker said"}},
		"accumulate has no memory": {true, []string{"ran out of memory at accumulate: MemoryError: 8 TiB", "run.seq_len"}},
		"update fails":             {true, []string{"failed at update: ValueError: no such thing; its last words:\na thing the worker said"}},
	} {
		t.Run(fate, func(t *testing.T) {
			l, err := withStandIn(t, fate, new(deaths))
			if err != nil {
				t.Fatal(err)
			}
			_, err = trainStep(t.Context(), l, 1, microBatches(1))
			if errors.Is(err, pipeline.ErrFatal) != test.fatal || errors.Is(err, pipeline.ErrTransient) == test.fatal {
				t.Fatalf("error %v, want one that is fatal: %v", err, test.fatal)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q, want %q in it", err, want)
				}
			}
			gone(t, l.worker)
		})
	}
}

// A worker whose rank has lost another one says so, and that is no death of its own.
func TestTorchPeerIsLost(t *testing.T) {
	l, err := withStandIn(t, "accumulate loses a peer", new(deaths))
	if err != nil {
		t.Fatal(err)
	}
	l.cfg.Torch.WorldSize, l.cfg.Torch.Rank = 2, 1
	_, err = trainStep(t.Context(), l, 1, microBatches(1))
	if !errors.Is(err, pipeline.ErrTransient) || errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "rank 1 of 2 has lost another one at accumulate: ConnectionError: rank 0 does not listen") {
		t.Errorf("error %v", err)
	}
	if n := l.deaths.Load(); n != 0 {
		t.Errorf("%d deaths count", n)
	}
}

// The trainer gives up when workers die without a step between them, and not when they die now and then.
func TestTorchWorkersDieInARow(t *testing.T) {
	deaths := new(deaths)
	for i := 1; i <= maxDeaths; i++ {
		l, err := withStandIn(t, "accumulate dies", deaths)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = trainStep(t.Context(), l, 1, microBatches(1)); errors.Is(err, pipeline.ErrFatal) != (i == maxDeaths) {
			t.Errorf("death %d: %v", i, err)
		}
	}
	l, err := withStandIn(t, "nothing happens", deaths)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if step(t, l, 1, microBatches(1)); deaths.Load() != 0 {
		t.Errorf("after a step %d deaths count", deaths.Load())
	}
}

// While a version is saved the next step is prepared and trained.
func TestTorchWorkerAnswersOutOfOrder(t *testing.T) {
	l, err := withStandIn(t, "save waits for update", new(deaths))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	step(t, l, 1, microBatches(1))
	snapshot, err := l.Snapshot(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	saved := make(chan error, 1)
	go func() { saved <- snapshot.Weights(t.Context(), "weights") }()
	for l.worker.oldest() != "save" { // until it is asked for
		runtime.Gosched()
	}
	step(t, l, 2, microBatches(2))
	select {
	case err := <-saved:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(deadline):
		t.Fatal("the save is not answered")
	}
}

// Whoever waits for a worker that fails is told the same, and one death is counted.
func TestTorchWorkerFailsForAll(t *testing.T) {
	deaths := new(deaths)
	l, err := withStandIn(t, "save waits for nothing", deaths)
	if err != nil {
		t.Fatal(err)
	}
	saved := make(chan error, 2)
	for range 2 {
		go func() { saved <- torchSnapshot{t: l}.Weights(t.Context(), "weights") }()
	}
	for l.worker.oldest() != "save" {
		runtime.Gosched()
	}
	l.worker.kill()
	one, two := <-saved, <-saved
	if !errors.Is(one, pipeline.ErrTransient) || one.Error() != two.Error() || !strings.Contains(one.Error(), "died at save (signal: killed") {
		t.Errorf("one was told %v, the other %v", one, two)
	}
	if n := deaths.Load(); n != 1 {
		t.Errorf("%d deaths count", n)
	}
}

// A stop does not wait for a worker.
func TestTorchStops(t *testing.T) {
	l, err := withStandIn(t, "accumulate hangs", new(deaths))
	if err != nil {
		t.Fatal(err)
	}
	l.worker.timeout = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() {
		_, err := trainStep(ctx, l, 1, microBatches(1))
		stopped <- err
	}()
	cancel()
	select {
	case err := <-stopped:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	case <-time.After(deadline):
		t.Fatal("the step goes on")
	}
	gone(t, l.worker)
}

func TestTorchNeedsPython(t *testing.T) {
	cfg, model := testConfig()
	cfg.Torch.Python = "no/such/python"
	if _, err := NewTorch(t.Context(), testRun("none"), cfg, model, "", new(deaths)); err == nil || !strings.Contains(err.Error(), "make torch") {
		t.Errorf("error %v does not say what to run", err)
	}
	if _, err := withStandIn(t, "open fails", new(deaths)); err == nil || !strings.Contains(err.Error(), "failed at open") {
		t.Errorf("a worker that cannot begin: %v", err)
	}
}

// So does a restart of a run.
func TestTorchNeedsPythonAgain(t *testing.T) {
	rt := testRuntime(t, testCluster(t), testRun("again"))
	stop, wait := start(t, testTrainer(t, rt))
	published(t, rt, 1)
	stop()
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	cfg, model := testConfig()
	cfg.Learner, cfg.Torch.Python = LearnerTorch, "no/such/python"
	tr, err := New(rt, cfg, model)
	if err != nil {
		t.Fatal(err)
	}
	_, wait = start(t, tr)
	if err := wait(); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "make torch") {
		t.Errorf("error %v does not say what to run", err)
	}
}
