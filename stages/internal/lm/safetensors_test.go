package lm

import (
	"bytes"
	"encoding/binary"
	"math"
	"reflect"
	"slices"
	"testing"
)

func file(header string, body []byte) []byte {
	return slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), []byte(header), body)
}

// TestSafetensorsRoundTrip: any order of tensors gives the same bytes, and these give back the tensors, sorted.
func TestSafetensorsRoundTrip(t *testing.T) {
	params := []Param{
		{"b", []int{2, 3}, []float32{1, -2, 3.5, float32(math.Inf(1)), 0, 1e-40}},
		{"a.weight", []int{1}, []float32{7}},
		{"scalar", []int{}, []float32{8}},
		{"empty", []int{3, 0}, []float32{}},
		{"quote \" é", []int{1}, []float32{9}},
	}
	var one, two bytes.Buffer
	if err := WriteSafetensors(&one, params); err != nil {
		t.Fatal(err)
	}
	got, err := ReadSafetensors(one.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(params)
	if err := WriteSafetensors(&two, params); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("the order of the tensors changes the bytes")
	}
	slices.SortFunc(params, func(a, b Param) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	if !reflect.DeepEqual(got, params) {
		t.Errorf("read %v, wrote %v", got, params)
	}
	if n := binary.LittleEndian.Uint64(one.Bytes()); n%8 != 0 {
		t.Errorf("the header has %d bytes: not aligned", n)
	}
}

// TestSafetensorsBFloat16: its elements are float32 whose lower half is zero.
func TestSafetensorsBFloat16(t *testing.T) {
	body := []byte{0x80, 0x3f, 0x00, 0xc0, 0x01, 0x00, 0x80, 0x7f, 0, 0, 0x40, 0x40}
	got, err := ReadSafetensors(file(`{"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},"a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}`, body))
	want := []Param{
		{"a", []int{2, 2}, []float32{1, -2, math.Float32frombits(1 << 16), float32(math.Inf(1))}},
		{"b", []int{1}, []float32{3}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %v, %v, want %v", got, err, want)
	}
}

// TestSafetensorsRefuses lists what a reader must not take.
func TestSafetensorsRefuses(t *testing.T) {
	body := make([]byte, 8)
	for name, data := range map[string][]byte{
		"empty":            nil,
		"short":            {1, 2, 3},
		"header length":    binary.LittleEndian.AppendUint64(nil, 1<<63),
		"header too long":  binary.LittleEndian.AppendUint64(nil, 9),
		"no object":        file(`[]`, nil),
		"no JSON":          file(`{"a":`, nil),
		"type":             file(`{"a":{"dtype":"F16","shape":[4],"data_offsets":[0,8]}}`, body),
		"bfloat16 shape":   file(`{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,8]}}`, body),
		"shape":            file(`{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`, body),
		"negative shape":   file(`{"a":{"dtype":"F32","shape":[-1,-2],"data_offsets":[0,8]}}`, body),
		"overflow":         file(`{"a":{"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,0]}}`, nil),
		"beyond the end":   file(`{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}`, body),
		"negative offset":  file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}}`, body),
		"backward":         file(`{"a":{"dtype":"F32","shape":[0],"data_offsets":[8,0]}}`, body),
		"gap":              file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, body),
		"overlap":          file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, body),
		"trailing":         file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, body),
		"unknown field":    file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}}`, body),
		"no offsets":       file(`{"a":{"dtype":"F32","shape":[0]}}`, nil),
		"no shape":         file(`{"a":{"dtype":"F32","data_offsets":[0,4]}}`, body[:4]),
		"fractional shape": file(`{"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}}`, body),
	} {
		if got, err := ReadSafetensors(data); err == nil {
			t.Errorf("%s: read %v", name, got)
		}
	}
	for name, p := range map[string][]Param{
		"wrong shape": {{"a", []int{2}, []float32{1}}},
		"twice":       {{"a", []int{1}, []float32{1}}, {"a", []int{1}, []float32{1}}},
		"metadata":    {{"__metadata__", []int{1}, []float32{1}}},
	} {
		if WriteSafetensors(&bytes.Buffer{}, p) == nil {
			t.Errorf("%s: written", name)
		}
	}
}

// FuzzReadSafetensors: no input panics, and what is read is written and read again the same.
func FuzzReadSafetensors(f *testing.F) {
	var good bytes.Buffer
	if err := WriteSafetensors(&good, []Param{{"a", []int{2}, []float32{1, 2}}, {"b", []int{1, 1}, []float32{3}}}); err != nil {
		f.Fatal(err)
	}
	f.Add(good.Bytes())
	f.Add(file(`{"a":{"dtype":"F32","shape":[0,9999999999],"data_offsets":[0,0]}}`, nil))
	f.Add(file(`{"__metadata__":3}`, nil))
	f.Add(file(`{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}`, make([]byte, 4)))
	f.Fuzz(func(t *testing.T, data []byte) {
		params, err := ReadSafetensors(data)
		if err != nil {
			return
		}
		for _, p := range params {
			if p.Name == "" {
				return // the format has no rule against it, but it is never written
			}
		}
		var again bytes.Buffer
		if err := WriteSafetensors(&again, params); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		second, err := ReadSafetensors(again.Bytes())
		if err != nil || len(second) != len(params) {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		for i, p := range params {
			if q := second[i]; p.Name != q.Name || !slices.Equal(p.Shape, q.Shape) || !sameBits(p.Data, q.Data) {
				t.Fatalf("%v became %v", p, q)
			}
		}
	})
}
