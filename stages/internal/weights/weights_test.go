package weights

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/safetensors"
)

// made is a safetensors file of random tensors, in an order of its own and of several types.
func made(t testing.TB, rng *rand.Rand, tensors int) []byte {
	t.Helper()
	var list []safetensors.Tensor
	for i := range tensors {
		dtype := []string{"F32", "BF16", "U8"}[rng.IntN(3)]
		list = append(list, safetensors.Tensor{Name: fmt.Sprint("t", (i*7)%tensors, ".", i), DType: dtype, Shape: []int{rng.IntN(4), rng.IntN(50)}})
	}
	h, err := safetensors.MakeHeader(map[string]string{"format": "pt", "of": "test"}, list)
	if err != nil {
		t.Fatal(err)
	}
	data := slices.Clone(h.Raw)
	for _, tensor := range h.Tensors {
		for range tensor.To - tensor.From {
			data = append(data, byte(rng.Uint32()))
		}
	}
	return data
}

// trained is data with some of its tensors changed in one byte, and how many.
func trained(t testing.TB, rng *rand.Rand, data []byte) ([]byte, int) {
	t.Helper()
	h := header(t, data)
	data = slices.Clone(data)
	changed := 0
	for _, tensor := range h.Tensors {
		if tensor.To > tensor.From && rng.IntN(3) == 0 {
			data[tensor.From+rng.Int64N(tensor.To-tensor.From)] ^= 1
			changed++
		}
	}
	return data, changed
}

func header(t testing.TB, data []byte) *safetensors.Header {
	t.Helper()
	h, err := safetensors.ReadHeader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// delta is WriteDelta of files in memory.
func delta(t testing.TB, base, next []byte) ([]byte, Delta, error) {
	t.Helper()
	dir := t.TempDir()
	a, b, out := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "delta")
	if err := errors.Join(os.WriteFile(a, base, 0o644), os.WriteFile(b, next, 0o644)); err != nil {
		t.Fatal(err)
	}
	d, err := WriteDelta(out, a, b)
	if err != nil {
		return nil, d, err
	}
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return data, d, nil
}

// TestDeltaGivesTheVeryBytes makes deltas of random files and puts them on their bases.
func TestDeltaGivesTheVeryBytes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for tensors := range 12 {
		base := made(t, rng, tensors)
		next, changed := trained(t, rng, base)
		data, d, err := delta(t, base, next)
		if err != nil {
			t.Fatal(err)
		}
		want := Delta{BaseSHA256: sumOf(base), FullSHA256: sumOf(next), Tensors: changed, Of: tensors, Bytes: int64(len(data))}
		if d != want || len(header(t, data).Tensors) != changed {
			t.Errorf("a delta %+v, want %+v", d, want)
		}
		got := slices.Clone(base)
		if err := apply(inMemory(got), data); err != nil || !bytes.Equal(got, next) {
			t.Errorf("%d tensors, %d changed: other bytes, error %v", tensors, changed, err)
		}
	}
}

