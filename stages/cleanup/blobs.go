package cleanup

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// oldBlobs lists the blobs that are older than grace.
func (c *Cleanup) oldBlobs(ctx context.Context, now time.Time) ([]pipeline.BlobInfo, error) {
	var old []pipeline.BlobInfo
	for b, err := range c.rt.Blobs.List(ctx) {
		if err != nil {
			return nil, err
		}
		if now.Sub(b.Modified) > time.Duration(c.cfg.Grace) {
			old = append(old, b)
		}
	}
	return old, nil
}

// deleteBlobs deletes those of the old blobs that nothing names, and says how many and how large they were.
func (c *Cleanup) deleteBlobs(ctx context.Context, old []pipeline.BlobInfo) (n int, bytes int64, err error) {
	named := map[string]bool{}
	topics, err := c.namingTopics(ctx)
	if err != nil {
		return 0, 0, err
	}
	var pins []int64
	if len(old) > 0 {
		topics = append(topics, pipeline.TopicPolicies) // for what cannot be read of it
		if pins, err = c.readNames(ctx, topics, named); err != nil {
			return 0, 0, err
		}
	}
	for _, ref := range c.known.kept(c.cfg, c.evals, pins) {
		named[ref.URI] = true
	}
	for _, b := range old {
		if named[b.URI] {
			continue
		}
		if err := c.rt.Blobs.Delete(ctx, b); err != nil {
			return n, bytes, err
		}
		n, bytes = n+1, bytes+b.Bytes
		c.blobs.Inc()
		c.bytes.Add(float64(b.Bytes))
	}
	return n, bytes, nil
}

// readNames adds to named what the records that are left in topics name, and returns the versions that tasks are pinned to.
func (c *Cleanup) readNames(ctx context.Context, topics []string, named map[string]bool) (pins []int64, err error) {
	err = c.rt.Scan(ctx, topics, func(r schemas.Record) {
		if t, ok := r.(*schemas.Task); ok {
			if t.PinVersion != nil {
				pins = append(pins, *t.PinVersion)
			}
			return
		}
		for _, ref := range pipeline.NamedBlobs(r) {
			named[ref.URI] = true
		}
	})
	return pins, err
}

func (c *Cleanup) namingTopics(ctx context.Context) ([]string, error) {
	cl, err := c.rt.Client()
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	details, err := c.heavyTopics(ctx, kadm.NewClient(cl))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, t := range details.Sorted() {
		names = append(names, c.rt.BaseName(t.Topic))
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("run %s has no topics", c.rt.Run.Name)
	}
	return names, nil
}
