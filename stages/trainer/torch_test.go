package trainer

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
)

// torchDir is where `make torch` puts the interpreter with PyTorch.
const torchDir = "../../.cache/torch"

func torchConfig() (Config, ModelConfig) {
	cfg, model := testConfig()
	cfg.Learner, cfg.Torch.Python, cfg.Torch.Timeout = LearnerTorch, filepath.Join(torchDir, "bin", "python"), pipeline.Duration(deadline)
	return cfg, model
}

// parityModel has odd sizes, several layers and several groups of heads; in qwen3's, heads are wider than their share.
func parityModel(kind string) ModelConfig {
	m := ModelConfig{Type: kind, HiddenSize: 24, Layers: 3, Heads: 4, KVHeads: 2, FFN: 40, MaxPosition: 64, Alphabet: "abcdefgh"}
	if kind == lm.TypeQwen3 {
		m.HeadDim = 10
	}
	return m
}

// idle is a learner that a test has left, for the next: a worker takes seconds to start.
var idle = make(chan *Torch, 1)

func newTorch(t testing.TB, cfg Config, model ModelConfig) *Torch {
	t.Helper()
	need.Torch(t, torchDir)
	var l *Torch
	select {
	case l = <-idle:
		l.reopen(t, cfg, model)
	default:
		var err error
		if l, err = NewTorch(t.Context(), testRun("torch"), cfg, model, "", new(deaths)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		select {
		case <-l.worker.done:
			return
		default:
		}
		select {
		case idle <- l:
		default:
			l.Close()
		}
	})
	return l
}

