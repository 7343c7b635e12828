package weights

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/prl-project/prl/stages/internal/safetensors"
)

// A whole is a full safetensors file whose tensors can be replaced, in memory or on disk.
type whole interface {
	io.ReaderAt
	io.WriterAt
	Size() int64
}

// inMemory is a file in memory.
type inMemory []byte

func (m inMemory) Size() int64 { return int64(len(m)) }

func (m inMemory) ReadAt(p []byte, at int64) (int, error) { return bytes.NewReader(m).ReadAt(p, at) }

func (m inMemory) WriteAt(p []byte, at int64) (int, error) { return copy(m[at:], p), nil }

// onDisk is a file that is open for reading and writing.
type onDisk struct {
	*os.File
	size int64
}

func (f onDisk) Size() int64 { return f.size }

// apply replaces in w the tensors of delta. Every one of them must be in w, of the same type and shape; after an error w is
// of no use.
func apply(w whole, delta []byte) error {
	into, err := safetensors.ReadHeader(w, w.Size())
	if err != nil {
		return fmt.Errorf("weights that a delta applies to: %w", err)
	}
	from, err := safetensors.ReadHeader(bytes.NewReader(delta), int64(len(delta)))
	if err != nil {
		return fmt.Errorf("delta: %w", err)
	}
	place := make(map[string]safetensors.Tensor, len(into.Tensors))
	for _, t := range into.Tensors {
		place[t.Name] = t
	}
	for _, t := range from.Tensors {
		p, ok := place[t.Name]
		if !ok || !p.Like(t) {
			return fmt.Errorf("delta: the weights have no tensor %q of type %s and shape %v", t.Name, t.DType, t.Shape)
		}
		if _, err := w.WriteAt(delta[t.From:t.To], p.From); err != nil {
			return fmt.Errorf("put tensor %q of a delta in its place: %w", t.Name, err)
		}
	}
	return nil
}
