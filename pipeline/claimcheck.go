package pipeline

import (
	"context"
	"fmt"
	"sort"

	"github.com/prl-project/prl/schemas"
)

// tensorPrefix is where the blob store keeps tensors of records.
const tensorPrefix = "tensors"

// blobsOf is the field of a record that names its tensors in the blob store.
func blobsOf(r schemas.Record) *[]schemas.BlobRef {
	switch r := r.(type) {
	case *schemas.Trace:
		return &r.Blobs
	case *schemas.SampleGroup:
		return &r.Blobs
	case *schemas.MicroBatch:
		return &r.Blobs
	}
	return nil
}

// claimCheck moves tensors of r to the blob store, the largest first, until the record fits, and encodes it.
func (rt *Runtime) claimCheck(ctx context.Context, r schemas.Record, size int) ([]byte, error) {
	type tensor struct {
		path string
		data *[]byte
	}
	var tensors []tensor
	schemas.Tensors(r, func(path string, data *[]byte) { tensors = append(tensors, tensor{path, data}) })
	sort.SliceStable(tensors, func(i, j int) bool { return len(*tensors[i].data) > len(*tensors[j].data) })
	blobs := blobsOf(r)
	for _, t := range tensors {
		if size <= MaxRecordBytes || len(*t.data) == 0 {
			break
		}
		ref, err := rt.Blobs.Put(ctx, tensorPrefix, *t.data)
		if err != nil {
			return nil, err
		}
		ref.Path = t.path
		*blobs = append(*blobs, ref)
		size -= len(*t.data) - 160 // a reference takes about 160 bytes
		*t.data = nil
	}
	if size > TopicRecordBytes-1<<10 {
		return nil, Fatal("%s: %d bytes are left without its tensors; a topic takes %d: make rollouts shorter or groups smaller", r.SchemaName(), size, TopicRecordBytes)
	}
	return schemas.Encode(r)
}

// redeem puts the tensors that a claim check moved back into r.
func (rt *Runtime) redeem(ctx context.Context, r schemas.Record) error {
	blobs := blobsOf(r)
	if blobs == nil || len(*blobs) == 0 {
		return nil
	}
	at := map[string]*[]byte{}
	schemas.Tensors(r, func(path string, data *[]byte) { at[path] = data })
	for _, ref := range *blobs {
		data, ok := at[ref.Path]
		if !ok {
			return fmt.Errorf("%s names a blob for %q, which it does not have", r.SchemaName(), ref.Path)
		}
		b, err := rt.Blobs.Get(ctx, ref)
		if err != nil {
			return err
		}
		*data = b
	}
	*blobs = nil
	if err := r.Validate(); err != nil {
		return fmt.Errorf("invalid %s: %w", r.SchemaName(), err)
	}
	return nil
}
