package packer

import (
	"fmt"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// BenchmarkCore reports the rollouts and tokens per second of whole steps, from the SampleGroups to the micro-batches: 64
// groups of 8 rollouts of log-normal lengths, in rl alone and in every component.
func BenchmarkCore(b *testing.B) {
	const groups, size = 64, 8
	for _, imitates := range []bool{false, true} {
		b.Run(fmt.Sprintf("imitates=%v", imitates), func(b *testing.B) {
			run := config()
			run.BatchSize, run.SeqLen, run.Ranks, run.MaxSteps = groups*size, 32768, 8, 1<<40
			core, err := New(run, DefaultConfig())(0, nil)
			if err != nil {
				b.Fatal(err)
			}
			lengths, tokens := logNormal(1, groups*size, run.SeqLen), 0
			step := make([]*schemas.SampleGroup, groups)
			for i := range step {
				step[i] = group(0, nil, lengths[i*size:(i+1)*size]...)
				for k := range step[i].Samples {
					s := &step[i].Samples[k]
					tokens += s.TokenIDs.Len()
					if imitates {
						s.CeWeights, s.RefKlWeights, s.RefLogprobs = s.Advantages, s.Advantages, s.Logprobs
					}
				}
			}
			next := int64(0)
			b.ReportAllocs()
			for b.Loop() {
				var out pipeline.Out
				for _, g := range step {
					g.GroupID = next
					ref := pipeline.Ref{Topic: pipeline.TopicSamples, Offset: next}
					if err := core.Process(pipeline.Record{Ref: ref, Value: g}, &out); err != nil {
						b.Fatal(err)
					}
					next++
				}
				if len(out.Emitted) == 0 {
					b.Fatal("no step was cut")
				}
			}
			b.ReportMetric(float64(b.N*groups*size)/b.Elapsed().Seconds(), "rollouts/s")
			b.ReportMetric(float64(b.N*tokens)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}
