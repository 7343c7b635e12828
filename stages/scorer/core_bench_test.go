package scorer

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/scorer/advantage"
)

// A way is settings that groups are scored with.
type way struct {
	name     string
	settings func(*Settings)
}

// ways are all algorithms, and what else changes their work.
func ways() []way {
	all := []way{
		{"grpo_length_penalty", func(s *Settings) { s.LengthPenalty.On = true }},
		{"all_filters", func(s *Settings) {
			s.Filters.Truncated.Mode, s.Filters.Length.Mode, s.Filters.RewardRange.Mode, s.Filters.Gibberish.Mode = "drop", "drop", "drop", "drop"
			s.Filters.Length.MinTokens, s.Filters.RewardRange.Min, s.Filters.Gibberish.VocabSize = 1, -1, 150_000
			s.Filters.Repetition.Window = 100
		}},
	}
	for _, name := range advantage.Names() {
		all = append(all, way{name, func(s *Settings) { s.Advantage = name }})
	}
	return all
}

// scoring is a core of one partition, and a group of rollouts of 12 messages, of which it makes others.
type scoring struct {
	core   pipeline.Core
	traces []*schemas.Trace
	out    pipeline.Out
	next   int64 // group
}

func newScoring(tb testing.TB, w way, traces []*schemas.Trace) *scoring {
	tb.Helper()
	run, cfg := pipeline.DefaultRunConfig(), DefaultConfig()
	run.TracePartitions = 1
	w.settings(&cfg.Settings)
	core, err := New(run, cfg, 2)(0, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return &scoring{core: core, traces: traces}
}

// groupOf is the rollouts of a group.
func groupOf(tokens int) (traces []*schemas.Trace) {
	for i := range costSize {
		traces = append(traces, played(i, tokens))
	}
	return traces
}

// played is a rollout of six turns of that many tokens each, with a teacher's log-probabilities.
func played(rollout, tokens int) *schemas.Trace {
	t := &schemas.Trace{Env: "catch", GroupSize: costSize, RolloutIndex: rollout, Reward: new(float64(1 + rollout))}
	for i := range 6 {
		t.Nodes = append(t.Nodes, prompt(2*i-1, 1, tokens), answer(2*i, 1, tokens, run(0, 4)))
	}
	for i := range t.Nodes {
		t.Nodes[i].RefLogprobs = t.Nodes[i].Logprobs
		if t.Nodes[i].Role == "user" {
			t.Nodes[i].Role = "tool"
		}
	}
	t.PolicyStart, t.PolicyEnd = new(int64(4)), new(int64(4))
	return t
}

// group scores another group, and gives what became of it.
func (s *scoring) group(tb testing.TB) *schemas.SampleGroup {
	s.out = pipeline.Out{}
	for _, t := range s.traces {
		t.GroupID = s.next
		if err := s.core.Process(pipeline.Record{Ref: pipeline.Ref{Topic: pipeline.TopicTraces}, Value: t}, &s.out); err != nil {
			tb.Fatal(err)
		}
	}
	s.next++
	sg, ok := s.out.Emitted[0].Value.(*schemas.SampleGroup)
	if !ok || len(sg.Samples) != costSize {
		tb.Fatalf("no group of %d samples", costSize)
	}
	return sg
}

// recycle gives a group back, as the shell does with what is encoded.
func (s *scoring) recycle(sg *schemas.SampleGroup) { s.core.(pipeline.Recycler).Recycle(sg) }

// cut is the scorer's cut: the samples of all branches of a rollout.
func cut(t *schemas.Trace, m *memory) (samples []*schemas.Sample) {
	ro := newRollout(t)
	for b := range ro.branches {
		s, _ := ro.sample(b, advantage.Credit{RL: true, All: 0.5}, nil, m)
		samples = append(samples, s)
	}
	return samples
}

// A longer rollout costs the scorer no allocation more, by no algorithm; and a group costs a bounded number.
func TestCost_Group(t *testing.T) {
	ofFew, ofMany := groupOf(64), groupOf(512)
	for _, w := range ways() {
		few, many := newScoring(t, w, ofFew), newScoring(t, w, ofMany)
		short, long := testing.AllocsPerRun(5, func() { few.recycle(few.group(t)) }), testing.AllocsPerRun(5, func() { many.recycle(many.group(t)) })
		if short != long {
			t.Errorf("%s: %v allocations for 64 tokens a message, %v for 512", w.name, short, long)
		}
		if most := float64(19 * costSize); short > most {
			t.Errorf("%s: %v allocations for a group, at most %v", w.name, short, most)
		}
	}
}

// A sample takes the bytes of its tensors and little else.
func TestCost_Samples(t *testing.T) {
	trace, m := played(0, 256), new(memory)
	if n, most := testing.AllocsPerRun(5, func() { m.used = 0; cut(trace, m) }), 12.0; n > most {
		t.Errorf("%v allocations for the samples of a trace, at most %v", n, most)
	}
}

// holdHeap keeps as much memory as a small stage has in use: with none of it the collector would run every few groups, and
// be what is measured.
func holdHeap(b *testing.B) {
	heap := make([]byte, 64<<20)
	b.Cleanup(func() { runtime.KeepAlive(heap) })
}

// BenchmarkSamples is the cut of a trace of 12 × 256 tokens, into memory that is used again for each group, as in a run.
func BenchmarkSamples(b *testing.B) {
	holdHeap(b)
	trace, m, n := played(0, 256), &memory{back: true}, 0
	b.ReportAllocs()
	for b.Loop() {
		if n++; n%costSize == 0 {
			m.used = 0
		}
		cut(trace, m)
	}
}

// BenchmarkSamplesCopy is its yardstick: the bytes of the samples, copied into memory that is there.
func BenchmarkSamplesCopy(b *testing.B) {
	var from []byte
	schemas.Tensors(&schemas.SampleGroup{Samples: []schemas.Sample{*cut(played(0, 256), new(memory))[0]}}, func(_ string, data *[]byte) { from = append(from, *data...) })
	to := make([]byte, len(from))
	b.SetBytes(int64(len(from)))
	for b.Loop() {
		copy(to, from)
	}
}

// BenchmarkGroup is the core: eight traces of 12 × 256 tokens to a SampleGroup.
func BenchmarkGroup(b *testing.B) {
	holdHeap(b)
	for _, w := range ways() {
		b.Run(w.name, func(b *testing.B) {
			s := newScoring(b, w, groupOf(256))
			b.ReportAllocs()
			for b.Loop() {
				s.recycle(s.group(b))
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "groups/s")
		})
	}
}

// hop is the scorer's work from bytes to bytes: eight traces are decoded, and their SampleGroup is encoded.
type hop struct {
	*scoring
	messages [][]byte
}

func newHop(tb testing.TB, tokens int) *hop {
	h := &hop{scoring: newScoring(tb, way{"grpo", func(*Settings) {}}, groupOf(tokens))}
	for _, t := range h.traces {
		b, err := schemas.Encode(t)
		if err != nil {
			tb.Fatal(err)
		}
		h.messages = append(h.messages, b)
	}
	return h
}

func (h *hop) group(tb testing.TB) []byte {
	for i, b := range h.messages {
		t, err := schemas.DecodeAs[*schemas.Trace](b)
		if err != nil {
			tb.Fatal(err)
		}
		h.traces[i] = t
	}
	sg := h.scoring.group(tb)
	b, err := schemas.Encode(sg)
	if err != nil {
		tb.Fatal(err)
	}
	h.recycle(sg)
	return b
}

// A group takes new memory for its message, and for what is not tokens: that does not grow with the rollouts.
func TestCost_GroupBytes(t *testing.T) {
	const runs = 10
	for _, tokens := range []int{256, 4096} {
		h := newHop(t, tokens)
		message := uint64(len(h.group(t)))
		if n, most := testing.AllocsPerRun(runs, func() { h.group(t) }), 33.0*costSize; n > most {
			t.Errorf("%d tokens a message: %v allocations for a group, at most %v", tokens, n, most)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			h.group(t)
		}
		runtime.ReadMemStats(&after)
		const page = 8 << 10 // large memory comes in pages
		if own, most := (after.TotalAlloc-before.TotalAlloc)/runs, message+page+10<<10*costSize; own > most {
			t.Errorf("%d tokens a message: a group takes %d bytes of memory, of which its message is %d, at most %d", tokens, own, message, most)
		}
	}
}

// BenchmarkGroupBytes is a group of eight rollouts of twelve messages, from bytes to bytes. What it takes of the processor
// tells more than its time: the memory is cleared, and collected, beside it.
func BenchmarkGroupBytes(b *testing.B) {
	holdHeap(b)
	for _, tokens := range []int{256, 5460} {
		b.Run(fmt.Sprintf("12x%d", tokens), func(b *testing.B) {
			h := newHop(b, tokens)
			h.group(b)
			b.ReportAllocs()
			start := cpu(b)
			for b.Loop() {
				h.group(b)
			}
			b.ReportMetric(float64((cpu(b)-start).Microseconds())/float64(b.N), "cpu-µs/group")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "groups/s")
		})
	}
}

// cpu is what this process has taken of the processors.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