// open begins the worker of l anew, with other settings.
func (t *Torch) reopen(tb testing.TB, cfg Config, model ModelConfig) {
	tb.Helper()
	t.cfg, t.schedule = cfg, cfg.schedule(t.run)
	folder, err := t.unpack(tb.TempDir(), model, "")
	if err == nil {
		err = t.open(tb.Context(), folder)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// varied is imitated with temperatures, advantages of both signs and tokens far off the policy, so that every bound of
// every loss is met.
func varied(step int64) []*schemas.MicroBatch {
	micro := imitated(step)
	rng := rand.New(rand.NewPCG(uint64(step), 11))
	for _, m := range micro {
		temperatures, advantages, logprobs := m.Temperatures.Values(), m.Advantages.Values(), m.Logprobs.Values()
		for i := range temperatures {
			temperatures[i], advantages[i], logprobs[i] = 0.6+rng.Float32(), float32(rng.NormFloat64()), -0.2-4*rng.Float32()
		}
		m.Temperatures, m.Advantages, m.Logprobs = schemas.PackFloat32s(temperatures), schemas.PackFloat32s(advantages), schemas.PackFloat32s(logprobs)
	}
	return micro
}

// largest is the largest difference of two safetensors of equal names.
func largest(t testing.TB, a, b []byte) (diff float64) {
	t.Helper()
	pa, err := lm.ReadSafetensors(a)
	if err != nil {
		t.Fatal(err)
	}
	pb, err := lm.ReadSafetensors(b)
	if err != nil {
		t.Fatal(err)
	}
	if len(pa) != len(pb) {
		t.Fatalf("%d tensors and %d", len(pa), len(pb))
	}
	for i, p := range pa {
		if p.Name != pb[i].Name || len(p.Data) != len(pb[i].Data) {
			t.Fatalf("tensor %s of %d elements is %s of %d in the other", p.Name, len(p.Data), pb[i].Name, len(pb[i].Data))
		}
		for k, v := range p.Data {
			diff = max(diff, math.Abs(float64(v-pb[i].Data[k])))
		}
	}
	return diff
}

// Tolerances between the native and the torch learner: of a figure, relative above 1; of a gradient's norm, relative; of a
// weight after paritySteps.
const (
	figureTolerance = 2e-5
	normTolerance   = 1e-4
	weightTolerance = 1e-4
	logitTolerance  = 1e-4
	paritySteps     = 5
)

// Both learners, from the same weights and on the same batches, have the same figures, gradients and weights, whatever the
// loss and the shape.
func TestTorchTrainsAsNativeDoes(t *testing.T) {
	cfg, _ := torchConfig()
	l := newTorch(t, cfg, parityModel(lm.TypeLlama))
	for _, c := range []struct{ loss, kind string }{
		{LossDPPO, lm.TypeLlama}, {LossIPO, lm.TypeLlama}, {LossPPO, lm.TypeLlama}, {LossGSPO, lm.TypeLlama}, {LossTIS, lm.TypeLlama},
		{LossDPPO, lm.TypeQwen3},
	} {
		t.Run(c.loss+"/"+c.kind, func(t *testing.T) {
			cfg, model := cfg, parityModel(c.kind)
			cfg.Loss, cfg.WeightDecay, cfg.KLTau, cfg.MaxGradNorm = c.loss, 0.1, 0.01, 0.5
			cfg.DPPOMaskHigh, cfg.IPOMask = 0.02, 0.02 // which a policy that is nearly uniform meets, too
			n, err := NewNative(l.run, cfg, model)
			if err != nil {
				t.Fatal(err)
			}
			l.reopen(t, cfg, model)
			var figure, norm, weight, moved float64
			first := weightsOf(t, n)
			for s := int64(1); s <= paritySteps; s++ {
				want, got := step(t, n, s, varied(s)), step(t, l, s, varied(s))
				if len(want.Values) != len(got.Values) || want.Skipped != got.Skipped || want.Values["masked"] == 0 {
					t.Fatalf("step %d: native %v, torch %v", s, want, got)
				}
				for name, v := range want.Values {
					diff := math.Abs(got.Values[name]-v) / max(1, math.Abs(v))
					if name == "grad_norm" {
						norm = max(norm, math.Abs(got.Values[name]-v)/v)
						continue
					}
					if !(diff <= figureTolerance) {
						t.Errorf("step %d: %s = %v, native %v", s, name, got.Values[name], v)
					}
					figure = max(figure, diff)
				}
				weight = max(weight, largest(t, weightsOf(t, n), weightsOf(t, l)))
				moved = largest(t, first, weightsOf(t, n))
			}
			if !(norm <= normTolerance) || !(weight <= weightTolerance) {
				t.Errorf("gradient norms differ by %g, weights by %g", norm, weight)
			}
			if moved < 50*weightTolerance {
				t.Errorf("weights moved by %g only: the test shows little", moved)
			}
			_, want := state(t, n)
			_, got := state(t, l)
			moments := largest(t, want, got)
			t.Logf("largest differences: figures %.2g, gradient norm %.2g, weights %.2g (moved %.2g), moments %.2g", figure, norm, weight, moved, moments)
			if !(moments <= weightTolerance) {
				t.Errorf("the optimizer's states differ by %g", moments)
			}
		})
	}
}

func runPython(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(torchDir, "bin", "python"), args...)
	cmd.Env = append(os.Environ(), "PYTHONPATH=torch", "PYTHONDONTWRITEBYTECODE=1", "HF_HUB_OFFLINE=1")
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return string(out)
}

// A gradient that is not finite changes nothing, and the next step goes on without it.
func TestTorchSkips(t *testing.T) {
	cfg, model := torchConfig()
	cfg.Loss = LossPPO
	n, err := NewNative(testRun("skip"), cfg, model)
	if err != nil {
		t.Fatal(err)
	}
	l := newTorch(t, cfg, model)
	micro := microBatches(1)
	logprobs := micro[0].Logprobs.Values()
	for i := range logprobs {
		logprobs[i] = -800 // so that the ratio is infinite
	}
	micro[0].Logprobs = schemas.PackFloat32s(logprobs)
	before := weightsOf(t, l)
	if want, got := step(t, n, 1, micro), step(t, l, 1, micro); !want.Skipped || !got.Skipped {
		t.Fatalf("skipped: native %v, torch %v", want.Skipped, got.Skipped)
	}
	if largest(t, weightsOf(t, l), before) != 0 {
		t.Error("the weights have changed")
	}
	if want, got := step(t, n, 2, microBatches(2)), step(t, l, 2, microBatches(2)); got.Skipped || math.Abs(got.Values["grad_norm"]-want.Values["grad_norm"]) > normTolerance {
		t.Errorf("the next step: %v, native %v", got, want)
	}
}

// Each learner goes on from weights and checkpoint of the other as that one does.
func TestTorchGoesOnFromNative(t *testing.T) {
	cfg, model := torchConfig()
	n, err := NewNative(testRun("on"), cfg, model)
	if err != nil {
		t.Fatal(err)
	}
	l := newTorch(t, cfg, model)
	step(t, n, 1, microBatches(1))
	step(t, n, 2, microBatches(2))
	hand := func(from, to Learner) {
		t.Helper()
		weights, checkpoint := state(t, from)
		if err := load(t, to, weights, checkpoint); err != nil {
			t.Fatal(err)
		}
		gotWeights, gotCheckpoint := state(t, to)
		if w, c := largest(t, weights, gotWeights), largest(t, checkpoint, gotCheckpoint); w != 0 || c != 0 {
			t.Errorf("handed over, weights differ by %g, the optimizer's state by %g", w, c)
		}
	}
	hand(n, l)
	step(t, n, 3, microBatches(3))
	step(t, l, 3, microBatches(3))
	if diff := largest(t, weightsOf(t, n), weightsOf(t, l)); !(diff <= weightTolerance) {
		t.Errorf("a step later weights differ by %g", diff)
	}
	hand(l, n)
	_, bad := state(t, l)
	if err := load(t, l, bad, nil); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "tensor") || !strings.Contains(err.Error(), "Traceback") {
		t.Errorf("a checkpoint as weights: %v", err)
	}
	gone(t, l.worker)
}

