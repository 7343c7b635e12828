package schemas

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// A load is a record as runs have them, and what it may cost.
type load struct {
	name   string
	record Record
	// encode and decode bound the allocations of each, bytes what is on the wire beside tensors and texts.
	encode, decode, bytes int
}

func loads() []load {
	return []load{
		{"Trace", playedTrace(12, 256), 2, 29, 700},
		{"Trace64k", playedTrace(64, 1024), 2, 55, 3000},
		{"SampleGroup", scoredGroup(8, 3072), 2, 30, 450},
		{"MicroBatch", packedBatch(10, 3072), 2, 28, 300},
		{"Task", &Task{Env: "wordle", GroupID: 4711, GroupSize: 8, RolloutIndex: 3, Split: SplitTrain, TaskIndex: 99,
			Task: `{"word":"crane"}`, GroupSeed: 1 << 40, Seed: 1 << 50, Temperature: 1, TopP: 1, MaxTokens: 512,
			MaxRolloutTokens: 8192, TimeoutMs: 600_000, MaxOffPolicySteps: 8}, 2, 5, 100},
		{"GroupOutcome", packedOutcome(8), 2, 22, 250},
		{"Request", &Request{Kind: RequestRefill, GroupID: 4711, RolloutIndex: 3, Attempt: 1, Rollouts: 1}, 2, 4, 40},
		{"PolicyVersion", publishedVersion(8), 2, 38, 260},
		{"StageState", &StageState{Stage: "scorer", Topic: "traces", Instance: "host-0", LowOffset: 1 << 20, NextOffset: 1<<20 + 4096,
			Unfinished: make([]byte, 800), Core: make([]byte, 200)}, 2, 6, 60},
		{"EvalResult", &EvalResult{Eval: "held-out", Env: "wordle", Version: 40, Examples: 256, K: 4, Episodes: 1024,
			AvgAtK: 0.5, PassAtK: 0.7, Rewards: figures(4), Metrics: figures(8), Baselines: figures(3)}, 2, 41, 350},
		{"MetricPoint", &MetricPoint{Name: "loss", Stage: "trainer", Instance: "host-0", Step: new(int64(40)), Value: 0.25,
			Labels: map[string]string{"env": "wordle"}, TimeMs: 1 << 41}, 2, 12, 60},
		{"EnvInfo", &EnvInfo{Env: "wordle", Version: "1", Instance: "host-0", TrainTasks: 2000, EvalTasks: 256, MaxTurns: 6, Tools: "[]",
			Baselines: figures(3)}, 2, 14, 120},
	}
}

// playedTrace is a trace with texts: the environment and the policy take turns.
func playedTrace(nodes, tokens int) *Trace {
	t := exampleTrace(nodes, tokens)
	t.EnvVersion, t.Split, t.StopReason, t.Model, t.Instance = "1", SplitTrain, "done", "policy", "host-0"
	for i := range t.Nodes {
		n := &t.Nodes[i]
		n.Content = strings.Repeat("text", tokens)
		if i%2 == 0 {
			n.Role, n.Mask, n.Logprobs, n.Temperature, n.Versions = "user", make([]byte, tokens), make([]byte, 4*tokens), 0, nil
		}
	}
	return t
}

func scoredGroup(samples, tokens int) *SampleGroup {
	g := &SampleGroup{Env: "wordle", GroupID: 4711, Emitted: samples}
	for i := range samples {
		tensors := exampleTrace(1, tokens).Nodes[0]
		g.Samples = append(g.Samples, Sample{RolloutIndex: i, TokenIDs: tensors.TokenIDs, Mask: tensors.Mask, Logprobs: tensors.Logprobs,
			Advantages: tensors.Logprobs, Temperatures: bytes.Repeat(PackFloat32s([]float32{1}), tokens), PolicyStart: new(int64(3))})
		g.Rollouts = append(g.Rollouts, RolloutFate{RolloutIndex: i, Reward: new(0.5), PolicyStart: new(int64(3)), Tokens: tokens})
	}
	return g
}

func packedBatch(samples, tokens int) *MicroBatch {
	b := &MicroBatch{Step: 40, Ranks: 8, Count: 4, LossTokens: []LossTokens{{"rl", 1 << 20}, {"ce", 0}, {"ref_kl", 0}}}
	all := scoredGroup(1, samples*tokens).Samples[0]
	b.TokenIDs, b.Mask, b.Logprobs, b.Advantages, b.Temperatures = all.TokenIDs, all.Mask, all.Logprobs, all.Advantages, all.Temperatures
	for i := range samples {
		b.SeqLens = append(b.SeqLens, PackInt32s([]int32{int32(tokens)})...)
		b.Samples = append(b.Samples, PackedSample{Env: "wordle", GroupID: 4711, RolloutIndex: i, PolicyStart: new(int64(39))})
	}
	return b
}

