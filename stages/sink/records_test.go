package sink

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// lifelike makes records as runs have them, always the same ones. How well they compress is what matters: token ids of which
// few are frequent, text of words, log-probabilities of which many are near 0.
type lifelike struct {
	*rand.Rand
	ids, words *rand.Zipf
	first      schemas.Node // of the traces of a group: its task
}

const (
	traceNodes = 12 // nodes of a trace
	nodeTokens = 256
)

func newLifelike() *lifelike {
	r := rand.New(rand.NewPCG(17, 1))
	return &lifelike{Rand: r, ids: rand.NewZipf(r, 1.1, 8, 151_000), words: rand.NewZipf(r, 1.2, 4, 20_000)}
}

func (l *lifelike) tokens(n int) schemas.Int32s {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(l.ids.Uint64())
	}
	return schemas.PackInt32s(ids)
}

// logprobs are of n tokens that were sampled: two in three were nearly certain.
func (l *lifelike) logprobs(n int) schemas.Float32s {
	values := make([]float32, n)
	for i := range values {
		if values[i] = -float32(l.ExpFloat64()); l.IntN(3) > 0 {
			values[i] = -float32(math.Exp(-4 - 3*l.ExpFloat64()))
		}
	}
	return schemas.PackFloat32s(values)
}

// text is some n bytes of words.
func (l *lifelike) text(n int) string {
	var b strings.Builder
	for b.Len() < n {
		w := l.words.Uint64()
		for range 1 + w%7 {
			b.WriteByte('a' + byte(w%26))
			w = w*31/26 + 7
		}
		b.WriteByte(' ')
	}
	return b.String()
}

func (l *lifelike) trace(i int64) *schemas.Trace {
	t := &schemas.Trace{Env: "wordle", EnvVersion: "2", GroupID: i / 8, GroupSize: 8, RolloutIndex: int(i % 8), Split: schemas.SplitTrain, TaskIndex: i / 8 % 1000,
		Task: fmt.Sprintf(`{"word":%q,"seed":%d}`, l.text(5), i/8), GroupSeed: l.Int64(), Seed: l.Int64(), Reward: new(l.Float64()),
		Rewards: map[string]*float64{"solved": new(float64(l.IntN(2))), "format": new(l.Float64()), "style": nil}, Metrics: map[string]float64{"turns": 6},
		Timing: schemas.Timing{SetupMs: l.Float64(), GenerationMs: 1000 * l.Float64(), EnvironmentMs: l.Float64()}, StopReason: "done",
		PolicyStart: new(i / 512), PolicyEnd: new(i/512 + 1), Model: "qwen", Instance: fmt.Sprintf("env-%d", l.IntN(8))}
	for k := range traceNodes {
		n := schemas.Node{Parent: k - 1, Role: "user", Content: l.text(850), TokenIDs: l.tokens(nodeTokens), Mask: make([]byte, nodeTokens), Logprobs: make([]byte, 4*nodeTokens)}
		if k%2 == 1 {
			n.Role, n.Temperature, n.Logprobs, n.Versions = "assistant", 1, l.logprobs(nodeTokens), []schemas.VersionRun{{Version: i / 512}}
			for j := range n.Mask {
				n.Mask[j] = 1
			}
		}
		t.Nodes = append(t.Nodes, n)
	}
	if i%8 == 0 || l.first.Role == "" {
		l.first = t.Nodes[0]
	}
	t.Nodes[0] = l.first
	return t
}

