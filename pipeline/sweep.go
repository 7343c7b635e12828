package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
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
// blob store left there. Records that cannot be decoded are passed over,
// but for those of a schema that a newer version of prl may know: they are an error. It gives up where nothing more comes for a while.
func (rt *Runtime) Scan(ctx context.Context, topics []string, record func(schemas.Record)) error {
	cl, err := rt.Client(kgo.FetchIsolationLevel(kgo.ReadUncommitted()), kgo.KeepControlRecords())
	if err != nil {
		return err
	}
	defer cl.Close()
	var names []string
	for _, t := range topics {
		names = append(names, rt.TopicName(t))
	}
	adm := kadm.NewClient(cl)
	starts, err := adm.ListStartOffsets(ctx, names...)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return fmt.Errorf("list where %v start: %w", names, err)
	}
	ends, err := adm.ListEndOffsets(ctx, names...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("list the ends of %v: %w", names, err)
	}
	left := map[string]map[int32]int64{} // the end of each partition that is not read yet
	from := map[string]map[int32]kgo.Offset{}
	starts.Each(func(o kadm.ListedOffset) {
		if end, _ := ends.Lookup(o.Topic, o.Partition); end.Offset > o.Offset {
			if left[o.Topic] == nil {
				left[o.Topic], from[o.Topic] = map[int32]int64{}, map[int32]kgo.Offset{}
			}
			left[o.Topic][o.Partition], from[o.Topic][o.Partition] = end.Offset, kgo.NewOffset().At(o.Offset)
		}
	})
	cl.AddConsumePartitions(from)
	for len(left) > 0 {
		poll, cancel := context.WithTimeout(ctx, restoreDeadline)
		fetches := cl.PollRecords(poll, 1000)
		cancel()
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("read %v: %w", names, err)
		}
		var unread error // and so what it names is not known
		fetches.EachRecord(func(r *kgo.Record) {
			if unread != nil {
				return
			}
			if r.Offset+1 >= left[r.Topic][r.Partition] {
				delete(left[r.Topic], r.Partition)
				if len(left[r.Topic]) == 0 {
					delete(left, r.Topic)
				}
			}
			if r.Attrs.IsControl() {
				return
			}
			v, err := rt.DecodeValue(ctx, r.Value)
			if errors.Is(err, ErrTransient) || errors.Is(err, schemas.ErrUnknownSchema) {
				unread = fmt.Errorf("read %s/%d@%d: %w", r.Topic, r.Partition, r.Offset, err)
			}
			if err == nil {
				record(v)
			}
		})
		if unread != nil {
			return unread
		}
	}
	return nil
}
