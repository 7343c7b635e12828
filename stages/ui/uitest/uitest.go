// Package uitest makes a run to look at: records as stages write them, small and the same every time.
package uitest

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
)

// Rollouts of a group, and groups of a step.
const (
	Size  = 4
	Batch = 4
)

// Hostile is text as a model might write it to take over who reads it.
const Hostile = "<script>window.pwned = 1</script><img src=x onerror=\"window.pwned = 1\">\u202egnp.exe\u202c\x00\x1b[31m\u200b{{7*7}}"

// Envs are those of the run.
var Envs = []string{"catch", "wordle"}

// EnvOf is the environment of a group.
func EnvOf(group int64) string { return Envs[group%int64(len(Envs))] }

// Trace is rollout i of a group that version played.
func Trace(group int64, i int, version int64) *schemas.Trace {
	reward := math.Round(100*(0.5+0.5*math.Sin(float64(group)/9+float64(i)))) / 100
	ids := func(n int, first int32) schemas.Int32s {
		v := make([]int32, n)
		for k := range v {
			v[k] = first + int32(k)
		}
		return schemas.PackInt32s(v)
	}
	t := &schemas.Trace{
		Env: EnvOf(group), EnvVersion: "1", GroupID: group, GroupSize: Size, RolloutIndex: i, Split: schemas.SplitTrain, TaskIndex: group % 5,
		Task: fmt.Sprintf(`{"word":"task%d"}`, group%5), Seed: 1<<62 + group,
		Nodes: []schemas.Node{
			{Parent: -1, Role: "user", Content: fmt.Sprintf("What is word %d?", group), TokenIDs: ids(3, 10), Mask: schemas.Uint8s{0, 0, 0}, Logprobs: schemas.PackFloat32s(make([]float32, 3))},
			{Parent: 0, Role: "assistant", Content: fmt.Sprintf("answer %d of group %d", i, group), TokenIDs: ids(3, 20), Mask: schemas.Uint8s{0, 1, 1},
				Logprobs: schemas.PackFloat32s([]float32{0, -0.5, -3}), Temperature: 1, Versions: []schemas.VersionRun{{Offset: 0, Version: version}}},
		},
		Rewards: map[string]*float64{"right": &reward}, Reward: &reward, Metrics: map[string]float64{"turns": 1},
		Timing: schemas.Timing{GenerationMs: 80, EnvironmentMs: 20}, StopReason: "done", PolicyStart: &version, PolicyEnd: &version, Instance: "one",
	}
	return t
}

// Samples is the scored group.
func Samples(group, version int64) *schemas.SampleGroup {
	g := &schemas.SampleGroup{Env: EnvOf(group), GroupID: group, TaskIndex: group % 5, Emitted: Size}
	for i := range Size {
		t := Trace(group, i, version)
		advantage := float32(i) - 1.5
		s := schemas.Sample{RolloutIndex: i, PolicyStart: &version, Advantages: schemas.PackFloat32s([]float32{0, 0, 0, 0, advantage, advantage}),
			Temperatures: schemas.PackFloat32s([]float32{1, 1, 1, 1, 1, 1})}
		for _, n := range t.Nodes {
			s.TokenIDs, s.Mask, s.Logprobs = append(s.TokenIDs, n.TokenIDs...), append(s.Mask, n.Mask...), append(s.Logprobs, n.Logprobs...)
		}
		g.Samples = append(g.Samples, s)
		g.Rollouts = append(g.Rollouts, schemas.RolloutFate{RolloutIndex: i, Reward: t.Reward, PolicyStart: &version, Tokens: 6})
	}
	return g
}

// Outcome is the fate of a group: packed into a step, or what fate says.
func Outcome(group, version, step int64, fate, filter string) *schemas.GroupOutcome {
	g := Samples(group, version)
	o := &schemas.GroupOutcome{Env: g.Env, GroupID: group, TaskIndex: g.TaskIndex, Fate: fate, Filter: filter, Rollouts: g.Rollouts}
	for i := range o.Rollouts {
		o.Rollouts[i].Fate = fate
	}
	if fate == schemas.FatePacked {
		o.Step = &step
	}
	return o
}

// MicroBatch is the batch of a step.
func MicroBatch(step int64, groups ...*schemas.SampleGroup) *schemas.MicroBatch {
	b := &schemas.MicroBatch{Step: step, Ranks: 1, Count: 1}
	var lengths []int32
	for _, g := range groups {
		for _, s := range g.Samples {
			b.TokenIDs, b.Mask = append(b.TokenIDs, s.TokenIDs...), append(b.Mask, s.Mask...)
			b.Logprobs, b.Advantages, b.Temperatures = append(b.Logprobs, s.Logprobs...), append(b.Advantages, s.Advantages...), append(b.Temperatures, s.Temperatures...)
			b.Samples = append(b.Samples, schemas.PackedSample{Env: g.Env, GroupID: g.GroupID, RolloutIndex: s.RolloutIndex, PolicyStart: s.PolicyStart})
			lengths = append(lengths, int32(s.TokenIDs.Len()))
		}
	}
	b.SeqLens = schemas.PackInt32s(lengths)
	b.LossTokens = []schemas.LossTokens{{Component: "rl", Tokens: int64(2 * len(lengths))}}
	return b
}