// A micro-batch that cannot be trained is refused before the worker sees it.
func TestTorchRefusesBatches(t *testing.T) {
	cfg, model := torchConfig()
	l := newTorch(t, cfg, model)
	micro := microBatches(1)
	ids := micro[0].TokenIDs.Values()
	ids[1] = 1000
	micro[0].TokenIDs = schemas.PackInt32s(ids)
	if _, err := trainStep(t.Context(), l, 1, micro); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "not in the vocabulary") {
		t.Errorf("a token outside of the vocabulary: %v", err)
	}
	step(t, l, 1, microBatches(1)) // the worker is as it was
}

// A worker whose trainer is gone ends.
func TestTorchWorkerEndsWithTheTrainer(t *testing.T) {
	cfg, model := torchConfig()
	l := newTorch(t, cfg, model)
	if err := l.worker.requests.Close(); err != nil { // as the kernel does when a process ends
		t.Fatal(err)
	}
	gone(t, l.worker)
	if !l.worker.cmd.ProcessState.Success() {
		t.Errorf("the worker ended with %v%s", l.worker.cmd.ProcessState, l.worker.words())
	}
}

// So does one whose trainer was killed in the middle of a request, although nobody reads what it says of that.
func TestTorchWorkerEndsInARequest(t *testing.T) {
	need.Torch(t, torchDir)
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		return r, w
	}
	requests, trainer := pipe()
	said, says := pipe()
	cmd := exec.CommandContext(t.Context(), filepath.Join(torchDir, "bin", "python"), "-P", "-m", "prl_torch")
	cmd.Env = append(os.Environ(), "PYTHONPATH=torch", "PYTHONDONTWRITEBYTECODE=1", "HF_HUB_OFFLINE=1")
	cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = []*os.File{requests, says}, says, says
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	half := append(binary.LittleEndian.AppendUint32(nil, 100), make([]byte, 8+50)...) // of a head of 100 bytes
	if _, err := trainer.Write(half); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(requests.Close(), says.Close(), said.Close(), trainer.Close()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
			t.Errorf("the worker ended with %v", err)
		}
	case <-time.After(deadline):
		t.Error("the worker's process lives on")
	}
}

// TestTorchCrash kills a trainer in a step, whose worker ends with it, then a worker in a step.
// Every step has one version, and the weights are those of a run without a fault, up to rounding.
func TestTorchCrash(t *testing.T) {
	need.Torch(t, torchDir)
	cfg, model := torchConfig()
	cluster := testCluster(t)
	nativeRun := testRuntime(t, cluster, testRun("torch-reference"))
	packSteps(t, nativeRun, 1, nativeRun.Run.MaxSteps)
	runToEnd(t, testTrainer(t, nativeRun))
	final := func(rt *pipeline.Runtime) []byte {
		t.Helper()
		v := checkChain(t, rt, rt.Run.MaxSteps)[rt.Run.MaxSteps]
		weights, err := rt.Blobs.Get(t.Context(), v.Weights)
		if err != nil {
			t.Fatal(err)
		}
		return weights
	}
	dir := t.TempDir()
	rt := setUp(t, cluster, dir, testRun("torch-crash"))
	packSteps(t, rt, 1, rt.Run.MaxSteps)
	crash(t, rt, dir, LearnerTorch, "before-update", 2)
	tr, err := New(rt, cfg, model)
	if err != nil {
		t.Fatal(err)
	}
	var steps []int64
	hook(tr, false, func(s int64, l Learner) {
		if steps = append(steps, s); s == 5 && len(steps) == 5 {
			l.(*Torch).worker.kill()
		}
	})
	runToEnd(t, tr)
	// The child has published version 0, and maybe 1; the checkpoints are of 0 and 3.
	if want := []int64{1, 2, 3, 4, 5, 4, 5}; !slices.Equal(steps, want) {
		t.Errorf("steps trained: %v, want %v", steps, want)
	}
	if diff := largest(t, final(nativeRun), final(rt)); !(diff <= weightTolerance) {
		t.Errorf("the final weights differ from the native learner's by %g", diff)
	}
}

// The worker's own tests.
func TestTorchPython(t *testing.T) {
	need.Torch(t, torchDir)
	runPython(t, "-m", "unittest", "discover", "-s", "torch/tests", "-v")
}
