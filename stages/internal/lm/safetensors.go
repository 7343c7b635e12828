package lm

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// maxHeader bounds the JSON header of a safetensors file, as the reference implementation does.
const maxHeader = 100_000_000

// tensorInfo is one entry of the header.
type tensorInfo struct {
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// WriteSafetensors writes float32 tensors in the safetensors format (github.com/huggingface/safetensors). The bytes
// depend on the content alone: tensors are sorted by name, and the header is padded to a multiple of 8.
func WriteSafetensors(w io.Writer, params []Param) error {
	params = slices.Clone(params)
	slices.SortFunc(params, func(a, b Param) int { return cmp.Compare(a.Name, b.Name) })
	header := []byte(`{"__metadata__":{"format":"pt"}`)
	var at int64
	for i, p := range params {
		n, ok := elements(p.Shape)
		switch {
		case p.Name == "__metadata__" || p.Name == "":
			return fmt.Errorf("write safetensors: %q is no name for a tensor", p.Name)
		case i > 0 && params[i-1].Name == p.Name:
			return fmt.Errorf("write safetensors: tensor %q is given twice", p.Name)
		case !ok || n != int64(len(p.Data)):
			return fmt.Errorf("write safetensors: tensor %q has shape %v but %d elements", p.Name, p.Shape, len(p.Data))
		}
		name, err := json.Marshal(p.Name)
		if err != nil {
			return fmt.Errorf("write safetensors: tensor %q: %w", p.Name, err)
		}
		info, err := json.Marshal(tensorInfo{DType: "F32", Shape: append([]int{}, p.Shape...), Offsets: [2]int64{at, at + 4*n}})
		if err != nil {
			return fmt.Errorf("write safetensors: tensor %q: %w", p.Name, err)
		}
		header = slices.Concat(header, []byte(","), name, []byte(":"), info)
		at += 4 * n
	}
	header = append(header, '}')
	for len(header)%8 != 0 {
		header = append(header, ' ')
	}
	buf := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
	if _, err := w.Write(buf); err != nil {
		return fmt.Errorf("write safetensors: %w", err)
	}
	for _, p := range params {
		buf = slices.Grow(buf[:0], 4*len(p.Data))
		for _, v := range p.Data {
			buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(v))
		}
		if _, err := w.Write(buf); err != nil {
			return fmt.Errorf("write safetensors: tensor %q: %w", p.Name, err)
		}
	}
	return nil
}

// ReadSafetensors reads a file of float32 tensors and returns them sorted by name. It takes any input: what is not
// exactly such a file (other types, overlaps, gaps, offsets outside of it, trailing bytes) is an error, and no more
// memory is used than a small multiple of the input's length.
func ReadSafetensors(data []byte) ([]Param, error) {
	params, err := readSafetensors(data)
	if err != nil {
		return nil, fmt.Errorf("read safetensors: %w", err)
	}
	return params, nil
}

func readSafetensors(data []byte) ([]Param, error) {
	if len(data) < 8 {
		return nil, errors.New("shorter than its header's length")
	}
	n := binary.LittleEndian.Uint64(data)
	if n > maxHeader || n > uint64(len(data)-8) {
		return nil, fmt.Errorf("header of %d bytes in a file of %d", n, len(data))
	}
	header, body := data[8:8+n], data[8+n:]
	if len(header) == 0 || header[0] != '{' {
		return nil, errors.New("the header is not a JSON object")
	}
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(header, &entries); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	delete(entries, "__metadata__")
	type located struct {
		Param
		from, to int64
	}
	var tensors []located
	for name, raw := range entries {
		info := tensorInfo{Offsets: [2]int64{-1, -1}}
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&info); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		size, ok := elements(info.Shape)
		from, to := info.Offsets[0], info.Offsets[1]
		switch {
		case info.DType != "F32":
			return nil, fmt.Errorf("tensor %q has type %q: only F32 is supported", name, info.DType)
		case info.Shape == nil || !ok || from < 0 || to < from || to > int64(len(body)) || to-from != 4*size:
			return nil, fmt.Errorf("tensor %q of shape %v cannot lie at bytes %d to %d of %d", name, info.Shape, from, to, len(body))
		}
		tensors = append(tensors, located{Param{Name: name, Shape: info.Shape}, from, to})
	}
	slices.SortFunc(tensors, func(a, b located) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to), cmp.Compare(a.Name, b.Name))
	})
	var at int64
	for _, t := range tensors {
		if t.from != at {
			return nil, fmt.Errorf("tensor %q begins at byte %d, but the one before it ends at %d", t.Name, t.from, at)
		}
		at = t.to
	}
	if at != int64(len(body)) {
		return nil, fmt.Errorf("%d bytes after the last tensor", int64(len(body))-at)
	}
	params := make([]Param, len(tensors))
	for i, t := range tensors {
		t.Data = make([]float32, (t.to-t.from)/4)
		for j := range t.Data {
			t.Data[j] = math.Float32frombits(binary.LittleEndian.Uint32(body[t.from+4*int64(j):]))
		}
		params[i] = t.Param
	}
	slices.SortFunc(params, func(a, b Param) int { return cmp.Compare(a.Name, b.Name) })
	return params, nil
}

// elements is the product of shape; not ok if a dimension is negative or the product is beyond any file.
func elements(shape []int) (n int64, ok bool) {
	const most = 1 << 40
	n = 1
	for _, s := range shape {
		if s < 0 || (s > 0 && n > most/int64(s)) {
			return 0, false
		}
		n *= int64(s)
	}
	return n, true
}