// TestDeltaOfALargeTensor has a tensor longer than what is compared at once, which changes in one byte, its first or its
// last, and one of which a NaN changes its bits.
func TestDeltaOfALargeTensor(t *testing.T) {
	h, err := safetensors.MakeHeader(nil, []safetensors.Tensor{{Name: "large", DType: "U8", Shape: []int{2*chunk + 5}}, {Name: "nan", DType: "F32", Shape: []int{1}}, {Name: "same", DType: "F32", Shape: []int{1}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{h.Tensors[0].From, h.Tensors[0].To - 1} {
		base := append(slices.Clone(h.Raw), make([]byte, 2*chunk+5+8)...)
		next := slices.Clone(base)
		next[at] = 1
		nan := h.Tensors[1].From
		if err := errors.Join(safetensors.PutFloats("F32", base[nan:], []float32{math.Float32frombits(0x7fc00001)}), safetensors.PutFloats("F32", next[nan:], []float32{math.Float32frombits(0x7fc00002)})); err != nil {
			t.Fatal(err)
		}
		if _, d, err := delta(t, base, next); err != nil || d.Tensors != 2 {
			t.Errorf("%+v, error %v", d, err)
		}
	}
}

func TestDeltaNeedsTheSameLayout(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	base, other := made(t, rng, 5), made(t, rng, 6)
	if _, _, err := delta(t, base, other); !errors.Is(err, ErrLayout) {
		t.Errorf("error %v", err)
	}
	for _, wrong := range [][]byte{nil, base[:len(base)-1]} {
		if _, _, err := delta(t, base, wrong); err == nil {
			t.Error("a delta was made of what is no file")
		}
	}
}

// A store has blobs in memory.
type store map[string][]byte

func (s store) put(data []byte) schemas.BlobRef {
	s[sumOf(data)] = data
	return schemas.BlobRef{URI: sumOf(data), SHA256: sumOf(data), Bytes: int64(len(data))}
}

func (s store) Get(_ context.Context, ref schemas.BlobRef) ([]byte, error) {
	data, ok := s[ref.URI]
	if !ok {
		return nil, errors.New("no such blob")
	}
	return slices.Clone(data), nil
}

func (s store) Fetch(ctx context.Context, ref schemas.BlobRef, path string) error {
	data, err := s.Get(ctx, ref)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// A run is versions of random weights, a full one every interval versions and deltas between.
type run struct {
	store    store
	versions []*schemas.PolicyVersion
	weights  [][]byte
}

func newRun(t testing.TB, n, interval int) run {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, 6))
	r := run{store: store{}}
	weights := made(t, rng, 9)
	for i := range n {
		v := &schemas.PolicyVersion{Version: int64(i), Kind: schemas.KindFull}
		if i > 0 {
			weights, _ = trained(t, rng, weights)
		}
		if i%interval == 0 {
			v.Weights = r.store.put(weights)
		} else {
			data, d, err := delta(t, r.weights[i-1], weights)
			if err != nil {
				t.Fatal(err)
			}
			d.Record(v)
			v.Weights = r.store.put(data)
		}
		r.versions, r.weights = append(r.versions, v), append(r.weights, weights)
	}
	return r
}

func (r run) chain(t testing.TB, version int) Chain {
	t.Helper()
	c, err := NewHistory(r.versions...).Chain(r.versions[version])
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestAChainGivesTheWeightsOfItsVersion reads every version of a run: from nothing, from weights at hand that are of the
// chain or not, and to a file.
func TestAChainGivesTheWeightsOfItsVersion(t *testing.T) {
	r := newRun(t, 11, 4)
	for i, want := range r.weights {
		c := r.chain(t, i)
		if len(c.Whole) != i%4+1 || c.Whole[0].Kind != schemas.KindFull || c.Versions()[len(c.Whole)-1] != r.versions[i] {
			t.Fatalf("version %d has a chain of %d", i, len(c.Whole))
		}
		for from := -1; from < len(r.weights); from++ {
			var held Held
			if from >= 0 {
				held = Held{slices.Clone(r.weights[from]), sumOf(r.weights[from])}
			}
			got, used, err := c.Read(t.Context(), r.store, held)
			if wantUsed := from >= 0 && from/4 == i/4 && from <= i; err != nil || !bytes.Equal(got.Bytes, want) || got.SHA256 != sumOf(want) || used != wantUsed {
				t.Errorf("version %d from %d: used %v, error %v", i, from, used, err)
			}
		}
		dir := t.TempDir()
		path := filepath.Join(dir, "whole")
		if err := c.Fetch(t.Context(), r.store, path); err != nil {
			t.Error(err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("version %d in a file: error %v", i, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("%v are left, %v", left, err)
		}
	}
}

// TestAWrongChainIsRefused spoils what a chain is made of, one thing at a time.
func TestAWrongChainIsRefused(t *testing.T) {
	for _, c := range []struct {
		what, want string
		spoil      func(r *run)
	}{
		{"another result", "its record names", func(r *run) { r.versions[3].FullSHA256 = sumOf(nil) }},
		{"another base", "its record names", func(r *run) {
			r.store[r.versions[0].Weights.URI] = slices.Clone(r.weights[0])
			b := r.store[r.versions[0].Weights.URI]
			b[len(b)-1] ^= 1
		}},
		{"a link is gone", "no such blob", func(r *run) { delete(r.store, r.versions[1].Weights.URI) }},
		{"a link that is no file", "delta", func(r *run) { r.store[r.versions[2].Weights.URI] = []byte("pickle") }},
		{"tensors of another model", "have no tensor", func(r *run) {
			r.store[r.versions[2].Weights.URI] = made(t, rand.New(rand.NewPCG(7, 8)), 4)
		}},
		{"a tensor of another shape", "have no tensor", func(r *run) {
			one := header(t, r.weights[0]).Tensors[0]
			one.Shape = []int{5000}
			h, err := safetensors.MakeHeader(nil, []safetensors.Tensor{one})
			if err != nil {
				t.Fatal(err)
			}
			r.store[r.versions[2].Weights.URI] = append(h.Raw, make([]byte, h.Tensors[0].To-int64(len(h.Raw)))...)
		}},
	} {
		r := newRun(t, 4, 4)
		chain := r.chain(t, 3)
		c.spoil(&r)
		if got, _, err := chain.Read(t.Context(), r.store, Held{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %d bytes, error %v", c.what, len(got.Bytes), err)
		}
		dir := t.TempDir()
		if err := chain.Fetch(t.Context(), r.store, filepath.Join(dir, "whole")); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, to a file: error %v", c.what, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: %v are left, %v", c.what, left, err)
		}
	}
}

// version is a record whose weights, and base, have names of one letter.
func version(n int64, kind, base, gives string) *schemas.PolicyVersion {
	v := &schemas.PolicyVersion{Version: n, Kind: kind, BaseSHA256: base, Weights: schemas.BlobRef{URI: gives, SHA256: gives}}
	if kind == schemas.KindDelta {
		v.Weights.SHA256, v.FullSHA256 = "delta"+gives, gives
	}
	return v
}

func numbers(c Chain) (list []int64) {
	for _, v := range c.Versions() {
		list = append(list, v.Version)
	}
	return list
}

// TestChains finds what versions are made from: whoever has read more finds the same.
func TestChains(t *testing.T) {
	full, delta, lora := schemas.KindFull, schemas.KindDelta, schemas.KindLoRA
	versions := []*schemas.PolicyVersion{
		version(0, full, "", "a"), version(1, delta, "a", "b"), version(2, delta, "b", "b"), version(3, full, "", "b"),
		version(4, delta, "b", "c"), version(5, lora, "a", "x"), version(6, lora, "c", "y"), version(7, delta, "c", "a"),
		version(8, delta, "a", "d"), version(9, full, "", "a"),
	}
	want := [][]int64{{0}, {0, 1}, {0, 1, 2}, {3}, {3, 4}, {0, 5}, {3, 4, 6}, {3, 4, 7}, {0, 8}, {9}}
	for i, v := range versions {
		for _, read := range []int{i + 1, len(versions)} {
			h := NewHistory(versions[:read]...)
			if c, err := h.Chain(v); err != nil || !slices.Equal(numbers(c), want[i]) {
				t.Errorf("version %d among %d: chain %v, error %v, want %v", i, read, numbers(c), err, want[i])
			}
			if h.Based() != (read > 1) {
				t.Errorf("among %d versions some are based on others: %v", read, h.Based())
			}
		}
	}
	for _, v := range []*schemas.PolicyVersion{
		version(10, delta, "z", "e"), version(10, lora, "z", "e"), version(10, lora, "x", "e"), version(10, "pickle", "", "e"), version(1, delta, "d", "e"),
	} {
		if c, err := NewHistory(versions...).Chain(v); err == nil {
			t.Errorf("version %d, a %s of %s, has the chain %v", v.Version, v.Kind, v.BaseSHA256, numbers(c))
		}
	}
}

func TestChainsAreBounded(t *testing.T) {
	versions := []*schemas.PolicyVersion{version(0, schemas.KindFull, "", "0")}
	for n := int64(1); n <= MaxDeltas+1; n++ {
		versions = append(versions, version(n, schemas.KindDelta, fmt.Sprint(n-1), fmt.Sprint(n)))
	}
	h := NewHistory(versions...)
	if _, err := h.Chain(versions[MaxDeltas]); err != nil {
		t.Error(err)
	}
	if _, err := h.Chain(versions[MaxDeltas+1]); err == nil || !strings.Contains(err.Error(), "more than 100 deltas") {
		t.Errorf("error %v", err)
	}
}

// FuzzApply puts any bytes on weights: it fails with an error, or replaces tensors and nothing else.
func FuzzApply(f *testing.F) {
	rng := rand.New(rand.NewPCG(9, 10))
	base := made(f, rng, 5)
	next, _ := trained(f, rng, base)
	d, _, err := delta(f, base, next)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(d)
	f.Add(base)
	f.Fuzz(func(t *testing.T, data []byte) {
		got := slices.Clone(base)
		if err := apply(inMemory(got), data); err == nil && !bytes.Equal(header(t, got).Raw, header(t, base).Raw) {
			t.Error("the header changed")
		}
	})
}
