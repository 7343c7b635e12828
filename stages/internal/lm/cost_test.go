package lm

import (
	"runtime"
	"testing"
)

// allocations is how often f allocates once it has run times, on some CPUs (testing.AllocsPerRun takes one).
func allocations(cpus, times int, f func()) float64 {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cpus))
	for range times {
		f()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range times {
		f()
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(times)
}

// TestCostDecode: once its scratch has grown a step of the decoder allocates nothing on one CPU, and to start the others a
// number of times that does not depend on the slots; sampling allocates nothing.
func TestCostDecode(t *testing.T) {
	for _, slots := range []int{1, 8, 256} {
		d, chunks := slotsOf(t, slots, 24), next(slots, 1)
		var sampler Sampler
		rng := NewRNG(1)
		step := func() {
			if d.Len(0) == 24 {
				for s := range slots {
					d.Truncate(s, 0)
				}
			}
			logits, err := d.Step(chunks)
			if err != nil {
				t.Fatal(err)
			}
			for i := range slots {
				sampler.Sample(logits[i*48:(i+1)*48], 1, 1, rng)
			}
		}
		for cpus, most := range map[int]float64{1: 0.5, 2: 8} { // the runtime allocates now and then, too
			if got := allocations(cpus, 24, step); got > most {
				t.Errorf("on %d CPUs a step of %d slots allocates %g times, at most %g", cpus, slots, got, most)
			}
		}
	}
}

// TestCostTrain: once its scratch has grown, a step of the learner allocates no more for 256 sequences than for eight.
func TestCostTrain(t *testing.T) {
	took := map[int]float64{}
	for _, sequences := range []int{8, 256} {
		m, err := New(demoConfig(), 1)
		if err != nil {
			t.Fatal(err)
		}
		batch := trained(sequences)
		l, opt, loss := NewLearner(m), NewAdamW(), []Component{DefaultRL(batch.masked())}
		took[sequences] = allocations(1, 3, func() { // on several CPUs, one may see the longest shard late
			if _, err := l.Accumulate(batch, loss...); err != nil {
				t.Fatal(err)
			}
			l.Step(opt, 1e-4)
		})
	}
	if took[8] > 16 || took[256] > took[8]+0.5 {
		t.Errorf("a step of 8 sequences allocates %g times, of 256 sequences %g times", took[8], took[256])
	}
}

// TestCostLastLayer: the rows that nobody wants are left out of the queries and all that follows in the last layer, and of the
// output projection; in the others all are there.
func TestCostLastLayer(t *testing.T) {
	m, err := New(demoConfig(), 1)
	if err != nil {
		t.Fatal(err)
	}
	batch := trained(8)
	p := pass{m: m, acts: make([]activations, 2)}
	p.load(batch, batch.shards()[0])
	p.forward()
	rows, wanted := len(p.tokens), len(p.want)
	if wanted == 0 || wanted > rows/2 {
		t.Fatalf("%d of %d rows are wanted", wanted, rows)
	}
	for name, c := range map[string]struct{ got, want int }{
		"queries of the first layer": {len(p.acts[0].q), rows * m.cfg.qDim()}, "queries of the last layer": {len(p.acts[1].q), wanted * m.cfg.qDim()},
		"feed-forward of the last layer": {len(p.acts[1].gateUp), wanted * 2 * m.cfg.IntermediateSize}, "logits": {len(p.logits), wanted * m.cfg.VocabSize},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d elements, want %d", name, c.got, c.want)
		}
	}
}
