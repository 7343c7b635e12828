package trainer

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
)

// standInEnv makes the test binary a worker without PyTorch, which answers every request but one. It names the request and
// what becomes of it: "micro_batch dies".
const standInEnv = "TEST_TORCH_WORKER"

func standIn(op, fate string) {
	requests, answers := os.NewFile(3, "requests"), os.NewFile(4, "answers")
	for {
		var prefix [12]byte
		if _, err := io.ReadFull(requests, prefix[:]); err != nil {
			os.Exit(0)
		}
		head := make([]byte, binary.LittleEndian.Uint32(prefix[:]))
		var request struct{ Op string }
		if _, err := io.ReadFull(requests, head); err != nil || json.Unmarshal(head, &request) != nil {
			os.Exit(1)
		}
		if _, err := io.CopyN(io.Discard, requests, int64(binary.LittleEndian.Uint64(prefix[4:]))); err != nil {
			os.Exit(1)
		}
		text := `{"applied": true}`
		if request.Op == op {
			fmt.Println("a thing the worker said")
			switch fate {
			case "dies":
				os.Exit(3)
			case "is killed":
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			case "hangs":
				select {}
			case "has no memory":
				text = `{"error": "MemoryError: 8 TiB", "out_of_memory": true}`
			case "fails":
				text = `{"error": "ValueError: no such thing"}`
			}
		}
		answer := binary.LittleEndian.AppendUint32(nil, uint32(len(text)))
		answer = append(binary.LittleEndian.AppendUint64(answer, 0), text...)
		if _, err := answers.Write(answer); err != nil || strings.Contains(text, "error") {
			os.Exit(1)
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
	return NewTorch(testRun("stand-in"), cfg, model, deaths)
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
		"micro_batch dies":          {false, []string{"micro-batch 0: not available now: the torch worker died at micro_batch (exit status 3); its last words:\na thing the worker said"}},
		"update is killed":          {false, []string{"died at update (signal: killed, as the kernel does where memory runs out)"}},
		"micro_batch hangs":         {false, []string{"has not answered micro_batch for 2s and was killed; its last words:\na thing the worker said"}},
		"micro_batch has no memory": {true, []string{"ran out of memory at micro_batch: MemoryError: 8 TiB", "run.seq_len"}},
		"update fails":              {true, []string{"failed at update: ValueError: no such thing; its last words:\na thing the worker said"}},
	} {
		t.Run(fate, func(t *testing.T) {
			l, err := withStandIn(t, fate, new(deaths))
			if err != nil {
				t.Fatal(err)
			}
			_, err = l.Step(t.Context(), 1, microBatches(1))
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

// The trainer gives up when workers die without a step between them, and not when they die now and then.
func TestTorchWorkersDieInARow(t *testing.T) {
	deaths := new(deaths)
	for i := 1; i <= maxDeaths; i++ {
		l, err := withStandIn(t, "micro_batch dies", deaths)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = l.Step(t.Context(), 1, microBatches(1)); errors.Is(err, pipeline.ErrFatal) != (i == maxDeaths) {
			t.Errorf("death %d: %v", i, err)
		}
	}
	l, err := withStandIn(t, "nothing happens", deaths)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if step(t, l, 1, microBatches(1)); *deaths != 0 {
		t.Errorf("after a step %d deaths count", *deaths)
	}
}

// A stop does not wait for a worker.
func TestTorchStops(t *testing.T) {
	l, err := withStandIn(t, "micro_batch hangs", new(deaths))
	if err != nil {
		t.Fatal(err)
	}
	l.worker.timeout = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() {
		_, err := l.Step(ctx, 1, microBatches(1))
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
	if _, err := NewTorch(testRun("none"), cfg, model, new(deaths)); err == nil || !strings.Contains(err.Error(), "make torch") {
		t.Errorf("error %v does not say what to run", err)
	}
	if _, err := withStandIn(t, "open fails", new(deaths)); err == nil || !strings.Contains(err.Error(), "failed at open") {
		t.Errorf("a worker that cannot begin: %v", err)
	}
}
