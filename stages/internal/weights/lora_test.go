package weights

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/internal/safetensors"
)

func golden(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestMergeIsPeftsMerge merges what peft 0.21.2 saved of a Llama model with random factors, in float32 and, with rank-stabilised
// scaling, in bfloat16, and compares with its merge_and_unload: equal but for the rounding of the sums.
func TestMergeIsPeftsMerge(t *testing.T) {
	for dtype, tolerance := range map[string]float64{"f32": 1e-6, "bf16": 1.0 / 128} {
		base, adapter, want := golden(t, "base-"+dtype), golden(t, "adapter-"+dtype), golden(t, "merged-"+dtype)
		got := bytes.Clone(base)
		if err := Merge(got, adapter); err != nil {
			t.Fatal(err)
		}
		h := header(t, want)
		if !bytes.Equal(header(t, got).Raw, h.Raw) {
			t.Fatalf("%s: another header", dtype)
		}
		changed := 0
		for _, tensor := range h.Tensors {
			x, _ := safetensors.Floats(tensor.DType, got[tensor.From:tensor.To])
			y, _ := safetensors.Floats(tensor.DType, want[tensor.From:tensor.To])
			for i := range x {
				if d := math.Abs(float64(x[i] - y[i])); !(d <= tolerance*max(1, math.Abs(float64(y[i])))) {
					t.Errorf("%s: %s[%d] is %v, want %v", dtype, tensor.Name, i, x[i], y[i])
				}
			}
			if !bytes.Equal(got[tensor.From:tensor.To], base[tensor.From:tensor.To]) {
				changed++
			}
		}
		if changed != 3 {
			t.Errorf("%s: %d matrices changed, want 3", dtype, changed)
		}
	}
}

// TestAdaptersThatCannotBeMerged spoils an adapter, one thing at a time.
func TestAdaptersThatCannotBeMerged(t *testing.T) {
	base, adapter := golden(t, "base-f32"), golden(t, "adapter-f32")
	replace := func(old, new string) []byte {
		if len(old) != len(new) || !bytes.Contains(adapter, []byte(old)) {
			t.Fatalf("%q cannot be replaced by %q", old, new)
		}
		return bytes.Replace(adapter, []byte(old), []byte(new), 1)
	}
	for _, c := range []struct {
		what, want string
		data       []byte
	}{
		{"no file", "adapter:", []byte("x")},
		{"no configuration", "adapter_config", base},
		{"another method", "peft_type", replace(`\"LORA\"`, `\"LOHA\"`)},
		{"another rank", "factors of shapes", replace(`\"r\": 2`, `\"r\": 3`)},
		{"no rank", "r = 0", replace(`\"r\": 2`, `\"r\": 0`)},
		{"DoRA", "use_dora", replace(`\"use_dora\": false`, `\"use_dora\": true `)},
		{"a bias", "bias", replace(`\"bias\": \"none\"`, `\"bias\": \"allx\"`)},
		{"a tensor of no matrix", "have no tensor", bytes.ReplaceAll(adapter, []byte("q_proj"), []byte("x_proj"))},
		{"half of the factors", "one of the two", replace("q_proj.lora_A", "x_proj.lora_A")},
		{"other tensors", "is neither", replace("q_proj.lora_A", "q_proj.lora_E")},
		{"another matrix", "factors of shapes", bytes.ReplaceAll(adapter, []byte("q_proj"), []byte("k_proj"))},
	} {
		if err := Merge(bytes.Clone(base), c.data); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.what, err, c.want)
		}
	}
	if err := Merge([]byte("x"), adapter); err == nil {
		t.Error("an adapter was put into nothing")
	}
}

// FuzzMerge takes any bytes for an adapter.
func FuzzMerge(f *testing.F) {
	base := golden(f, "base-bf16")
	f.Add(golden(f, "adapter-bf16"))
	f.Add(golden(f, "adapter-f32"))
	f.Fuzz(func(t *testing.T, adapter []byte) {
		got := bytes.Clone(base)
		if err := Merge(got, adapter); err == nil && !bytes.Equal(header(t, got).Raw, header(t, base).Raw) {
			t.Error("the header changed")
		}
	})
}
