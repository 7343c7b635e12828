package schemas

import (
	"bytes"
	"math"
	"reflect"
	"slices"
	"testing"
)

func TestPack(t *testing.T) {
	ids := []int32{0, -1, math.MaxInt32, math.MinInt32}
	if got := PackInt32s(ids); !slices.Equal(got.Values(), ids) || got.At(3) != math.MinInt32 || !slices.Equal(got.Slice(1, 3).Values(), ids[1:3]) {
		t.Errorf("got %v, want %v", got.Values(), ids)
	}
	if got := PackInt32s([]int32{1, 256}); !bytes.Equal(got, []byte{1, 0, 0, 0, 0, 1, 0, 0}) {
		t.Errorf("not little-endian: %v", got)
	}
	probs := []float32{0, -1.5, math.SmallestNonzeroFloat32, float32(math.Inf(-1))}
	if got := PackFloat32s(probs); !slices.Equal(got.Values(), probs) || got.Len() != 4 || got.At(1) != -1.5 || !slices.Equal(got.Slice(2, 4).Values(), probs[2:]) {
		t.Errorf("got %v, want %v", got.Values(), probs)
	}
}

// Tensors reaches every tensor of a record under the path that BlobRef.Path and Validate use, so that what a claim
// check takes out can be put back.
func TestTensors_Paths(t *testing.T) {
	batch := exampleBatch()
	shown := exampleTrace(1, 1)
	shown.Nodes[0].Images = make([]Image, 2)
	for _, c := range []struct {
		record Record
		want   []string
	}{
		{exampleTrace(2, 1), []string{
			"nodes.0.token_ids", "nodes.0.mask", "nodes.0.logprobs", "nodes.0.token_rewards", "nodes.0.ref_logprobs",
			"nodes.1.token_ids", "nodes.1.mask", "nodes.1.logprobs", "nodes.1.token_rewards", "nodes.1.ref_logprobs"}},
		{shown, []string{"nodes.0.token_ids", "nodes.0.mask", "nodes.0.logprobs", "nodes.0.token_rewards", "nodes.0.ref_logprobs",
			"nodes.0.images.0.data", "nodes.0.images.1.data"}},
		{exampleSamples(), []string{
			"samples.0.token_ids", "samples.0.mask", "samples.0.logprobs", "samples.0.advantages", "samples.0.temperatures", "samples.0.ce_weights", "samples.0.ref_kl_weights", "samples.0.ref_logprobs"}},
		{batch, []string{"seq_lens", "token_ids", "mask", "logprobs", "advantages", "temperatures", "ce_weights", "ref_kl_weights", "ref_logprobs"}},
		{&Task{}, nil},
	} {
		var got []string
		Tensors(c.record, func(path string, data *[]byte) {
			got = append(got, path)
			*data = []byte(path)
		})
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: visited %v, want %v", c.record.SchemaName(), got, c.want)
		}
		Tensors(c.record, func(path string, data *[]byte) {
			if string(*data) != path {
				t.Errorf("%s: %s held %q: the visit does not reach the record", c.record.SchemaName(), path, *data)
			}
		})
	}
	if string(batch.SeqLens) != "seq_lens" || string(batch.Temperatures) != "temperatures" {
		t.Error("paths name other fields")
	}
}

// Every field of a tensor's type is visited, in records that have not been written yet, too.
func TestTensors_Complete(t *testing.T) {
	for _, name := range names {
		r := newRecord(name)
		want := grow(reflect.ValueOf(r).Elem())
		got := 0
		Tensors(r, func(string, *[]byte) { got++ })
		if got != want {
			t.Errorf("%s: %d tensors visited of %d", name, got, want)
		}
	}
}

// grow gives every list of records one element and counts the tensors.
func grow(v reflect.Value) int {
	n := 0
	switch v.Interface().(type) {
	case Int32s, Float32s, Uint8s, Blob:
		return 1
	}
	switch v.Kind() {
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Struct {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			n += grow(v.Index(0))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			n += grow(v.Field(i))
		}
	}
	return n
}
