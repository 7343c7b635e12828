package safetensors

import (
	"bytes"
	"encoding/binary"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// file is a header as it stands in a file, with body bytes behind it.
func file(header string, body int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, body)...)
}

func read(data []byte) (*Header, error) { return ReadHeader(bytes.NewReader(data), int64(len(data))) }

// TestHeaderIsReadAsMade makes headers and reads them in files of the length they say.
func TestHeaderIsReadAsMade(t *testing.T) {
	for _, tensors := range [][]Tensor{
		nil,
		{{Name: "b", DType: "F32", Shape: []int{2, 3}}, {Name: "a", DType: "BF16", Shape: []int{5}}, {Name: "scalar", DType: "I64", Shape: []int{}}},
		{{Name: `quote " and ü`, DType: "U8", Shape: []int{0, 7}}},
	} {
		made, err := MakeHeader(map[string]string{"format": "pt"}, tensors)
		if err != nil {
			t.Fatal(err)
		}
		end := int64(len(made.Raw))
		for _, tensor := range made.Tensors {
			end = tensor.To
		}
		got, err := read(slices.Concat(made.Raw, make([]byte, end-int64(len(made.Raw)))))
		if err != nil {
			t.Fatal(err)
		}
		if len(made.Raw)%8 != 0 || !reflect.DeepEqual(got.Metadata, made.Metadata) || len(got.Tensors) != len(tensors) || !bytes.Equal(got.Raw, made.Raw) {
			t.Errorf("made %+v,\nread %+v", made, got)
		}
		for i := range got.Tensors {
			if !reflect.DeepEqual(got.Tensors[i], made.Tensors[i]) {
				t.Errorf("made %+v, read %+v", made.Tensors[i], got.Tensors[i])
			}
		}
	}
}

func TestWrongFilesAreRefused(t *testing.T) {
	const one = `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`
	if _, err := read(file(one, 8)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, want string
		data       []byte
	}{
		{"empty", "shorter than", nil},
		{"a header beyond the file", "header of", file(one, 8)[:20]},
		{"a huge header", "header of", binary.LittleEndian.AppendUint64(nil, math.MaxUint64)},
		{"no JSON", "not a JSON object", file("[]", 0)},
		{"broken JSON", "header:", file(`{"a":`, 0)},
		{"cut", "cannot lie", file(one, 7)},
		{"trailing bytes", "1 bytes after", file(one, 9)},
		{"an unknown type", "not known", file(strings.Replace(one, "F32", "F3", 1), 8)},
		{"another shape", "cannot lie", file(strings.Replace(one, "[2]", "[3]", 1), 8)},
		{"no shape", "cannot lie", file(strings.Replace(one, "[2]", "null", 1), 8)},
		{"a negative shape", "cannot lie", file(strings.Replace(one, "[2]", "[-1,-2]", 1), 8)},
		{"a shape beyond any file", "cannot lie", file(strings.Replace(one, "[2]", "[4294967296,4294967296,4294967296]", 1), 8)},
		{"a gap", "begins at", file(strings.Replace(one, "[0,8]", "[4,12]", 1), 12)},
		{"an overlap", "begins at", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}`, 12)},
		{"unknown members", "unknown field", file(strings.Replace(one, `"dtype"`, `"x":1,"dtype"`, 1), 8)},
		{"metadata of another form", "__metadata__", file(`{"__metadata__":{"a":1}}`, 0)},
	} {
		if _, err := read(c.data); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.what, err, c.want)
		}
	}
	for _, tensors := range [][]Tensor{
		{{Name: "", DType: "F32"}}, {{Name: metadataKey, DType: "F32"}}, {{Name: "a", DType: "F32"}, {Name: "a", DType: "F32"}},
		{{Name: "a", DType: "F3"}}, {{Name: "a", DType: "F32", Shape: []int{-1}}},
	} {
		if _, err := MakeHeader(nil, tensors); err == nil {
			t.Errorf("%v: a header was made", tensors)
		}
	}
}

// FuzzReadHeader takes any bytes: it never fails otherwise than with an error, and what it accepts covers the file.
func FuzzReadHeader(f *testing.F) {
	f.Add(file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8))
	f.Add(file(`{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}}`, 2))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := read(data)
		if err != nil {
			return
		}
		at := int64(len(h.Raw))
		for _, tensor := range h.Tensors {
			if tensor.From != at || tensor.To < at {
				t.Fatalf("%+v begins where %d is", tensor, at)
			}
			at = tensor.To
		}
		if at != int64(len(data)) {
			t.Fatalf("%d of %d bytes are covered", at, len(data))
		}
	})
}

// TestFloats holds the conversions against those of float64 arithmetic: every half is read as the number it stands for
// and written back as itself, and what lies between two numbers of a type becomes the nearer, or the even one.
func TestFloats(t *testing.T) {
	for bits := range 1 << 16 {
		h := uint16(bits)
		exp, frac := int(h>>10&0x1f), float64(h&0x3ff)
		want := math.Ldexp(1024+frac, exp-25)
		switch {
		case exp == 0:
			want = math.Ldexp(frac, -24)
		case exp == 0x1f && frac == 0:
			want = math.Inf(1)
		case exp == 0x1f:
			want = math.NaN()
		}
		if h>>15 == 1 {
			want = -want
		}
		got := float64(fromHalf(h))
		if got != want && !(math.IsNaN(got) && math.IsNaN(want)) || math.Signbit(got) != math.Signbit(want) && !math.IsNaN(got) {
			t.Fatalf("half %#x is read as %v, want %v", h, got, want)
		}
		if back := toHalf(float32(want)); back != h && !math.IsNaN(want) {
			t.Fatalf("half %#x is written back as %#x", h, back)
		}
		brain := math.Float32frombits(uint32(h) << 16)
		if back := toBrain(brain); back != h && brain == brain {
			t.Fatalf("bfloat16 %#x is written back as %#x", h, back)
		}
		if next := h + 1; exp < 0x1e { // finite, and so is the next
			mid := (float64(fromHalf(h)) + float64(fromHalf(next))) / 2
			even := h + h&1
			if got := toHalf(float32(mid)); got != even {
				t.Fatalf("%v, between %#x and %#x, is written as %#x", mid, h, next, got)
			}
			if got := toHalf(math.Nextafter32(float32(mid), fromHalf(next))); got != next {
				t.Fatalf("above %v is written as %#x", mid, got)
			}
		}
	}
	for bits, want := range map[uint32]uint16{0x3f808000: 0x3f80, 0x3f818000: 0x3f82, 0x3f808001: 0x3f81, 0x7f7fffff: 0x7f80, 0x7f800001: 0x7fc0} {
		if got := toBrain(math.Float32frombits(bits)); got != want {
			t.Errorf("%#x as bfloat16 is %#x, want %#x", bits, got, want)
		}
	}
	for _, dtype := range []string{"F32", "BF16", "F16"} {
		data := make([]byte, 2*width[dtype])
		if err := PutFloats(dtype, data, []float32{1.5, -2}); err != nil {
			t.Fatal(err)
		}
		if got, ok := Floats(dtype, data); !ok || !slices.Equal(got, []float32{1.5, -2}) {
			t.Errorf("%s: %v", dtype, got)
		}
	}
	if _, ok := Floats("I32", nil); ok || PutFloats("I32", nil, nil) == nil {
		t.Error("integers are taken for real numbers")
	}
}
