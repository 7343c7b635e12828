package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/gcerrors"

	"github.com/prl-project/prl/schemas"
)

// Blobs is the run's store of large values: weights, checkpoints, tensors too large for a record. A blob is named by
// its SHA-256, written before the record that names it, and never changes.
type Blobs struct {
	bucket  *blob.Bucket
	dir     string // of a store on the local disk; empty elsewhere
	reading BlobsConfig
	log     *slog.Logger // of long reads
}

// OpenBlobs opens the folder dir as a blob store and makes it where it is missing.
func OpenBlobs(dir string) (*Blobs, error) {
	b, err := fileblob.OpenBucket(dir, &fileblob.Options{CreateDir: true, NoTempDir: true, Metadata: fileblob.MetadataDontWrite})
	if err != nil {
		return nil, fmt.Errorf("open blob store %s: %w", dir, err)
	}
	return newBlobs(b, dir), nil
}

func newBlobs(b *blob.Bucket, dir string) *Blobs {
	return &Blobs{bucket: b, dir: dir, reading: DefaultBlobsConfig(), log: slog.New(slog.DiscardHandler)}
}

// Configure says how large blobs are read, and to what log. It is called before the first read.
func (s *Blobs) Configure(cfg BlobsConfig, log *slog.Logger) { s.reading, s.log = cfg, log }

// Close releases the store.
func (s *Blobs) Close() error { return s.bucket.Close() }

// Put stores data below prefix under the name of its SHA-256. What is there already, whole, is left alone.
func (s *Blobs) Put(ctx context.Context, prefix string, data []byte) (schemas.BlobRef, error) {
	sum := sha256.Sum256(data)
	ref := named(prefix, sum[:], int64(len(data)))
	there, err := s.intact(ctx, ref)
	if err != nil {
		return ref, err
	}
	if there {
		return ref, s.sync(ref.URI)
	}
	if err := WriteFault(); err != nil {
		return ref, fmt.Errorf("write blob %s: %w", ref.URI, err)
	}
	if err := s.write(ctx, ref.URI, data); err != nil {
		return ref, fmt.Errorf("write blob %s: %w", ref.URI, err)
	}
	return ref, s.sync(ref.URI)
}

// write writes a blob at once or not at all. A store behind a network is given an MD5 to hold against what arrives.
func (s *Blobs) write(ctx context.Context, uri string, data []byte) error {
	if s.dir == "" {
		return s.bucket.WriteAll(ctx, uri, data, nil)
	}
	ctx, abandon := context.WithCancel(ctx)
	defer abandon()
	w, err := s.bucket.NewWriter(ctx, uri, nil)
	if err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		abandon() // before Close: nothing is written
		return errors.Join(err, ignoreCancelled(w.Close()))
	}
	return w.Close()
}

// PutFile stores a file of any size below prefix under the name of its SHA-256, without holding it in memory. The file is
// the store's from then on, and path is gone: where path is on the store's own disk the file is moved to its place in the
// store and not copied, so whoever wrote it must have closed it. After an error path may still be there.
func (s *Blobs) PutFile(ctx context.Context, prefix, path string) (schemas.BlobRef, error) {
	sum, n, err := sumFile(ctx, path)
	if err != nil {
		return schemas.BlobRef{}, fmt.Errorf("store %s: %w", path, err)
	}
	ref := named(prefix, sum, n)
	if err := WriteFault(); err != nil {
		return ref, fmt.Errorf("write blob %s: %w", ref.URI, err)
	}
	moved, err := s.move(ref.URI, path)
	if err == nil && !moved {
		if err = s.copyIn(ctx, ref, path); err == nil {
			err = s.sync(ref.URI)
		}
	}
	if err != nil {
		return ref, fmt.Errorf("write blob %s: %w", ref.URI, err)
	}
	return ref, nil
}

func named(prefix string, sum []byte, bytes int64) schemas.BlobRef {
	name := hex.EncodeToString(sum)
	return schemas.BlobRef{URI: prefix + "/" + name, Bytes: bytes, SHA256: name}
}

