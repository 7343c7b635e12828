package packer

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
)

// config is a run of small steps: 4 rollouts, 10 tokens a sequence, 2 ranks.
func config() pipeline.RunConfig {
	run := pipeline.DefaultRunConfig()
	run.BatchSize, run.SeqLen, run.Ranks, run.MaxSteps = 4, 10, 2, 3
	return run
}

func newCore(run pipeline.RunConfig, cfg Config) pipelinetest.New {
	factory := New(run, cfg)
	return func(state []byte) (pipeline.Core, error) {
		core, err := factory(0, state)
		if err != nil {
			return nil, err
		}
		return told{core.(*Core)}, nil
	}
}

func newRunner(t testing.TB, run pipeline.RunConfig, cfg Config) *pipelinetest.Runner {
	t.Helper()
	return pipelinetest.NewRunner(t, newCore(run, cfg))
}

// sample has n tokens, of which all but the first are trained on.
func sample(rollout, n int, start *int64) schemas.Sample {
	ids, values, ones := make([]int32, n), make([]float32, n), make([]float32, n)
	mask := make(schemas.Uint8s, n)
	for i := range ids {
		ids[i], ones[i] = int32(100*rollout+i), 1
		if i > 0 {
			mask[i], values[i] = 1, -float32(i)
		}
	}
	return schemas.Sample{
		RolloutIndex: rollout, TokenIDs: schemas.PackInt32s(ids), Mask: mask, Logprobs: schemas.PackFloat32s(values),
		Advantages: schemas.PackFloat32s(values), Temperatures: schemas.PackFloat32s(ones), PolicyStart: start,
	}
}

func version(v int64) *int64 { return &v }

// group has one sample of each length.
func group(id int64, start *int64, lengths ...int) *schemas.SampleGroup {
	g := &schemas.SampleGroup{Env: "catch", GroupID: id, TaskIndex: id, Emitted: len(lengths)}
	for i, n := range lengths {
		reward := float64(i)
		g.Rollouts = append(g.Rollouts, schemas.RolloutFate{RolloutIndex: i, Reward: &reward, PolicyStart: start, Tokens: n})
		g.Samples = append(g.Samples, sample(i, n, start))
	}
	return g
}

// without is a group of n rollouts that the scorer ended.
func without(id int64, n int, reason, filter string) *schemas.SampleGroup {
	g := group(id, nil, make([]int, n)...)
	g.Samples, g.Reason, g.Filter = nil, reason, filter
	for i := range g.Rollouts {
		g.Rollouts[i].Fate = reason
	}
	return g
}

// in puts a group into a wave of a step.
func in(g *schemas.SampleGroup, step int64, wave int, first, last int64) *schemas.SampleGroup {
	g.Step, g.Wave, g.WaveFirst, g.WaveLast = step, wave, first, last
	return g
}

// output sorts what a core emitted by topic.
type output struct {
	batches  []*schemas.MicroBatch
	outcomes []*schemas.GroupOutcome
	requests []*schemas.Request
	metrics  []*schemas.MetricPoint
}

func sorted(t testing.TB, emitted []pipeline.Emission) (o output) {
	t.Helper()
	for _, e := range emitted {
		if err := e.Value.Validate(); err != nil {
			t.Fatalf("%s: %v", e.Topic, err)
		}
		switch v := e.Value.(type) {
		case *schemas.MicroBatch:
			o.batches = append(o.batches, v)
		case *schemas.GroupOutcome:
			o.outcomes = append(o.outcomes, v)
		case *schemas.Request:
			o.requests = append(o.requests, v)
		case *schemas.MetricPoint:
			o.metrics = append(o.metrics, v)
		default:
			t.Fatalf("%T on %s", v, e.Topic)
		}
	}
	return o
}

func feed(t testing.TB, r *pipelinetest.Runner, groups ...*schemas.SampleGroup) output {
	t.Helper()
	var emitted []pipeline.Emission
	for _, g := range groups {
		emitted = append(emitted, r.Feed(t, pipeline.TopicSamples, g)...)
	}
	return sorted(t, emitted)
}

// undecodable makes the record that stands for one in dlq.
func undecodable(offset int64, key string) pipelinetest.Step {
	return pipelinetest.Step{Record: &pipeline.Record{Ref: pipeline.Ref{Topic: pipeline.TopicSamples, Offset: offset}, Key: key}}
}

// told is a core that hears of records without a value as the shell tells it of those in dlq.
type told struct{ *Core }

func (c told) Process(r pipeline.Record, out *pipeline.Out) error {
	if r.Value != nil {
		return c.Core.Process(r, out)
	}
	out.Finish(r.Ref)
	return c.Undecodable(r, errors.New("no schema"), out)
}

func fates(o output) string {
	var b bytes.Buffer
	for _, g := range o.outcomes {
		fmt.Fprintf(&b, "%d %s", g.GroupID, g.Fate)
		if g.Step != nil {
			fmt.Fprintf(&b, " %d", *g.Step)
		}
		if g.Filter != "" {
			fmt.Fprintf(&b, " %s", g.Filter)
		}
		b.WriteString("; ")
	}
	return b.String()
}
