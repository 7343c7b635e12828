package lm

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/prl-project/prl/stages/internal/safetensors"
)

// WriteSafetensors writes float32 tensors in the safetensors format (github.com/huggingface/safetensors). The bytes
// depend on the content alone: tensors are sorted by name, and the header is padded to a multiple of 8.
func WriteSafetensors(w io.Writer, params []Param) error {
	params = slices.Clone(params)
	slices.SortFunc(params, func(a, b Param) int { return cmp.Compare(a.Name, b.Name) })
	tensors := make([]safetensors.Tensor, len(params))
	for i, p := range params {
		tensors[i] = safetensors.Tensor{Name: p.Name, DType: "F32", Shape: p.Shape}
	}
	header, err := safetensors.MakeHeader(map[string]string{"format": "pt"}, tensors)
	if err != nil {
		return fmt.Errorf("write safetensors: %w", err)
	}
	for i, p := range params {
		if t := header.Tensors[i]; t.To-t.From != 4*int64(len(p.Data)) {
			return fmt.Errorf("write safetensors: tensor %q has shape %v but %d elements", p.Name, p.Shape, len(p.Data))
		}
	}
	if _, err := w.Write(header.Raw); err != nil {
		return fmt.Errorf("write safetensors: %w", err)
	}
	var buf []byte
	for _, p := range params {
		buf = slices.Grow(buf[:0], 4*len(p.Data))[:4*len(p.Data)]
		if err := safetensors.PutFloats("F32", buf, p.Data); err != nil {
			return fmt.Errorf("write safetensors: tensor %q: %w", p.Name, err)
		}
		if _, err := w.Write(buf); err != nil {
			return fmt.Errorf("write safetensors: tensor %q: %w", p.Name, err)
		}
	}
	return nil
}

// ReadSafetensors reads a file of float32 or bfloat16 tensors and returns them, as float32, sorted by name. It takes any
// input: what is not exactly such a file (other types, overlaps, gaps, offsets outside of it, trailing bytes) is an error,
// and no more memory is used than a small multiple of the input's length.
func ReadSafetensors(data []byte) ([]Param, error) {
	params, err := readSafetensors(data)
	if err != nil {
		return nil, fmt.Errorf("read safetensors: %w", err)
	}
	return params, nil
}

func readSafetensors(data []byte) ([]Param, error) {
	header, err := safetensors.ReadHeader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, err
	}
	params := make([]Param, len(header.Tensors))
	for i, t := range header.Tensors {
		if t.DType != "F32" && t.DType != "BF16" {
			return nil, fmt.Errorf("tensor %q has type %q: only F32 and BF16 are supported", t.Name, t.DType)
		}
		params[i] = Param{Name: t.Name, Shape: t.Shape}
		params[i].Data, _ = safetensors.Floats(t.DType, data[t.From:t.To])
	}
	slices.SortFunc(params, func(a, b Param) int { return cmp.Compare(a.Name, b.Name) })
	return params, nil
}
