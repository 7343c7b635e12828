package trainer

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
)

// torchDir is where `make torch` puts the interpreter with PyTorch.
const torchDir = "../../.cache/torch"

func needTorch(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no PyTorch")
	}
	if _, err := os.Stat(filepath.Join(torchDir, "installed")); err != nil {
		const why = "no PyTorch: `make torch` installs it"
		if os.Getenv("PRL_TEST_TORCH") == "required" {
			t.Fatal(why + " (PRL_TEST_TORCH=required)")
		}
		t.Skip(why)
	}
}

func torchConfig() (Config, ModelConfig) {
	cfg, model := testConfig()
	cfg.Learner, cfg.Torch.Python, cfg.Torch.Timeout = LearnerTorch, filepath.Join(torchDir, "bin", "python"), pipeline.Duration(deadline)
	return cfg, model
}

// parityModel has odd sizes, several layers and several groups of heads.
func parityModel() ModelConfig {
	return ModelConfig{HiddenSize: 24, Layers: 3, Heads: 4, KVHeads: 2, FFN: 40, MaxPosition: 64, Alphabet: "abcdefgh"}
}

func newTorch(t testing.TB, cfg Config, model ModelConfig) *Torch {
	t.Helper()
	needTorch(t)
	l, err := NewTorch(testRun("torch"), cfg, model, new(deaths))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// open begins the worker of l anew, with other settings.
func (t *Torch) reopen(tb testing.TB, cfg Config, model ModelConfig) {
	tb.Helper()
	m, config, _, err := newModel(t.run, model)
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	if err := unpack(dir, m, config); err != nil {
		tb.Fatal(err)
	}
	t.cfg, t.schedule = cfg, cfg.schedule(t.run)
	if err := t.open(dir); err != nil {
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

func bytesOf(t testing.TB, get func() ([]byte, error)) []byte {
	t.Helper()
	data, err := get()
	if err != nil {
		t.Fatal(err)
	}
	return data
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
// loss.
func TestTorchTrainsAsNativeDoes(t *testing.T) {
	cfg, _ := torchConfig()
	model := parityModel()
	l := newTorch(t, cfg, model)
	for _, loss := range []string{LossDPPO, LossIPO, LossPPO, LossGSPO, LossTIS} {
		t.Run(loss, func(t *testing.T) {
			cfg := cfg
			cfg.Loss, cfg.WeightDecay, cfg.KLTau, cfg.MaxGradNorm = loss, 0.1, 0.01, 0.5
			cfg.DPPOMaskHigh, cfg.IPOMask = 0.02, 0.02 // which a policy that is nearly uniform meets, too
			n, err := NewNative(l.run, cfg, model)
			if err != nil {
				t.Fatal(err)
			}
			l.reopen(t, cfg, model)
			var figure, norm, weight, moved float64
			first := bytesOf(t, n.Weights)
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
				weight = max(weight, largest(t, bytesOf(t, n.Weights), bytesOf(t, l.Weights)))
				moved = largest(t, first, bytesOf(t, n.Weights))
			}
			if !(norm <= normTolerance) || !(weight <= weightTolerance) {
				t.Errorf("gradient norms differ by %g, weights by %g", norm, weight)
			}
			if moved < 50*weightTolerance {
				t.Errorf("weights moved by %g only: the test shows little", moved)
			}
			state := largest(t, bytesOf(t, n.Checkpoint), bytesOf(t, l.Checkpoint))
			t.Logf("largest differences: figures %.2g, gradient norm %.2g, weights %.2g (moved %.2g), moments %.2g", figure, norm, weight, moved, state)
			if !(state <= weightTolerance) {
				t.Errorf("the optimizer's states differ by %g", state)
			}
		})
	}
}

// A folder that lm writes gives the same logits in transformers, also of sequences that are packed.
func TestTorchLogits(t *testing.T) {
	needTorch(t)
	run := testRun("logits")
	m, _, tokenizer, err := newModel(run, parityModel())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range m.Params() { // sharper than at the start
		if len(p.Shape) > 1 {
			for i := range p.Data {
				p.Data[i] *= 8
			}
		}
	}
	if err := m.Load(m.Params()); err != nil {
		t.Fatal(err)
	}
	tok, err := lm.ParseTokenizer(tokenizer)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := lm.SaveFolder(dir, m, tok); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	d, err := lm.NewDecoder(m, 3, 64)
	if err != nil {
		t.Fatal(err)
	}
	var sequences [][]int32
	var want []float32
	for _, n := range []int{17, 1, 40} {
		slot, _ := d.Acquire()
		var sequence []int32
		for range n {
			sequence = append(sequence, rng.Int32N(int32(m.Config().VocabSize)))
			logits, err := d.Step([]lm.Chunk{{Slot: slot, Tokens: sequence[len(sequence)-1:]}})
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, logits...)
		}
		sequences = append(sequences, sequence)
	}
	list, err := json.Marshal(sequences)
	if err != nil {
		t.Fatal(err)
	}
	out := runPython(t, "torch/tests/logits.py", dir, string(list))
	raw, err := hex.DecodeString(strings.TrimSpace(out))
	if err != nil || len(raw) != 4*len(want) {
		t.Fatalf("%d bytes for %d logits: %v", len(raw), len(want), err)
	}
	var diff, top float64
	for i, w := range want {
		got := math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		diff, top = max(diff, math.Abs(float64(got-w))), max(top, math.Abs(float64(w)))
	}
	t.Logf("largest difference of %d logits, up to %.2g: %.2g", len(want), top, diff)
	if !(diff <= logitTolerance) || top < 1 {
		t.Errorf("logits up to %g differ by %g", top, diff)
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
	if weightsOf(t, l) != before {
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
		if err := errors.Join(to.Load(bytesOf(t, from.Weights)), to.Restore(bytesOf(t, from.Checkpoint))); err != nil {
			t.Fatal(err)
		}
	}
	hand(n, l)
	if weightsDiff, state := largest(t, bytesOf(t, n.Weights), bytesOf(t, l.Weights)), largest(t, bytesOf(t, n.Checkpoint), bytesOf(t, l.Checkpoint)); weightsDiff != 0 || state != 0 {
		t.Errorf("handed over, weights differ by %g, the optimizer's state by %g", weightsDiff, state)
	}
	step(t, n, 3, microBatches(3))
	step(t, l, 3, microBatches(3))
	if diff := largest(t, bytesOf(t, n.Weights), bytesOf(t, l.Weights)); !(diff <= weightTolerance) {
		t.Errorf("a step later weights differ by %g", diff)
	}
	hand(l, n)
	if diff := largest(t, bytesOf(t, n.Weights), bytesOf(t, l.Weights)); diff != 0 {
		t.Errorf("handed back, weights differ by %g", diff)
	}
	bad := bytesOf(t, l.Checkpoint)
	if err := l.Load(bad); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "tensor") {
		t.Errorf("a checkpoint as weights: %v", err)
	}
}

// A micro-batch that cannot be trained is refused before the worker sees it; what is no micro-batch at all the worker
// refuses, with its traceback.
func TestTorchRefusesBatches(t *testing.T) {
	cfg, model := torchConfig()
	l := newTorch(t, cfg, model)
	micro := microBatches(1)
	ids := micro[0].TokenIDs.Values()
	ids[1] = 1000
	micro[0].TokenIDs = schemas.PackInt32s(ids)
	if _, err := l.Step(t.Context(), 1, micro); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "not in the vocabulary") {
		t.Errorf("a token outside of the vocabulary: %v", err)
	}
	step(t, l, 1, microBatches(1)) // the worker is as it was
	args := map[string]any{"entropy_coef": 0, "rl_tokens": 1, "ce_tokens": 0, "ref_kl_tokens": 0}
	if _, _, err := l.ask(t.Context(), "micro_batch", args, []byte{1, 2, 3}); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "Traceback") {
		t.Errorf("bytes that are no record: %v", err)
	}
	gone(t, l.worker)
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

// TestTorchCrash kills a trainer with its worker, then workers: one in a step, the next before it has loaded the weights.
// Every step has one version, and the weights are those of a run without a fault, up to rounding.
func TestTorchCrash(t *testing.T) {
	needTorch(t)
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
	crash(t, rt, dir, LearnerTorch, "after-weights", 3)
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
	inner, made := tr.newLearner, 0
	tr.newLearner = func() (Learner, error) {
		l, err := inner()
		if made++; made == 2 && err == nil { // so that it dies when it is to load the checkpoint
			l.(hooked).Learner.(*Torch).worker.kill()
		}
		return l, err
	}
	runToEnd(t, tr)
	if made != 3 {
		t.Errorf("%d learners were made, want 3", made)
	}
	// The child has published versions 0 and 1; the checkpoints are of 0 and 3.
	if want := []int64{1, 2, 3, 4, 5, 4, 5}; !slices.Equal(steps, want) {
		t.Errorf("steps trained: %v, want %v", steps, want)
	}
	if diff := largest(t, final(nativeRun), final(rt)); !(diff <= weightTolerance) {
		t.Errorf("the final weights differ from the native learner's by %g", diff)
	}
}

// The worker's own tests.
func TestTorchPython(t *testing.T) {
	needTorch(t)
	runPython(t, "-m", "unittest", "discover", "-s", "torch/tests", "-v")
}
