package trainer

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// kindFull is the PolicyVersion.kind of whole weights.
const kindFull = "full"

// transactionTimeout is the broker's limit for one PolicyVersion and its metrics.
const transactionTimeout = 10 * time.Second

// Where the blob store keeps what versions name.
const (
	weightsPrefix    = "weights"
	checkpointPrefix = "checkpoints"
	modelPrefix      = "models"
)

// A publisher owns the run's trainer name: as long as it is not fenced, nobody else publishes versions.
type publisher struct {
	rt *pipeline.Runtime
	cl *kgo.Client
}

// claim takes the name: what a predecessor left open is aborted, and the predecessor is fenced.
func claim(ctx context.Context, rt *pipeline.Runtime) (*publisher, error) {
	ctx, cancel := context.WithTimeout(ctx, loadDeadline)
	defer cancel()
	id := rt.TopicName(stage)
	cl, err := rt.Client(kgo.TransactionalID(id), kgo.TransactionTimeout(transactionTimeout), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return nil, err
	}
	if _, _, err := cl.ProducerID(ctx); err != nil {
		cl.Close()
		return nil, fmt.Errorf("claim transactional id %s: %w", id, pipeline.Denied(pipeline.Fenced(err), pipeline.WriteTransactionalID(id)))
	}
	return &publisher{rt, cl}, nil
}

func (p *publisher) close() { p.cl.Close() }

// commit writes all records, and those for dlq, in one transaction. After an error the publisher is of no use: whether the transaction was
// committed is known when the name has been claimed again.
func (p *publisher) commit(ctx context.Context, emissions []pipeline.Emission, refused []*kgo.Record) error {
	records := slices.Clone(refused)
	for _, e := range emissions {
		r, err := p.rt.Encode(ctx, e)
		if err != nil {
			return err
		}
		records = append(records, r)
	}
	start := time.Now()
	if err := p.transact(ctx, records); err != nil {
		p.rt.Metrics.Transactions.WithLabelValues(stage, "aborted").Inc()
		return fmt.Errorf("publish: %w", pipeline.Denied(pipeline.Fenced(err), pipeline.WriteTransactionalID(p.rt.TopicName(stage))))
	}
	p.rt.Metrics.Transactions.WithLabelValues(stage, "committed").Inc()
	p.rt.Metrics.Commit.WithLabelValues(stage).Observe(time.Since(start).Seconds())
	for _, e := range emissions {
		p.rt.Metrics.Emitted.WithLabelValues(stage, e.Topic).Inc()
	}
	return nil
}

func (p *publisher) transact(ctx context.Context, records []*kgo.Record) error {
	ctx, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	if err := p.cl.BeginTransaction(); err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	if err := pipeline.ProduceAll(ctx, p.cl, records); err != nil {
		return err
	}
	pipeline.Crash(stage + ".before-commit")
	if err := p.cl.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return fmt.Errorf("commit transaction (whether it was is not known): %w", err)
	}
	return nil
}

// versionZero publishes the policy before any training, with which every run begins.
func (t *Trainer) versionZero(ctx context.Context, p *publisher) (*schemas.PolicyVersion, error) {
	learner, err := t.newLearner()
	if err != nil {
		return nil, cannot("make the learner", err)
	}
	weights, err := learner.Weights()
	if err != nil {
		learner.Close()
		return nil, fmt.Errorf("weights of version 0: %w", err)
	}
	v := &schemas.PolicyVersion{Kind: kindFull, NextOffsets: make([]int64, t.rt.Run.Ranks)}
	t.learner, t.held = learner, held{0, sum(weights)}
	return v, t.publish(ctx, p, v, weights, true, nil)
}

// publish makes the blobs of v, which the learner holds, durable, names them in v, and commits it with what was refused of
// the step's batches.
func (t *Trainer) publish(ctx context.Context, p *publisher, v *schemas.PolicyVersion, weights []byte, withCheckpoint bool, refused []*kgo.Record) error {
	var err error
	put := func(prefix string, data []byte) schemas.BlobRef {
		if err != nil {
			return schemas.BlobRef{}
		}
		var ref schemas.BlobRef
		ref, err = t.rt.Blobs.Put(ctx, prefix, data)
		return ref
	}
	config, tokenizer := t.learner.Files()
	v.Config, v.Tokenizer = put(modelPrefix, config), put(modelPrefix, tokenizer)
	if withCheckpoint {
		checkpoint, cerr := t.learner.Checkpoint()
		if cerr != nil {
			return fmt.Errorf("checkpoint of version %d: %w", v.Version, cerr)
		}
		ref := put(checkpointPrefix, checkpoint)
		v.Checkpoint = &ref
	}
	v.Weights = put(weightsPrefix, weights)
	if err != nil {
		return fmt.Errorf("store version %d: %w", v.Version, err)
	}
	pipeline.Crash(stage + ".after-weights")
	if err := p.commit(ctx, emissions(v, t.rt.Instance, time.Now()), refused); err != nil {
		return fmt.Errorf("version %d: %w", v.Version, err)
	}
	pipeline.Crash(stage + ".after-publish")
	return nil
}

// emissions are the records of a version: itself, and a point of every metric.
func emissions(v *schemas.PolicyVersion, instance string, now time.Time) []pipeline.Emission {
	list := []pipeline.Emission{{Topic: pipeline.TopicPolicies, Partition: pipeline.AutoPartition, Value: v}}
	for _, name := range slices.Sorted(maps.Keys(v.Metrics)) {
		list = append(list, pipeline.Emission{Topic: pipeline.TopicMetrics, Partition: pipeline.AutoPartition, Value: &schemas.MetricPoint{
			Name: name, Stage: stage, Instance: instance, Step: &v.Step, Value: v.Metrics[name], TimeMs: now.UnixMilli(),
		}})
	}
	return list
}

// finiteOnly is the values that a curve can show.
func finiteOnly(values map[string]float64) map[string]float64 {
	out := map[string]float64{}
	for name, v := range values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			out[name] = v
		}
	}
	return out
}
