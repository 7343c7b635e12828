// Package safetensors reads and writes the headers of safetensors files (github.com/huggingface/safetensors): a header in
// JSON that says where the data of each tensor lies, then the data. Nothing in such a file is executed.
//
// Any input is survived: what is not exactly such a file (overlaps, gaps, offsets outside of it, lengths that are not
// those of the shape, trailing bytes) is an error, and memory is a small multiple of the header's length, which is bounded.
package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// maxHeader bounds the JSON header of a file, as the reference implementation does.
const maxHeader = 100_000_000

// metadataKey is the entry of the header that is no tensor.
const metadataKey = "__metadata__"

// A Tensor is one entry of a header.
type Tensor struct {
	Name  string
	DType string // such as F32 or BF16
	Shape []int
	From  int64 // where its data begins in the file, in bytes
	To    int64 // and ends
}

// Like reports whether two tensors have the same type and shape.
func (t Tensor) Like(other Tensor) bool {
	return t.DType == other.DType && slices.Equal(t.Shape, other.Shape)
}

// A Header says what a file holds.
type Header struct {
	Metadata map[string]string // nil for none
	Tensors  []Tensor          // in the order of their data, which leaves no gaps
	Raw      []byte            // as it stands in the file, with its length: data begins behind it
}

// entry is a tensor in the JSON of a header; its offsets count from the end of the header.
type entry struct {
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// width is the number of bytes of an element by type.
var width = map[string]int64{
	"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
	"I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}

// ReadHeader reads the header of a file of size bytes and checks that the file is as long as it says.
func ReadHeader(file io.ReaderAt, size int64) (*Header, error) {
	var length [8]byte
	if size < int64(len(length)) {
		return nil, errors.New("shorter than its header's length")
	}
	if err := readAt(file, length[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader || n > uint64(size-8) {
		return nil, fmt.Errorf("header of %d bytes in a file of %d", n, size)
	}
	raw := make([]byte, 8+n)
	if err := readAt(file, raw, 0); err != nil {
		return nil, err
	}
	h := &Header{Raw: raw}
	if err := h.parse(size); err != nil {
		return nil, err
	}
	return h, nil
}

// readAt fills p; a reader may say io.EOF with the last bytes.
func readAt(file io.ReaderAt, p []byte, at int64) error {
	if n, err := file.ReadAt(p, at); n < len(p) {
		return fmt.Errorf("read the header: %w", err)
	}
	return nil
}

func (h *Header) parse(size int64) error {
	text := h.Raw[8:]
	if len(text) == 0 || text[0] != '{' {
		return errors.New("the header is not a JSON object")
	}
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(text, &entries); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	if raw, ok := entries[metadataKey]; ok {
		if err := json.Unmarshal(raw, &h.Metadata); err != nil {
			return fmt.Errorf("header: %s: %w", metadataKey, err)
		}
		delete(entries, metadataKey)
	}
	for name, raw := range entries {
		t, err := parseTensor(name, raw, int64(len(h.Raw)), size)
		if err != nil {
			return err
		}
		h.Tensors = append(h.Tensors, t)
	}
	slices.SortFunc(h.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Name, b.Name))
	})
	at := int64(len(h.Raw))
	for _, t := range h.Tensors {
		if t.From != at {
			return fmt.Errorf("tensor %q begins at byte %d, but the one before it ends at %d", t.Name, t.From, at)
		}
		at = t.To
	}
	if at != size {
		return fmt.Errorf("%d bytes after the last tensor", size-at)
	}
	return nil
}

// parseTensor reads an entry of the header of a file of size bytes whose data begins at start.
func parseTensor(name string, raw []byte, start, size int64) (Tensor, error) {
	e := entry{Offsets: [2]int64{-1, -1}}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&e); err != nil {
		return Tensor{}, fmt.Errorf("tensor %q: %w", name, err)
	}
	n, ok := elements(e.Shape)
	w, from, to := width[e.DType], e.Offsets[0], e.Offsets[1]
	switch {
	case w == 0:
		return Tensor{}, fmt.Errorf("tensor %q has the type %q, which is not known", name, e.DType)
	case e.Shape == nil || !ok || from < 0 || to < from || to > size-start || to-from != w*n:
		return Tensor{}, fmt.Errorf("tensor %q of shape %v cannot lie at bytes %d to %d of %d", name, e.Shape, from, to, size-start)
	}
	return Tensor{Name: name, DType: e.DType, Shape: e.Shape, From: start + from, To: start + to}, nil
}

// MakeHeader lays out tensors in the order given, whatever From and To say, and returns the header of the file in which they
// lie so. Its bytes depend on its content alone; it is padded to a multiple of 8.
func MakeHeader(metadata map[string]string, tensors []Tensor) (*Header, error) {
	h := &Header{Metadata: metadata, Tensors: slices.Clone(tensors)}
	var text bytes.Buffer
	text.WriteByte('{')
	if metadata != nil {
		if err := writeEntry(&text, metadataKey, metadata); err != nil {
			return nil, err
		}
	}
	seen := make(map[string]bool, len(tensors))
	var at int64
	for i, t := range h.Tensors {
		n, ok := elements(t.Shape)
		w := width[t.DType]
		switch {
		case t.Name == metadataKey || t.Name == "":
			return nil, fmt.Errorf("%q is no name for a tensor", t.Name)
		case seen[t.Name]:
			return nil, fmt.Errorf("tensor %q is given twice", t.Name)
		case !ok || w == 0:
			return nil, fmt.Errorf("tensor %q cannot have the type %q and the shape %v", t.Name, t.DType, t.Shape)
		}
		seen[t.Name] = true
		h.Tensors[i].From, h.Tensors[i].To = at, at+w*n
		if err := writeEntry(&text, t.Name, entry{t.DType, append([]int{}, t.Shape...), [2]int64{at, at + w*n}}); err != nil {
			return nil, err
		}
		at += w * n
	}
	text.WriteByte('}')
	for text.Len()%8 != 0 {
		text.WriteByte(' ')
	}
	h.Raw = append(binary.LittleEndian.AppendUint64(nil, uint64(text.Len())), text.Bytes()...)
	for i := range h.Tensors {
		h.Tensors[i].From += int64(len(h.Raw))
		h.Tensors[i].To += int64(len(h.Raw))
	}
	return h, nil
}

// writeEntry appends a member to a JSON object that is open.
func writeEntry(text *bytes.Buffer, name string, value any) error {
	key, err := json.Marshal(name)
	if err != nil {
		return fmt.Errorf("tensor %q: %w", name, err)
	}
	v, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("tensor %q: %w", name, err)
	}
	if text.Len() > 1 {
		text.WriteByte(',')
	}
	text.Write(key)
	text.WriteByte(':')
	text.Write(v)
	return nil
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
