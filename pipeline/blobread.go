package pipeline

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"gocloud.dev/gcerrors"
	"golang.org/x/sync/errgroup"

	"github.com/prl-project/prl/schemas"
)

// BlobsConfig is the section [blobs].
type BlobsConfig struct {
	// Parallel is how many ranges of a large blob are read at once.
	Parallel int `toml:"parallel"`
	// RangeMiB is the length of a range in MiB; a blob that is no longer is read in one.
	RangeMiB int `toml:"range_mib"`
}

// DefaultBlobsConfig fills a fast network with one blob.
func DefaultBlobsConfig() BlobsConfig { return BlobsConfig{Parallel: 8, RangeMiB: 64} }

// Validate checks the section.
func (c BlobsConfig) Validate() error {
	switch {
	case c.Parallel < 1 || c.Parallel > 256:
		return fmt.Errorf("blobs.parallel = %d: between 1 and 256", c.Parallel)
	case c.RangeMiB < 1 || c.RangeMiB > 1024:
		return fmt.Errorf("blobs.range_mib = %d: between 1 and 1024", c.RangeMiB)
	}
	return nil
}

const (
	// rangeDeadline bounds one attempt to read a range.
	rangeDeadline = 5 * time.Minute
	// rangeAttempts is how often a range is read before the store counts as failing.
	rangeAttempts = 4
	// rangePause is the wait before the second attempt; it doubles.
	rangePause = 50 * time.Millisecond
)

// errWrongBlob is wrapped where a blob is not the one its record names. Reading it again changes nothing.
var errWrongBlob = errors.New("is not the one its record names")

// Get reads a blob and checks its length and SHA-256. A failure of the store is ErrTransient: unlike a blob that is missing
// or wrong, it is no fault of the record that names it.
func (s *Blobs) Get(ctx context.Context, ref schemas.BlobRef) ([]byte, error) {
	if err := s.checkSize(ctx, ref); err != nil {
		return nil, err
	}
	data := make(inMemory, ref.Bytes)
	if err := s.readRanges(ctx, ref, data); err != nil {
		return nil, err
	}
	return data, nil
}

