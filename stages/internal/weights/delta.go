// Package weights turns what policy versions publish into weights and back: whole safetensors files, deltas that hold the
// tensors that changed, and adapters (LoRA).
//
// Guarantees:
//   - A delta put on its base gives the very bytes of the file that it was made of, header and all; their SHA-256 is the
//     one that the version's record names as full_sha256, or nothing is given.
//   - A [Chain] from a full version to any other is bounded, and [History.Chain] gives the same one to whoever has read the
//     records up to the version: so clean-up keeps what others read.
//   - Any input is survived: what is not what its record says is an error.
//
// A trainer publishes a delta with WriteDelta, Delta.Record and Blobs.PutFile, and keeps the whole file for the version after:
// that of a version which was published as a delta is nowhere else.
package weights

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/safetensors"
)

// ErrLayout is wrapped where two files differ in more than the values of their tensors. Only a full version says what the
// second is.
var ErrLayout = errors.New("the weights are laid out otherwise than those before")

// A Delta says what WriteDelta wrote.
type Delta struct {
	BaseSHA256 string // of the whole weights that it applies to, in hex: PolicyVersion.base_sha256
	FullSHA256 string // of those that it gives: PolicyVersion.full_sha256
	Tensors    int    // that changed
	Of         int    // tensors
	Bytes      int64  // of the file that was written
}

// Record says in v that its weights are the delta. The reference to the file is not set.
func (d Delta) Record(v *schemas.PolicyVersion) {
	v.Kind, v.BaseSHA256, v.FullSHA256 = schemas.KindDelta, d.BaseSHA256, d.FullSHA256
}

// WriteDelta writes to the new file path those tensors of the safetensors file next that are not bit for bit those of the
// file base. Files of any size are compared without holding them in memory. ErrLayout where next is not base with other
// values.
func WriteDelta(path, base, next string) (d Delta, err error) {
	old, err := open(base)
	if err != nil {
		return d, fmt.Errorf("compare weights: %w", err)
	}
	defer old.Close() //nolint:errcheck // it was read
	now, err := open(next)
	if err != nil {
		return d, fmt.Errorf("compare weights: %w", err)
	}
	defer now.Close() //nolint:errcheck // it was read
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return d, fmt.Errorf("write a delta: %w", err)
	}
	w := bufio.NewWriterSize(f, chunk)
	d, err = writeDelta(w, old, now)
	return d, errors.Join(err, w.Flush(), f.Close())
}

// chunk is how much of a tensor is in memory at once.
const chunk = 1 << 20

// A file is a safetensors file.
type file struct {
	*os.File
	header *safetensors.Header
}

func open(path string) (*file, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	h, err := readHeader(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return &file{f, h}, nil
}

func readHeader(f *os.File) (*safetensors.Header, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return safetensors.ReadHeader(f, info.Size())
}

func writeDelta(w io.Writer, base, next *file) (Delta, error) {
	if !bytes.Equal(base.header.Raw, next.header.Raw) {
		return Delta{}, fmt.Errorf("compare weights: %w", ErrLayout)
	}
	before, after := sha256.New(), sha256.New()
	before.Write(base.header.Raw)
	after.Write(next.header.Raw)
	var changed []safetensors.Tensor
	for _, t := range next.header.Tensors {
		same, err := compare(io.TeeReader(section(base, t), before), io.TeeReader(section(next, t), after))
		if err != nil {
			return Delta{}, fmt.Errorf("compare tensor %q: %w", t.Name, err)
		}
		if !same {
			changed = append(changed, t)
		}
	}
	header, err := safetensors.MakeHeader(map[string]string{"format": "pt"}, changed)
	if err != nil {
		return Delta{}, fmt.Errorf("write a delta: %w", err)
	}
	d := Delta{
		BaseSHA256: hex.EncodeToString(before.Sum(nil)), FullSHA256: hex.EncodeToString(after.Sum(nil)), Tensors: len(changed), Of: len(next.header.Tensors), Bytes: int64(len(header.Raw)),
	}
	if _, err := w.Write(header.Raw); err != nil {
		return d, fmt.Errorf("write a delta: %w", err)
	}
	for _, t := range changed {
		d.Bytes += t.To - t.From
		if _, err := io.CopyN(w, section(next, t), t.To-t.From); err != nil {
			return d, fmt.Errorf("write tensor %q to a delta: %w", t.Name, err)
		}
	}
	return d, nil
}

func section(f *file, t safetensors.Tensor) io.Reader {
	return io.NewSectionReader(f, t.From, t.To-t.From)
}

// compare reads two tensors of one length to their ends.
func compare(a, b io.Reader) (same bool, err error) {
	x, y := make([]byte, chunk), make([]byte, chunk)
	for same = true; ; {
		n, err := io.ReadFull(a, x)
		m, err2 := io.ReadFull(b, y)
		same = same && bytes.Equal(x[:n], y[:m])
		switch end := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF); {
		case end && (errors.Is(err2, io.EOF) || errors.Is(err2, io.ErrUnexpectedEOF)):
			return same, nil
		case err != nil || err2 != nil:
			return false, errors.Join(err, err2)
		}
	}
}
