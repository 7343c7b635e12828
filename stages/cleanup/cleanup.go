// Package cleanup deletes what a long run no longer needs: records every reader has done with, and blobs nothing names.
//
// Guarantee: whatever a stage, a restart or an eval that is due may still read stays, so that a run with clean-up gives
// the same result as one without, whatever is killed when. Topics never expire by themselves; this stage alone deletes,
// and only where it is asked to ([cleanup] every, or --stage cleanup).
//
// Reads: state, policies and evals whole; the ends of the sink's files; the records of tasks, traces, eval_traces,
// samples and batches that are left.
//
// Deletes:
//   - records of tasks, traces, eval_traces, samples and batches below the position that every stage reading them, the
//     sink, and (batches) the last full checkpoint have left behind. The other topics are small, tell what happened, and
//     are kept whole. Without a sink nothing is deleted: Parquet is the memory of the run.
//   - weights and checkpoints of policy versions that are neither among the newest, nor a multiple of keep_every, nor the
//     first or the final one, nor needed by a restart of the trainer, by an eval that is due, or by a task that is pinned
//     to them and not finished; nor what the weights of such a version are made from, where it is a delta or an adapter.
//   - tensors of large records, and blobs that a crash left without a record, once they are older than grace and no record
//     that is left names them. Parquet keeps their names.
//
// State: none; every pass looks at the whole again, so a pass may be killed anywhere and repeated.
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/eval"
	"github.com/prl-project/prl/stages/sink"
)

const (
	stage = "cleanup"
	// passDeadline bounds one pass; what it did not get to is the next one's.
	passDeadline = 30 * time.Minute
)

// Cleanup is the stage.
type Cleanup struct {
	rt      *pipeline.Runtime
	cfg     Config
	sinkDir string
	readers map[string][]string // stages with state, by the name in pipeline.Topics of what they read
	evals   map[string]eval.Config
	known   known
	now     func() time.Time

	records, blobs, bytes prometheus.Counter
}

// known is what the small topics say.
type known struct {
	states   map[position]*schemas.StageState // the newest of each
	versions []*schemas.PolicyVersion
	measured map[measurement]bool
}

// A position is what one stage has done with of one partition.
type position struct {
	stage, topic string
	partition    int32
}

// A measurement is one eval of one version.
type measurement struct {
	eval    string
	version int64
}

// New checks cfg. sinkDir holds the sink's files; readers are, by the name in pipeline.Topics, the stages that keep
// state on what they have read of a topic; evals are those of the run.
func New(rt *pipeline.Runtime, cfg Config, sinkDir string, readers map[string][]string, evals map[string]eval.Config) (*Cleanup, error) {
	if err := cfg.agree(rt.Run); err != nil {
		return nil, err
	}
	rt.Health.Set(stage, false)
	in := &pipeline.Instruments{Registry: rt.Registry}
	counter := func(name, help string) prometheus.Counter { return in.Counter(name, help).WithLabelValues() }
	c := &Cleanup{
		rt: rt, cfg: cfg, sinkDir: sinkDir, readers: readers, evals: evals, now: time.Now,
		records: counter("prl_cleanup_deleted_records_total", "Records deleted from topics."),
		blobs:   counter("prl_cleanup_deleted_blobs_total", "Blobs deleted."),
		bytes:   counter("prl_cleanup_deleted_bytes_total", "Bytes of the blobs deleted."),
	}
	return c, in.Err()
}

// Run makes a pass every [cleanup] every, or a single one where that is 0.
func (c *Cleanup) Run(ctx context.Context) error {
	for {
		err := c.pass(ctx)
		c.rt.Health.Set(stage, err == nil)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (c.cfg.Every == 0 || errors.Is(err, pipeline.ErrFatal)):
			return fmt.Errorf("%s: %w", stage, err)
		case err != nil:
			c.rt.Log.Warn("clean-up failed; it is tried again", "stage", stage, "error", err, "in", c.cfg.Every)
		case c.cfg.Every == 0:
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Duration(c.cfg.Every)):
		}
	}
}

// pass deletes what is not needed at the moment. The order matters: blobs are listed before what may name them is read,
// so a record that is written meanwhile names a blob that is too young to be deleted.
func (c *Cleanup) pass(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, passDeadline)
	defer cancel()
	old, err := c.oldBlobs(ctx, c.now())
	if err != nil {
		return err
	}
	if c.known, err = c.read(ctx); err != nil {
		return err
	}
	cl, err := c.rt.Client()
	if err != nil {
		return err
	}
	defer cl.Close()
	deleted, err := c.deleteRecords(ctx, kadm.NewClient(cl))
	if err != nil {
		return err
	}
	blobs, bytes, err := c.deleteBlobs(ctx, old)
	if err != nil {
		return err
	}
	c.rt.Log.Info("cleaned up", "stage", stage, "records", deleted, "blobs", blobs, "bytes", bytes)
	return nil
}

// read gives what the small topics say, all of them or an error: what is missing would be taken for deletable.
func (c *Cleanup) read(ctx context.Context) (known, error) {
	k := known{states: map[position]*schemas.StageState{}, measured: map[measurement]bool{}}
	f, err := c.rt.Follow(pipeline.TopicState, pipeline.TopicPolicies, pipeline.TopicEvals)
	if err != nil {
		return k, err
	}
	defer f.Close()
	recs, err := f.Load(ctx)
	for _, r := range recs {
		k.learn(r)
	}
	return k, err
}

func (k *known) learn(r pipeline.Record) {
	switch v := r.Value.(type) {
	case *schemas.StageState:
		k.states[position{v.Stage, v.Topic, int32(v.Partition)}] = v
	case *schemas.PolicyVersion:
		k.versions = append(k.versions, v)
	case *schemas.EvalResult:
		k.measured[measurement{v.Eval, v.Version}] = true
	}
}

// sunk is the position of the sink in a partition.
func (c *Cleanup) sunk(topic string, id [16]byte, partition int32) (int64, error) {
	chain, err := sink.OpenChain(c.sinkDir, topic, id, partition)
	if err != nil {
		return 0, err
	}
	return chain.Next(), nil
}
