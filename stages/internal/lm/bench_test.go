package lm

import (
	"fmt"
	"testing"
)

// demoConfig is the size of the demo's model.
func demoConfig() Config { return NewConfig(48, 64, 2, 4, 2, 192, 256) }

// BenchmarkDecode reports the tokens per second of one-token steps at about 12 tokens of context in every slot.
func BenchmarkDecode(b *testing.B) {
	for _, slots := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprintf("slots=%d", slots), func(b *testing.B) {
			m, err := New(demoConfig(), 1)
			if err != nil {
				b.Fatal(err)
			}
			d, err := NewDecoder(m, slots, 24)
			if err != nil {
				b.Fatal(err)
			}
			chunks := make([]Chunk, slots)
			for i := range chunks {
				slot, _ := d.Acquire()
				chunks[i] = Chunk{slot, []int32{int32(i % 48)}}
			}
			b.ReportAllocs()
			for b.Loop() {
				if d.Len(0) == 24 {
					for s := range slots {
						d.Truncate(s, 0)
					}
				}
				if _, err := d.Step(chunks); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*slots)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

// BenchmarkTrain reports the tokens per second of a step on 256 sequences of 24 tokens, a quarter of them masked in.
func BenchmarkTrain(b *testing.B) {
	m, err := New(demoConfig(), 1)
	if err != nil {
		b.Fatal(err)
	}
	lens := make([]int32, 256)
	for i := range lens {
		lens[i] = 24
	}
	batch := randomBatch(NewRNG(2), 48, 0.25, lens...)
	l, opt := NewLearner(m), NewAdamW()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Accumulate(batch, DefaultRL(batch.masked())); err != nil {
			b.Fatal(err)
		}
		l.Step(opt, 1e-4)
	}
	b.ReportMetric(float64(b.N*len(batch.Tokens))/b.Elapsed().Seconds(), "tokens/s")
}