// Fetch brings a blob of any size to a file, checked as Get does, without holding it in memory. path is replaced at once, by
// the whole blob or not at all. Where path is on the disk of the store the file is the blob itself under a second name, and
// not copied: it must not be changed, only read and removed. It need not outlive a power failure.
func (s *Blobs) Fetch(ctx context.Context, ref schemas.BlobRef, path string) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), "."+filepath.Base(path)+".draft-")
	if err != nil {
		return fmt.Errorf("fetch blob %s: %w", ref.URI, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	draft := filepath.Join(dir, "blob")
	if from, ok := s.local(ref.URI); ok && os.Link(from, draft) == nil {
		err = checkFile(ctx, ref, draft)
	} else {
		err = s.copyOut(ctx, ref, draft)
	}
	if err != nil {
		return err
	}
	if err := os.Rename(draft, path); err != nil {
		return fmt.Errorf("fetch blob %s: %w", ref.URI, err)
	}
	return nil
}

// Take copies a blob of another store, checked, below prefix. On one disk both stores have it then, and it is there once.
func (s *Blobs) Take(ctx context.Context, from *Blobs, prefix string, ref schemas.BlobRef) (taken schemas.BlobRef, err error) {
	dir, err := os.MkdirTemp(s.dir, ".taken-")
	if err != nil {
		return taken, fmt.Errorf("take blob %s: %w", ref.URI, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "blob")
	if err := from.Fetch(ctx, ref, path); err != nil {
		return taken, err
	}
	return s.PutFile(ctx, prefix, path)
}

// checkFile holds a file against the blob that it should be.
func checkFile(ctx context.Context, ref schemas.BlobRef, path string) error {
	sum, n, err := sumFile(ctx, path)
	if err != nil {
		return fmt.Errorf("%w: read blob %s: %w", ErrTransient, ref.URI, err)
	}
	return checkBlob(ref, n, sum)
}

func (s *Blobs) copyOut(ctx context.Context, ref schemas.BlobRef, path string) error {
	if err := s.checkSize(ctx, ref); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fmt.Errorf("fetch blob %s: %w", ref.URI, err)
	}
	return errors.Join(s.readRanges(ctx, ref, inFile{f}), f.Close())
}

// checkSize asks the store for the length of a blob that is said to be large, before room is made for it.
func (s *Blobs) checkSize(ctx context.Context, ref schemas.BlobRef) error {
	if ref.Bytes < 0 {
		return fmt.Errorf("blob %s %w: it cannot have %d bytes", ref.URI, errWrongBlob, ref.Bytes)
	}
	if ref.Bytes <= s.rangeBytes() {
		return nil
	}
	return again(ctx, ref, func() error {
		a, err := s.bucket.Attributes(ctx, ref.URI)
		if err != nil {
			return err
		}
		return checkLength(ref, a.Size)
	})
}

func (s *Blobs) rangeBytes() int64 { return int64(s.reading.RangeMiB) << 20 }

// A destination takes the ranges of a blob, several at once, and gives back what it took.
type destination interface {
	take(r io.Reader, from, n int64) error // n bytes of r, or an error
	taken(from, to int64) io.Reader
}

type inMemory []byte

func (m inMemory) take(r io.Reader, from, n int64) error {
	_, err := io.ReadFull(r, m[from:from+n])
	return err
}

func (m inMemory) taken(from, to int64) io.Reader { return bytes.NewReader(m[from:to]) }

type inFile struct{ *os.File }

func (f inFile) take(r io.Reader, from, n int64) error {
	_, err := io.CopyN(io.NewOffsetWriter(f, from), r, n)
	return err
}

func (f inFile) taken(from, to int64) io.Reader { return io.NewSectionReader(f, from, to-from) }

// readRanges reads a blob into to, in ranges of which several are under way at once. The hash follows in the order of the
// bytes, over what to has taken: memory beyond to is a small buffer for each range under way.
func (s *Blobs) readRanges(ctx context.Context, ref schemas.BlobRef, to destination) error {
	size := s.rangeBytes()
	n := max(1, (ref.Bytes+size-1)/size)
	read := make([]chan struct{}, n)
	for i := range read {
		read[i] = make(chan struct{})
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(s.reading.Parallel + 1)
	g.Go(func() error { return s.hashRanges(ctx, ref, to, read) })
	for i := range read {
		from := int64(i) * size
		g.Go(func() error {
			if err := s.readRange(ctx, ref, from, min(size, ref.Bytes-from), to); err != nil {
				return err
			}
			close(read[i])
			return nil
		})
	}
	return g.Wait()
}

func (s *Blobs) readRange(ctx context.Context, ref schemas.BlobRef, from, n int64, to destination) error {
	return again(ctx, ref, func() error {
		ctx, cancel := context.WithTimeout(ctx, rangeDeadline)
		defer cancel()
		r, err := s.bucket.NewRangeReader(ctx, ref.URI, from, n, nil)
		if err != nil {
			return err
		}
		defer r.Close() //nolint:errcheck // it was read
		if err := checkLength(ref, r.Size()); err != nil {
			return err
		}
		return to.take(r, from, n)
	})
}

// hashRanges hashes the ranges in order as they come, and holds the sum against ref. Long reads are told to the log.
func (s *Blobs) hashRanges(ctx context.Context, ref schemas.BlobRef, to destination, read []chan struct{}) error {
	h, size, began := sha256.New(), s.rangeBytes(), time.Now()
	tell := time.NewTicker(tellEvery)
	defer tell.Stop()
	for i := int64(0); i < int64(len(read)); {
		select {
		case <-read[i]:
			if _, err := io.Copy(h, to.taken(i*size, min((i+1)*size, ref.Bytes))); err != nil {
				return fmt.Errorf("read blob %s back: %w", ref.URI, err)
			}
			i++
		case <-tell.C:
			s.log.Info("a blob is being read", "blob", ref.URI, "bytes", i*size, "of", ref.Bytes, "for", time.Since(began).Round(time.Second))
		case <-ctx.Done():
			return fmt.Errorf("%w: read blob %s: %w", ErrTransient, ref.URI, ctx.Err())
		}
	}
	return checkBlob(ref, ref.Bytes, h.Sum(nil))
}

// again calls read until it succeeds, or fails so that it would again, or has failed too often: ErrTransient.
func again(ctx context.Context, ref schemas.BlobRef, read func() error) error {
	for attempt, pause := 1, rangePause; ; attempt, pause = attempt+1, 2*pause {
		err := read()
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errWrongBlob):
			return err
		case gcerrors.Code(err) == gcerrors.NotFound:
			return fmt.Errorf("read blob %s: %w", ref.URI, err)
		case ctx.Err() != nil || attempt == rangeAttempts:
			return fmt.Errorf("%w: read blob %s: %w", ErrTransient, ref.URI, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

func checkLength(ref schemas.BlobRef, n int64) error {
	if n != ref.Bytes {
		return fmt.Errorf("blob %s %w: it has %d bytes, want %d", ref.URI, errWrongBlob, n, ref.Bytes)
	}
	return nil
}

func checkBlob(ref schemas.BlobRef, n int64, sum []byte) error {
	if err := checkLength(ref, n); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum); got != ref.SHA256 {
		return fmt.Errorf("blob %s %w: SHA-256 %s, want %s", ref.URI, errWrongBlob, got, ref.SHA256)
	}
	return nil
}
