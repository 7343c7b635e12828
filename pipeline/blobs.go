package pipeline

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/gcerrors"

	"github.com/prl-project/prl/schemas"
)

// Blobs is the run's store of large values: weights, checkpoints, tensors too large for a record. A blob is named by
// its SHA-256, written before the record that names it, and never changes.
type Blobs struct {
	bucket *blob.Bucket
	dir    string // of a store on the local disk; empty elsewhere
}

// OpenBlobs opens the folder dir as a blob store and makes it where it is missing.
func OpenBlobs(dir string) (*Blobs, error) {
	b, err := fileblob.OpenBucket(dir, &fileblob.Options{CreateDir: true, NoTempDir: true, Metadata: fileblob.MetadataDontWrite})
	if err != nil {
		return nil, fmt.Errorf("open blob store %s: %w", dir, err)
	}
	return &Blobs{b, dir}, nil
}

// Close releases the store.
func (s *Blobs) Close() error { return s.bucket.Close() }

// Put stores data below prefix under the name of its SHA-256. What is there already, whole, is left alone.
func (s *Blobs) Put(ctx context.Context, prefix string, data []byte) (schemas.BlobRef, error) {
	sum := sha256.Sum256(data)
	name := hex.EncodeToString(sum[:])
	ref := schemas.BlobRef{URI: prefix + "/" + name, Bytes: int64(len(data)), SHA256: name}
	have, err := s.bucket.ReadAll(ctx, ref.URI)
	if err == nil && bytes.Equal(have, data) && !s.aged(ctx, ref.URI) {
		return ref, s.sync(ref.URI)
	}
	if err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return ref, fmt.Errorf("read blob %s: %w", ref.URI, err)
	}
	if err := WriteFault(); err != nil {
		return ref, fmt.Errorf("write blob %s: %w", ref.URI, err)
	}
	if err := s.bucket.WriteAll(ctx, ref.URI, data, nil); err != nil {
		return ref, fmt.Errorf("write blob %s: %w", ref.URI, err)
	}
	return ref, s.sync(ref.URI)
}

// refreshAfter is the age at which a blob is written anew when another record is about to name it: clean-up takes old
// blobs that nothing names for orphans.
const refreshAfter = 5 * time.Minute

// aged reports whether a blob that is there may be taken for an orphan before the next record names it.
func (s *Blobs) aged(ctx context.Context, uri string) bool {
	a, err := s.bucket.Attributes(ctx, uri)
	return err != nil || time.Since(a.ModTime) > refreshAfter
}

// Get reads a blob and checks its length and SHA-256. A failure of the store is ErrTransient: unlike a blob that is missing
// or wrong, it is no fault of the record that names it.
func (s *Blobs) Get(ctx context.Context, ref schemas.BlobRef) ([]byte, error) {
	data, err := s.bucket.ReadAll(ctx, ref.URI)
	if err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return nil, fmt.Errorf("%w: read blob %s: %w", ErrTransient, ref.URI, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", ref.URI, err)
	}
	if sum := sha256.Sum256(data); int64(len(data)) != ref.Bytes || hex.EncodeToString(sum[:]) != ref.SHA256 {
		return nil, fmt.Errorf("blob %s is not the one its record names: %d bytes, SHA-256 %x; want %d, %s", ref.URI, len(data), sum, ref.Bytes, ref.SHA256)
	}
	return data, nil
}

// Has reports whether a blob is there. It does not look into it.
func (s *Blobs) Has(ctx context.Context, ref schemas.BlobRef) (bool, error) {
	there, err := s.bucket.Exists(ctx, ref.URI)
	if err != nil {
		return false, fmt.Errorf("%w: look for blob %s: %w", ErrTransient, ref.URI, err)
	}
	return there, nil
}

// sync makes a blob on the local disk durable: the file and the folder that lists it.
func (s *Blobs) sync(uri string) error {
	if s.dir == "" {
		return nil
	}
	path := filepath.Join(s.dir, filepath.FromSlash(uri))
	return errors.Join(syncPath(path), syncPath(filepath.Dir(path)))
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync blob: %w", err)
	}
	return errors.Join(f.Sync(), f.Close())
}