// move gives a file its place in the store: at once, over what is there, for all to read, durably, and as if written now. Not
// where the store is on another disk, or on none.
func (s *Blobs) move(uri, path string) (moved bool, err error) {
	to, ok := s.local(uri)
	if !ok {
		return false, nil
	}
	now := time.Now()
	if err := errors.Join(os.Chmod(path, 0o644), syncPath(path), os.Chtimes(path, now, now), os.MkdirAll(filepath.Dir(to), 0o777)); err != nil {
		return false, err
	}
	err = os.Rename(path, to)
	switch {
	case errors.Is(err, syscall.EXDEV):
		return false, nil
	case err != nil:
		return false, err
	}
	// Where both names are of one file, rename leaves both.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, syncPath(filepath.Dir(to)) // the file was, before it got its name
}

// copyIn writes a file to the store, unless it is no longer what ref says, and removes it.
func (s *Blobs) copyIn(ctx context.Context, ref schemas.BlobRef, path string) error {
	ctx, abandon := context.WithCancel(ctx)
	defer abandon() // before Close: nothing is written
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was read
	w, err := s.bucket.NewWriter(ctx, ref.URI, nil)
	if err != nil {
		return err
	}
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(w, h), f)
	if sum := hex.EncodeToString(h.Sum(nil)); err == nil && sum != ref.SHA256 {
		err = fmt.Errorf("%s changed while it was stored", path)
	}
	if err != nil {
		abandon()
		return errors.Join(err, ignoreCancelled(w.Close()))
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.Remove(path)
}

// ignoreCancelled is the error of closing a writer that was given up.
func ignoreCancelled(err error) error {
	if errors.Is(err, context.Canceled) || gcerrors.Code(err) == gcerrors.Canceled {
		return nil
	}
	return err
}

// refreshAfter is the age at which a blob is written anew when another record is about to name it: clean-up takes old
// blobs that nothing names for orphans.
const refreshAfter = 5 * time.Minute

// intact reports whether a blob is there, whole, and so young that clean-up does not take it for an orphan before the next
// record names it.
func (s *Blobs) intact(ctx context.Context, ref schemas.BlobRef) (bool, error) {
	a, err := s.bucket.Attributes(ctx, ref.URI)
	switch {
	case gcerrors.Code(err) == gcerrors.NotFound:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look at blob %s: %w", ref.URI, err)
	case a.Size != ref.Bytes || time.Since(a.ModTime) > refreshAfter:
		return false, nil
	}
	r, err := s.bucket.NewReader(ctx, ref.URI, nil)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read blob %s: %w", ref.URI, err)
	}
	defer r.Close() //nolint:errcheck // what was read is compared
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return false, fmt.Errorf("read blob %s: %w", ref.URI, err)
	}
	return hex.EncodeToString(h.Sum(nil)) == ref.SHA256, nil
}

// Has reports whether a blob is there. It does not look into it.
func (s *Blobs) Has(ctx context.Context, ref schemas.BlobRef) (bool, error) {
	there, err := s.bucket.Exists(ctx, ref.URI)
	if err != nil {
		return false, fmt.Errorf("%w: look for blob %s: %w", ErrTransient, ref.URI, err)
	}
	return there, nil
}

// local is the file of a blob; not ok where the store is not on the local disk, or keeps the blob under another name.
func (s *Blobs) local(uri string) (path string, ok bool) {
	if s.dir == "" || !fs.ValidPath(uri) || strings.ContainsFunc(uri, func(r rune) bool { return r < ' ' }) {
		return "", false
	}
	return filepath.Join(s.dir, filepath.FromSlash(uri)), true
}

// sync makes a blob on the local disk durable: the file and the folder that lists it.
func (s *Blobs) sync(uri string) error {
	path, ok := s.local(uri)
	if !ok {
		return nil
	}
	return errors.Join(syncPath(path), syncPath(filepath.Dir(path)))
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync blob: %w", err)
	}
	return errors.Join(f.Sync(), f.Close())
}

// sumFile is the SHA-256 of a file and its length.
func sumFile(ctx context.Context, path string) (sum []byte, n int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close() //nolint:errcheck // it was read
	h := sha256.New()
	for buf := make([]byte, 1<<20); err == nil && ctx.Err() == nil; {
		var k int
		k, err = f.Read(buf)
		h.Write(buf[:k])
		n += int64(k)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return h.Sum(nil), n, errors.Join(err, ctx.Err())
}