// A Record is a record for a topic.
type Record struct {
	Topic string
	Value schemas.Record
}

// Step is everything that one step writes, in an order in which it could come: groups that are trained, and one that a filter
// takes.
func Step(step int64) (records []Record) {
	add := func(topic string, v schemas.Record) { records = append(records, Record{topic, v}) }
	version := max(0, step-2)
	var trained []*schemas.SampleGroup
	first := (step - 1) * (Batch + 1)
	for g := first; g <= first+Batch; g++ {
		for i := range Size {
			add(pipeline.TopicTraces, Trace(g, i, version))
		}
		if g == first+Batch {
			o := Outcome(g, version, 0, schemas.FateFiltered, "zero_advantage")
			add(pipeline.TopicSamples, &schemas.SampleGroup{Env: o.Env, GroupID: g, TaskIndex: o.TaskIndex, Emitted: Size, Reason: o.Fate, Filter: o.Filter, Rollouts: o.Rollouts})
			add(pipeline.TopicOutcomes, o)
			continue
		}
		trained = append(trained, Samples(g, version))
		add(pipeline.TopicSamples, trained[len(trained)-1])
	}
	add(pipeline.TopicBatches, MicroBatch(step, trained...))
	for _, g := range trained {
		add(pipeline.TopicOutcomes, Outcome(g.GroupID, version, step, schemas.FatePacked, ""))
	}
	point := func(stage, name string, value float64, labels map[string]string) {
		add(pipeline.TopicMetrics, &schemas.MetricPoint{Name: name, Stage: stage, Step: &step, Value: value, Labels: labels, TimeMs: 1_700_000_000_000 + 1000*step})
	}
	x := float64(step)
	for k, env := range Envs {
		point("packer", "reward", 1-math.Exp(-x/float64(12*(k+1)))+0.05*math.Sin(7*x), map[string]string{"env": env})
		point("packer", "fate_tokens", 6+math.Sin(x), map[string]string{"env": env, "fate": schemas.FatePacked})
	}
	point("packer", "off_policy_mean", 1, nil)
	point("packer", "off_policy_max", 1, nil)
	for name, v := range map[string]float64{"loss": 0.2 * math.Exp(-x/20), "entropy": 3 * math.Exp(-x/30), "kl": 0.003, "ratio": 1, "grad_norm": 0.4, "lr": 0.001, "tokens_per_second": 1500, "wait_share": 0.6, "train_seconds": 0.4} {
		point("trainer", name, v+0.02*v*math.Sin(3*x), nil)
	}
	add(pipeline.TopicPolicies, Version(step, false))
	return records
}

// Version is the policy version of a step.
func Version(step int64, final bool) *schemas.PolicyVersion {
	return &schemas.PolicyVersion{Version: step, Step: step, Kind: schemas.KindFull, Final: final, NextOffsets: []int64{step},
		Weights: schemas.BlobRef{URI: "weights/x", Bytes: 400_000, SHA256: fmt.Sprintf("%064x", step)}}
}

// Eval is the result of an eval of a version.
func Eval(env string, version int64) *schemas.EvalResult {
	return &schemas.EvalResult{Eval: env, Env: env, Version: version, Examples: 64, K: 1, Episodes: 64, AvgAtK: 1 - math.Exp(-float64(version+1)/15), AvgStderr: 0.03, PassAtK: 0.5,
		Baselines: map[string]float64{"random": 0.33}}
}

// Write adds records to the files below dir, as the sink would.
func Write(t testing.TB, dir string, at time.Time, records ...Record) {
	t.Helper()
	if err := sink.WriteSchemas(dir); err != nil {
		t.Fatal(err)
	}
	type key struct {
		topic     string
		partition int32
	}
	chains := map[key]*sink.Chain{}
	var order []*sink.Chain
	for _, r := range records {
		topic, ok := pipeline.TopicOf(r.Topic)
		if !ok {
			t.Fatalf("no topic %s", r.Topic)
		}
		k := key{r.Topic, 0}
		if topic.Partition != nil && r.Topic == pipeline.TopicTraces {
			k.partition = topic.Partition(r.Value, int32(Partitions))
		}
		c := chains[k]
		if c == nil {
			var err error
			if c, err = sink.OpenChain(dir, r.Topic, [16]byte{1}, k.partition); err != nil {
				t.Fatal(err)
			}
			chains[k], order = c, append(order, c)
		}
		value, err := schemas.Encode(r.Value)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Append(sink.Row{Offset: c.Next(), Time: at, Key: []byte(topic.Key(r.Value)), Value: value}, at); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range order {
		if _, err := c.Flush(); err != nil {
			t.Fatal(err)
		}
	}
}

// Partitions is the number of partitions of traces.
const Partitions = 4