func packedOutcome(rollouts int) *GroupOutcome {
	o := &GroupOutcome{Env: "wordle", GroupID: 4711, TaskIndex: 99, Fate: FatePacked, Step: new(int64(40))}
	for i := range rollouts {
		o.Rollouts = append(o.Rollouts, RolloutFate{
			RolloutIndex: i, Fate: FatePacked, Reward: new(0.5), PolicyStart: new(int64(39)), Tokens: 3072})
	}
	return o
}

func publishedVersion(ranks int) *PolicyVersion {
	hash := strings.Repeat("0123456789abcdef", 4)
	ref := BlobRef{URI: "weights/" + hash, Bytes: 1 << 30, SHA256: hash}
	return &PolicyVersion{Version: 40, Step: 40, Kind: KindFull, Weights: ref, Config: ref, Tokenizer: ref, Checkpoint: &ref,
		NextOffsets: make([]int64, ranks), Metrics: figures(10)}
}

func figures(n int) map[string]float64 {
	m := map[string]float64{}
	for i := range n {
		m[fmt.Sprintf("figure_%d", i)] = float64(i)
	}
	return m
}

// Tokens and what was said are copied once when a record is written and not at all when it is read, so a longer rollout costs
// no allocation more, and a decoded one no memory.
func TestCost_Tokens(t *testing.T) {
	const runs = 50
	short, long := playedTrace(12, 256), playedTrace(12, 4096)
	for name, cost := range map[string]func(*Trace) func(){
		"encode": func(r *Trace) func() { return func() { mustEncode(t, r) } },
		"decode": func(r *Trace) func() { b := mustEncode(t, r); return func() { mustDecode(t, b) } },
	} {
		if few, many := testing.AllocsPerRun(runs, cost(short)), testing.AllocsPerRun(runs, cost(long)); few != many {
			t.Errorf("%s: %v allocations for 256 tokens a node, %v for 4,096", name, few, many)
		}
	}
	enc := map[*Trace][]byte{short: mustEncode(t, short), long: mustEncode(t, long)}
	memory := func(r *Trace) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			mustDecode(t, enc[r])
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / runs
	}
	if few, many := memory(short), memory(long); many > few+few/2 { // of what the runtime does meanwhile
		t.Errorf("decode: %d bytes for 256 tokens a node, %d for 4,096", few, many)
	}
}

// What a record costs beside its tensors is bounded, by numbers that hold on every machine.
func TestCost_Records(t *testing.T) {
	for _, l := range loads() {
		b := mustEncode(t, l.record)
		if n := testing.AllocsPerRun(50, func() { mustEncode(t, l.record) }); n > float64(l.encode) {
			t.Errorf("%s: %v allocations to encode, at most %d", l.name, n, l.encode)
		}
		if n := testing.AllocsPerRun(50, func() { mustDecode(t, b) }); n > float64(l.decode) {
			t.Errorf("%s: %v allocations to decode, at most %d", l.name, n, l.decode)
		}
		if n := len(b) - payload(l.record); n > l.bytes {
			t.Errorf("%s: %d of %d bytes are neither tensors nor texts, at most %d", l.name, n, len(b), l.bytes)
		}
	}
}

// payload is the bytes of a record's tensors and of its longest texts.
func payload(r Record) (n int) {
	Tensors(r, func(_ string, data *[]byte) { n += len(*data) })
	switch r := r.(type) {
	case *Trace:
		for i := range r.Nodes {
			n += len(r.Nodes[i].Content)
		}
	case *StageState:
		n += len(r.Unfinished) + len(r.Core)
	case *PolicyVersion:
		for _, b := range []*BlobRef{&r.Weights, &r.Config, &r.Tokenizer, r.Checkpoint} {
			n += len(b.URI) + len(b.SHA256)
		}
	}
	return n
}

func mustEncode(tb testing.TB, r Record) []byte {
	b, err := Encode(r)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func mustDecode(tb testing.TB, b []byte) Record {
	r, err := Decode(b)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// holdHeap keeps as much memory as a small stage has in use: with none of it the collector would run every hundred records,
// and be what is measured.
func holdHeap(b *testing.B) {
	heap := make([]byte, 64<<20)
	b.Cleanup(func() { runtime.KeepAlive(heap) })
}

func BenchmarkEncode(b *testing.B) {
	holdHeap(b)
	for _, l := range loads() {
		b.Run(l.name, func(b *testing.B) {
			b.SetBytes(int64(len(mustEncode(b, l.record))))
			b.ReportAllocs()
			for b.Loop() {
				mustEncode(b, l.record)
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	holdHeap(b)
	for _, l := range loads() {
		b.Run(l.name, func(b *testing.B) {
			enc := mustEncode(b, l.record)
			b.SetBytes(int64(len(enc)))
			b.ReportAllocs()
			for b.Loop() {
				mustDecode(b, enc)
			}
		})
	}
}

// BenchmarkCopy is the yardstick: the same bytes, copied into memory that is there.
func BenchmarkCopy(b *testing.B) {
	for _, l := range loads() {
		b.Run(l.name, func(b *testing.B) {
			enc := mustEncode(b, l.record)
			to := make([]byte, len(enc))
			b.SetBytes(int64(len(enc)))
			for b.Loop() {
				copy(to, enc)
			}
		})
	}
}
