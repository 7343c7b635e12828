package packer

import (
	"fmt"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// A stepOf is the groups of one whole step, and what they come to.
type stepOf struct {
	run      pipeline.RunConfig
	groups   []*schemas.SampleGroup
	rollouts int
	tokens   int
}

// benchmarkedStep is 64 groups of 8 rollouts of log-normal lengths, in rl alone or in every component. The lengths have a
// mean of times 512 tokens, and micro-batches room for times 4,096.
func benchmarkedStep(imitates bool, times int) stepOf {
	const groups, size = 64, 8
	s := stepOf{run: config(), rollouts: groups * size}
	s.run.BatchSize, s.run.SeqLen, s.run.Ranks, s.run.MaxSteps = s.rollouts, 4096*times, 8, 1<<40
	lengths := logNormal(1, s.rollouts, 32768)
	for i := range lengths {
		lengths[i] = times * ((lengths[i] + 7) / 8)
		s.tokens += lengths[i]
	}
	for i := range groups {
		g := group(0, nil, lengths[i*size:(i+1)*size]...)
		for k := range g.Samples {
			if sample := &g.Samples[k]; imitates {
				sample.CeWeights, sample.RefKlWeights, sample.RefLogprobs = sample.Advantages, sample.Advantages, sample.Logprobs
			}
		}
		s.groups = append(s.groups, g)
	}
	return s
}

// feed gives the groups to a core as those from next on, and returns what it emits.
func (s stepOf) feed(tb testing.TB, core pipeline.Core, next int64) pipeline.Out {
	var out pipeline.Out
	for i, g := range s.groups {
		g.GroupID = next + int64(i)
		ref := pipeline.Ref{Topic: pipeline.TopicSamples, Offset: g.GroupID}
		if err := core.Process(pipeline.Record{Ref: ref, Value: g}, &out); err != nil {
			tb.Fatal(err)
		}
	}
	if len(out.Emitted) == 0 {
		tb.Fatal("no step was cut")
	}
	return out
}

func (s stepOf) core(tb testing.TB, cfg Config) pipeline.Core {
	core, err := New(s.run, cfg)(0, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return core
}

// forEachStep runs a benchmark of a whole step, and reports its CPU time and rollouts and tokens per second.
func forEachStep(b *testing.B, run func(b *testing.B, s stepOf)) {
	for _, imitates := range []bool{false, true} {
		b.Run(fmt.Sprintf("imitates=%v", imitates), func(b *testing.B) {
			s := benchmarkedStep(imitates, 8)
			b.ReportAllocs()
			began := cpuTime(b)
			run(b, s)
			b.ReportMetric((cpuTime(b)-began).Seconds()*1e3/float64(b.N), "CPU-ms/op")
			b.ReportMetric(float64(b.N*s.rollouts)/b.Elapsed().Seconds(), "rollouts/s")
			b.ReportMetric(float64(b.N*s.tokens)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

// BenchmarkCore packs whole steps, from the SampleGroups to the micro-batches.
func BenchmarkCore(b *testing.B) {
	forEachStep(b, func(b *testing.B, s stepOf) {
		core := s.core(b, DefaultConfig())
		for next := int64(0); b.Loop(); next += int64(len(s.groups)) {
			s.feed(b, core, next)
		}
	})
}

// BenchmarkCoreCopy copies the tensors of the same steps into memory that is there: less cannot be done.
func BenchmarkCoreCopy(b *testing.B) {
	forEachStep(b, func(b *testing.B, s stepOf) {
		var tensors [][]byte
		size := 0
		for _, g := range s.groups {
			schemas.Tensors(g, func(_ string, t *[]byte) {
				tensors = append(tensors, *t)
				size += len(*t)
			})
		}
		to := make([]byte, size)
		for b.Loop() {
			at := 0
			for _, t := range tensors {
				at += copy(to[at:], t)
			}
		}
		b.SetBytes(int64(size))
	})
}
