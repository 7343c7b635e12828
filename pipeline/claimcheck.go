package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"

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

// claims reports whether tensors of r are in the blob store.
func claims(r schemas.Record) bool {
	blobs := blobsOf(r)
	return blobs != nil && len(*blobs) > 0
}

// claimCheck moves tensors of r to the blob store, the largest first, until the record fits, and encodes it. What does
// not fit even then is errTooLarge.
func (rt *Runtime) claimCheck(ctx context.Context, r schemas.Record, size int) ([]byte, error) {
	type tensor struct {
		path string
		data *[]byte
	}
	var tensors []tensor
	schemas.Tensors(r, func(path string, data *[]byte) { tensors = append(tensors, tensor{path, data}) })
	sort.SliceStable(tensors, func(i, j int) bool { return len(*tensors[i].data) > len(*tensors[j].data) })
	moved := 0
	for ; moved < len(tensors) && size > MaxRecordBytes && len(*tensors[moved].data) > 0; moved++ {
		size -= len(*tensors[moved].data) - 160 // a reference takes about 160 bytes
	}
	refs, err := rt.putTensors(ctx, moved, func(i int) []byte { return *tensors[i].data })
	if err != nil {
		return nil, err
	}
	blobs := blobsOf(r)
	for i, ref := range refs {
		ref.Path = tensors[i].path
		*blobs = append(*blobs, ref)
		*tensors[i].data = nil
	}
	if size > TopicRecordBytes-1<<10 {
		return nil, fmt.Errorf("%w: %d bytes of a %s are left without its tensors, a topic takes %d: make rollouts shorter or groups smaller", errTooLarge, size, r.SchemaName(), TopicRecordBytes)
	}
	return rt.encode(r)
}

// errTooLarge marks a record that fits no topic, whatever is moved to the blob store.
var errTooLarge = errors.New("record too large")

const (
	// healthBlobs is what /readyz calls the blob store.
	healthBlobs = "blobs"
	// putDeadline bounds one attempt to write a blob.
	putDeadline = time.Minute
	// tensorsAtOnce is how many tensors of a record are written or read at once: each that is written waits for the disk.
	tensorsAtOnce = 8
)

// putTensors stores n tensors, several at once. What is the same in many samples, as their temperatures are, is stored once.
func (rt *Runtime) putTensors(ctx context.Context, n int, tensor func(i int) []byte) ([]schemas.BlobRef, error) {
	refs, first := make([]schemas.BlobRef, n), make([]int, n) // first is the tensor of the same bytes that is stored
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(tensorsAtOnce)
	for i := range n {
		for !bytes.Equal(tensor(first[i]), tensor(i)) {
			first[i]++
		}
		if first[i] == i {
			g.Go(func() (err error) {
				refs[i], err = rt.putTensor(ctx, tensor(i))
				return err
			})
		}
	}
	err := g.Wait()
	for i := range refs {
		refs[i] = refs[first[i]]
	}
	return refs, err
}

// putTensor stores a tensor. While the store takes nothing (its disk is full, its service is down) it tries again until
// ctx ends: what the stage has in hand waits, and log and /readyz say for what.
func (rt *Runtime) putTensor(ctx context.Context, data []byte) (schemas.BlobRef, error) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 200*time.Millisecond, 5*time.Second
	var told time.Time
	for {
		// An attempt is finished although the stage is being stopped: only waiting ends then.
		attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), putDeadline)
		ref, err := rt.Blobs.Put(attempt, tensorPrefix, data)
		cancel()
		rt.Health.Set(healthBlobs, err == nil)
		rt.Wrote(healthBlobs, err)
		if err == nil {
			if !told.IsZero() {
				rt.Log.Info("the blob store takes blobs again")
			}
			return ref, nil
		}
		if time.Since(told) >= tellEvery {
			rt.Log.Warn("the blob store does not take a blob, the stage waits for it", "bytes", len(data), "error", err)
			told = time.Now()
		}
		select {
		case <-ctx.Done():
			return ref, fmt.Errorf("%w: %w: %w", ErrTransient, ctx.Err(), err)
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// Redeem puts the tensors that a claim check moved back into r.
func (rt *Runtime) Redeem(ctx context.Context, r schemas.Record) error {
	if !claims(r) {
		return nil
	}
	blobs := blobsOf(r)
	at := map[string]*[]byte{}
	schemas.Tensors(r, func(path string, data *[]byte) { at[path] = data })
	fields := make([]*[]byte, len(*blobs))
	for i, ref := range *blobs {
		if fields[i] = at[ref.Path]; fields[i] == nil {
			return fmt.Errorf("%s names a blob for %q, which it does not have, or names two", r.SchemaName(), ref.Path)
		}
		delete(at, ref.Path)
	}
	tensors := make([][]byte, len(*blobs))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(tensorsAtOnce)
	for i, ref := range *blobs {
		g.Go(func() (err error) {
			if ctx.Err() != nil { // another could not be read, or nobody waits any more
				return fmt.Errorf("%w: read blob %s: %w", ErrTransient, ref.URI, ctx.Err())
			}
			tensors[i], err = rt.Blobs.Get(ctx, ref)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, data := range tensors {
		*fields[i] = data
	}
	*blobs = nil
	if err := r.Validate(); err != nil {
		return fmt.Errorf("invalid %s: %w", r.SchemaName(), err)
	}
	return nil
}
