package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"gocloud.dev/gcerrors"

	"github.com/prl-project/prl/schemas"
)

// BlobInfo is a blob as the store lists it.
type BlobInfo struct {
	URI      string
	Bytes    int64
	Modified time.Time
}

// List goes over all blobs of the store. After an error it ends.
func (s *Blobs) List(ctx context.Context) iter.Seq2[BlobInfo, error] {
	return func(yield func(BlobInfo, error) bool) {
		for objects := s.bucket.List(nil); ; {
			o, err := objects.Next(ctx)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(BlobInfo{}, fmt.Errorf("list the blobs: %w", err))
				return
			}
			if !yield(BlobInfo{o.Key, o.Size, o.ModTime}, nil) {
				return
			}
		}
	}
}

// Delete removes a blob, unless it was written again since it was listed. That it is gone already is no error.
func (s *Blobs) Delete(ctx context.Context, b BlobInfo) error {
	now, err := s.bucket.Attributes(ctx, b.URI)
	if err == nil && now.ModTime.After(b.Modified) {
		return nil
	}
	if err == nil {
		err = s.bucket.Delete(ctx, b.URI)
	}
	if err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return fmt.Errorf("delete blob %s: %w", b.URI, err)
	}
	return nil
}

// NamedBlobs are the blobs that hold tensors of r.
func NamedBlobs(r schemas.Record) []schemas.BlobRef {
	if refs := blobsOf(r); refs != nil {
		return *refs
	}
	return nil
}

// Scan calls record with every record that topics hold now, those of open and aborted transactions too, tensors of the
// blob store left there. Records that cannot be decoded are passed over, but for those of a schema that a newer version of
// prl may know: they are an error.
func (rt *Runtime) Scan(ctx context.Context, topics []string, record func(schemas.Record)) error {
	spans, err := rt.Spans(ctx, false, topics...)
	if err != nil {
		return err
	}
	return rt.ReadSpans(ctx, false, spans, func(r *kgo.Record) error {
		if r.Attrs.IsControl() {
			return nil
		}
		v, err := rt.DecodeValue(ctx, r.Value)
		switch {
		case errors.Is(err, ErrTransient), errors.Is(err, schemas.ErrUnknownSchema): // what it names is not known
			return fmt.Errorf("read %s/%d@%d: %w", r.Topic, r.Partition, r.Offset, err)
		case err == nil:
			record(v)
		}
		return nil
	})
}