// samples is a group of eight rollouts like trace.
func (l *lifelike) samples(i int64) *schemas.SampleGroup {
	g := &schemas.SampleGroup{Env: "wordle", GroupID: i, TaskIndex: i % 1000, Emitted: 8}
	for k := range 8 {
		n := traceNodes * nodeTokens
		s := schemas.Sample{RolloutIndex: k, TokenIDs: l.tokens(n), PolicyStart: new(i / 64)}
		advantage, advantages, temperatures := float32(l.NormFloat64()), make([]float32, n), make([]float32, n)
		for from := 0; from < n; from += nodeTokens {
			logprobs, mask := schemas.Float32s(make([]byte, 4*nodeTokens)), byte(0)
			if from/nodeTokens%2 == 1 {
				logprobs, mask = l.logprobs(nodeTokens), 1
			}
			s.Logprobs = append(s.Logprobs, logprobs...)
			for j := from; j < from+nodeTokens; j++ {
				s.Mask = append(s.Mask, mask)
				advantages[j], temperatures[j] = advantage*float32(mask), 1
			}
		}
		s.Advantages, s.Temperatures = schemas.PackFloat32s(advantages), schemas.PackFloat32s(temperatures)
		g.Samples = append(g.Samples, s)
		g.Rollouts = append(g.Rollouts, schemas.RolloutFate{RolloutIndex: k, Reward: new(l.Float64()), PolicyStart: new(i / 64), Tokens: n})
	}
	return g
}

func (l *lifelike) batch(i int64) *schemas.MicroBatch {
	b := &schemas.MicroBatch{Step: 1 + i/8, Ranks: 1, Index: int(i % 8), Count: 8, LossTokens: []schemas.LossTokens{{Component: "rl", Tokens: 100_000}}}
	var lengths []int32
	for k, s := range append(l.samples(i).Samples, l.samples(i).Samples[:2]...) {
		lengths = append(lengths, int32(s.TokenIDs.Len()))
		b.TokenIDs, b.Mask, b.Logprobs = append(b.TokenIDs, s.TokenIDs...), append(b.Mask, s.Mask...), append(b.Logprobs, s.Logprobs...)
		b.Advantages, b.Temperatures = append(b.Advantages, s.Advantages...), append(b.Temperatures, s.Temperatures...)
		b.Samples = append(b.Samples, schemas.PackedSample{Env: "wordle", GroupID: i, RolloutIndex: k, PolicyStart: new(i / 64)})
	}
	b.SeqLens = schemas.PackInt32s(lengths)
	return b
}

func (l *lifelike) outcome(i int64) *schemas.GroupOutcome {
	o := &schemas.GroupOutcome{Env: "wordle", GroupID: i, TaskIndex: i % 1000, Fate: schemas.FatePacked, Step: new(i / 64)}
	for k := range 8 {
		o.Rollouts = append(o.Rollouts, schemas.RolloutFate{RolloutIndex: k, Fate: schemas.FatePacked, Reward: new(l.Float64()), PolicyStart: new(i / 64), Tokens: 3000 + l.IntN(100)})
	}
	return o
}

func (l *lifelike) task(i int64) *schemas.Task {
	return &schemas.Task{Env: "wordle", GroupID: i / 8, GroupSize: 8, RolloutIndex: int(i % 8), Split: schemas.SplitTrain, TaskIndex: i / 8 % 1000, GroupSeed: l.Int64(), Seed: l.Int64(),
		Temperature: 1, TopP: 1, MaxTokens: 512, MaxRolloutTokens: 8192, TimeoutMs: 60_000, MaxOffPolicySteps: 2}
}

func (l *lifelike) metric(i int64) *schemas.MetricPoint {
	return &schemas.MetricPoint{Name: fmt.Sprintf("loss/%d", i%20), Stage: "trainer", Instance: "one", Step: new(i / 20), Value: l.NormFloat64(), TimeMs: 1_700_000_000_000 + 50*i}
}

// record is the i-th of a topic.
func (l *lifelike) record(topic string, i int64) schemas.Record {
	switch topic {
	case pipeline.TopicTraces:
		return l.trace(i)
	case pipeline.TopicSamples:
		return l.samples(i)
	case pipeline.TopicBatches:
		return l.batch(i)
	case pipeline.TopicOutcomes:
		return l.outcome(i)
	case pipeline.TopicMetrics:
		return l.metric(i)
	}
	return l.task(i)
}

// lifelikeRows are n records of a topic, and their bytes.
func lifelikeRows(t testing.TB, topic string, n int64) (rows []Row, bytes int64) {
	t.Helper()
	l := newLifelike()
	for i := range n {
		r := row(t, i, l.record(topic, i))
		r.Time = time.UnixMilli(1_700_000_000_000 + 7*i)
		rows = append(rows, r)
		bytes += int64(len(r.Value))
	}
	return rows, bytes
}
