package weights

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/prl-project/prl/schemas"
)

// A Store has the blobs that versions name; it checks what it gives (pipeline.Blobs).
type Store interface {
	Get(ctx context.Context, ref schemas.BlobRef) ([]byte, error)
	Fetch(ctx context.Context, ref schemas.BlobRef, path string) error
}

// Held is whole weights in memory, and their SHA-256 in hex.
type Held struct {
	Bytes  []byte
	SHA256 string
}

// Read gives the whole weights of a chain, without its adapter. held, which may be empty, are weights at hand: where the
// chain comes by them they are not read but changed in their place, and used says so: they are the caller's no longer, even
// after an error. What the chain gives is checked against the SHA-256 that its last record names.
func (c Chain) Read(ctx context.Context, s Store, held Held) (whole Held, used bool, err error) {
	links, used := c.Whole, false
	for i := len(links) - 1; i >= 0 && !used; i-- {
		if used = links[i].WeightsSHA256() == held.SHA256; used {
			links = links[i:]
		}
	}
	whole = Held{held.Bytes, c.last().WeightsSHA256()}
	if !used {
		if whole.Bytes, err = s.Get(ctx, links[0].Weights); err != nil {
			return Held{}, used, fmt.Errorf("weights of version %d: %w", links[0].Version, err)
		}
	}
	if len(links) == 1 {
		return whole, used, nil
	}
	if err := c.put(ctx, s, links[1:], inMemory(whole.Bytes)); err != nil {
		return Held{}, used, err
	}
	sum := sha256.Sum256(whole.Bytes)
	return whole, used, c.check(sum[:])
}

// Fetch brings the whole weights of a chain, without its adapter, to a file, checked as Read does. Of a full version it is
// Blobs.Fetch. path is replaced by the whole file or not at all.
func (c Chain) Fetch(ctx context.Context, s Store, path string) (err error) {
	if len(c.Whole) == 1 {
		return s.Fetch(ctx, c.Whole[0].Weights, path)
	}
	base, draft := path+".base", path+".draft"
	defer func() {
		for _, p := range []string{base, draft} {
			if gone := os.Remove(p); gone != nil && !errors.Is(gone, os.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
	}()
	if err := s.Fetch(ctx, c.Whole[0].Weights, base); err != nil {
		return fmt.Errorf("weights of version %d: %w", c.Whole[0].Version, err)
	}
	if err := copyFile(draft, base); err != nil {
		return fmt.Errorf("copy the weights of version %d: %w", c.Whole[0].Version, err)
	}
	if err := c.compose(ctx, s, draft); err != nil {
		return err
	}
	return os.Rename(draft, path)
}

// compose puts the deltas of the chain into a file of its full version.
func (c Chain) compose(ctx context.Context, s Store, path string) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := c.put(ctx, s, c.Whole[1:], onDisk{f, info.Size()}); err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, info.Size())); err != nil {
		return fmt.Errorf("read %s back: %w", path, err)
	}
	return c.check(sum.Sum(nil))
}

// put applies deltas to w, in order.
func (c Chain) put(ctx context.Context, s Store, deltas []*schemas.PolicyVersion, w whole) error {
	for _, v := range deltas {
		delta, err := s.Get(ctx, v.Weights)
		if err == nil {
			err = apply(w, delta)
		}
		if err != nil {
			return fmt.Errorf("weights of version %d: %w", v.Version, err)
		}
	}
	return nil
}

// check holds the SHA-256 of what the chain gave against what its last record names.
func (c Chain) check(sum []byte) error {
	if got, want := hex.EncodeToString(sum), c.last().WeightsSHA256(); got != want {
		return fmt.Errorf("the weights of version %d, a delta, have SHA-256 %s; its record names %s", c.last().Version, got, want)
	}
	return nil
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // it was read
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
