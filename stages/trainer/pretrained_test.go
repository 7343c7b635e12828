package trainer

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/stages/internal/lm"
)

// A folder that lm writes gives the same logits in transformers, also of sequences that are packed.
func TestTorchLogits(t *testing.T) {
	need.Torch(t, torchDir)
	kinds := []string{lm.TypeLlama, lm.TypeQwen3}
	want := make([][]float32, len(kinds))
	var sequences [][]int32
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{17, 1, 40} {
		sequence := make([]int32, n)
		for i := range sequence {
			sequence[i] = rng.Int32N(16)
		}
		sequences = append(sequences, sequence)
	}
	list, err := json.Marshal(sequences)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"torch/tests/logits.py", string(list)}
	for k, kind := range kinds {
		m, _, tokenizer, err := newModel(testRun("logits"), parityModel(kind))
		if err != nil {
			t.Fatal(err)
		}
		sharpen(t, m)
		tok, err := lm.ParseTokenizer(tokenizer)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), kind)
		if err := lm.SaveFolder(dir, m, tok); err != nil {
			t.Fatal(err)
		}
		args = append(args, dir)
		for _, s := range sequences {
			want[k] = append(want[k], logitsOf(t, m, s)...)
		}
	}
	lines := strings.Fields(runPython(t, args...))
	if len(lines) != len(kinds) {
		t.Fatalf("logits of %d models, want %d", len(lines), len(kinds))
	}
	for k, kind := range kinds {
		t.Run(kind, func(t *testing.T) { sameLogits(t, want[k], lines[k]) })
	}
}

// sharpen makes matrices larger than at the start, and norms other than one.
func sharpen(t *testing.T, m *lm.Model) {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 4))
	for _, p := range m.Params() {
		for i := range p.Data {
			if len(p.Shape) > 1 {
				p.Data[i] *= 4
			} else {
				p.Data[i] = 0.5 + rng.Float32()
			}
		}
	}
	if err := m.Load(m.Params()); err != nil {
		t.Fatal(err)
	}
}

// logitsOf are the logits after every token of a sequence.
func logitsOf(t *testing.T, m *lm.Model, sequence []int32) (all []float32) {
	t.Helper()
	d, err := lm.NewDecoder(m, 1, len(sequence))
	if err != nil {
		t.Fatal(err)
	}
	slot, _ := d.Acquire()
	for i := range sequence {
		logits, err := d.Step([]lm.Chunk{{Slot: slot, Tokens: sequence[i : i+1]}})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, logits...)
	}
	return all
}

// sameLogits holds logits against those of transformers, in hex.
func sameLogits(t *testing.T, want []float32, theirs string) {
	t.Helper()
	raw, err := hex.DecodeString(theirs)
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

// What transformers saves, in float32 and bfloat16, with tied embeddings or not, lm reads, and has the same logits.
func TestTorchPretrained(t *testing.T) {
	need.Torch(t, torchDir)
	tok, err := lm.NewTokenizer("abcdefgh")
	if err != nil {
		t.Fatal(err)
	}
	tokenizer, err := json.Marshal(tok)
	if err != nil {
		t.Fatal(err)
	}
	tokens := []int32{5, 1, 9, 9, 2, 14, 0, 7, 11, 3, 4, 4, 8}
	list, err := json.Marshal(tokens)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var saved map[string]string
	if err := json.Unmarshal([]byte(runPython(t, "torch/tests/pretrained.py", dir, strconv.Itoa(tok.VocabSize()), string(list))), &saved); err != nil {
		t.Fatal(err)
	}
	if len(saved) != 5 {
		t.Errorf("%d models were saved, want 5", len(saved))
	}
	for name, logits := range saved {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(dir, name)
			if err := os.WriteFile(filepath.Join(folder, "tokenizer.json"), tokenizer, 0o600); err != nil {
				t.Fatal(err)
			}
			m, _, err := lm.LoadFolder(folder)
			if err != nil {
				t.Fatal(err)
			}
			sameLogits(t, logitsOf(t, m, tokens), logits)
		})
	}
}
