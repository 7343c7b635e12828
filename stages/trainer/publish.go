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
	"github.com/prl-project/prl/pipeline/faults"
	"github.com/prl-project/prl/schemas"
)

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
	as string // the stage
	id string // transactional
}

// claim takes the name: what a predecessor left open is aborted, and the predecessor is fenced.
func claim(ctx context.Context, rt *pipeline.Runtime) (*publisher, error) {
	return claimAs(ctx, rt, stage, rt.TopicName(stage))
}

func claimAs(ctx context.Context, rt *pipeline.Runtime, as, id string) (*publisher, error) {
	ctx, cancel := context.WithTimeout(ctx, loadDeadline)
	defer cancel()
	cl, err := rt.Client(kgo.TransactionalID(id), kgo.TransactionTimeout(transactionTimeout), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return nil, err
	}
	if _, _, err := cl.ProducerID(ctx); err != nil {
		cl.Close()
		return nil, fmt.Errorf("claim transactional id %s: %w", id, pipeline.Denied(pipeline.Fenced(err), pipeline.WriteTransactionalID(id)))
	}
	return &publisher{rt, cl, as, id}, nil
}

func (p *publisher) close() { p.cl.Close() }

// version publishes a version.
func (p *publisher) version(ctx context.Context, v *made) error {
	return p.commit(ctx, emissions(v, p.rt.Instance, time.Now()), v.refused)
}

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
		p.rt.Metrics.Transactions.WithLabelValues(p.as, "aborted").Inc()
		return fmt.Errorf("publish: %w", pipeline.Denied(pipeline.Fenced(err), pipeline.WriteTransactionalID(p.id)))
	}
	p.rt.Metrics.Transactions.WithLabelValues(p.as, "committed").Inc()
	p.rt.Metrics.Commit.WithLabelValues(p.as).Observe(time.Since(start).Seconds())
	p.rt.Metrics.Refused(p.as, refused)
	for _, e := range emissions {
		p.rt.Metrics.Emitted.WithLabelValues(p.as, e.Topic).Inc()
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

// versionZero publishes, on rank 0, the policy before any training, with which every run begins.
func (t *Trainer) versionZero(ctx context.Context, p writer) (*schemas.PolicyVersion, error) {
	t.discard()
	learner, err := t.newLearner(ctx, "")
	if err != nil {
		return nil, cannot("make the learner", err)
	}
	t.learner, t.holds = learner, 0
	if err := t.agree(ctx, nil, -1); err != nil {
		t.discard()
		return nil, err
	}
	v := &made{PolicyVersion: &schemas.PolicyVersion{Kind: schemas.KindFull, NextOffsets: make([]int64, t.rt.Run.Ranks)}, checkpoint: true, began: time.Now()}
	if err := t.copyInto(ctx, v); err != nil {
		return nil, err
	}
	if !t.leads() {
		t.stored = stored{}
		return v.PolicyVersion, nil
	}
	return v.PolicyVersion, t.publish(ctx, p, v)
}

// publish makes the blobs of a version durable, names them in it, and commits it with what was refused of the step's batches.
func (t *Trainer) publish(ctx context.Context, p writer, v *made) error {
	start := time.Now()
	if err := t.store(ctx, v); err != nil {
		return fmt.Errorf("store version %d: %w", v.Version, err)
	}
	if v.figures != nil {
		v.figures[figureSave] = time.Since(start).Seconds()
	}
	pipeline.Crash(stage + ".after-weights")
	if err := p.version(ctx, v); err != nil {
		return fmt.Errorf("version %d: %w", v.Version, err)
	}
	pipeline.Crash(stage + ".after-publish")
	t.rt.Metrics.Policy(t.as, v.PolicyVersion)
	t.rt.Wrote(t.as, nil)
	t.rt.Mended(t.as, faults.TrainerOutOfMemory, "")
	if v.Step > 0 {
		t.rt.TraceTrained(t.as, v.training, v.Version, time.Now())
		t.metrics.made(v)
	}
	if v.Skipped {
		t.rt.Log.Warn("the gradient was not finite: no update", "step", v.Step)
	}
	return nil
}

// emissions are the records of a version: itself, and a point of each of its metrics and figures.
func emissions(v *made, instance string, now time.Time) []pipeline.Emission {
	list := []pipeline.Emission{{Topic: pipeline.TopicPolicies, Partition: pipeline.AutoPartition, Value: v.PolicyVersion}}
	for _, p := range points(v.PolicyVersion, v.figures, now) {
		p.Stage, p.Instance = stage, instance
		list = append(list, pipeline.Emission{Topic: pipeline.TopicMetrics, Partition: pipeline.AutoPartition, Value: p})
	}
	return list
}

// points are a version's metrics and the figures of the work, of a stage that is not named yet.
func points(v *schemas.PolicyVersion, figures map[string]float64, now time.Time) (list []*schemas.MetricPoint) {
	for _, values := range []map[string]float64{v.Metrics, figures} {
		for _, name := range slices.Sorted(maps.Keys(values)) {
			list = append(list, &schemas.MetricPoint{Name: name, Step: &v.Step, Value: values[name], TimeMs: now.UnixMilli()})
		}
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
