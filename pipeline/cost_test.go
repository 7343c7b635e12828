package pipeline

import (
	"runtime"
	"testing"

	"github.com/prl-project/prl/schemas"
)

// through is a core that finishes every record at once and emits it again.
type through struct{}

func (through) Process(r Record, out *Out) error {
	out.Finish(r.Ref)
	return nil
}

func (through) State() ([]byte, error) { return nil, nil }

// TestCostOfARecord counts what the shell allocates for a record, from its bytes to the core and from an emission to its bytes,
// beside what its codec does: a number that does not grow with the record.
func TestCostOfARecord(t *testing.T) {
	rt := &Runtime{Run: DefaultRunConfig()}
	p := &Processor{rt: rt, cfg: ProcessorConfig{Stage: "scorer", Inputs: []string{TopicTraces}}}
	for name, tokens := range map[string]int{"short": 1, "long": 1 << 16} {
		trace := &schemas.Trace{Env: "toy", GroupSize: 2, Nodes: []schemas.Node{{
			Parent: -1, Role: "user", TokenIDs: make([]byte, 4*tokens), Mask: make([]byte, tokens), Logprobs: make([]byte, 4*tokens),
		}}}
		e := Emission{TopicTraces, AutoPartition, trace}
		r, err := rt.Encode(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		allocs := func(f func() error) float64 {
			return testing.AllocsPerRun(100, func() {
				if err := f(); err != nil {
					t.Fatal(err)
				}
			})
		}
		u := &unit{core: through{}, inputs: []*input{{topic: TopicTraces, set: newUnfinished(0, nil)}}}
		fed := allocs(func() error {
			defer func() { r.Offset++; u.out = Out{} }()
			return u.feed(t.Context(), p, r)
		})
		decoded := allocs(func() error { _, err := schemas.Decode(r.Value); return err })
		if own := fed - decoded; own > 4 {
			t.Errorf("%s: the shell makes %v allocations to feed a record, at most 4", name, own)
		}
		written := allocs(func() error { _, err := rt.Encode(t.Context(), e); return err })
		encoded := allocs(func() error { _, err := schemas.Encode(trace); return err })
		if own := written - encoded; own > 6 {
			t.Errorf("%s: the shell makes %v allocations to write an emission, at most 6", name, own)
		}
	}
}

// TestCostOfAState holds the making of a state record, of which an environment server has ten a second for every partition, to
// the memory that it needs: a new compressor for each would take a megabyte.
func TestCostOfAState(t *testing.T) {
	u := newUnfinished(0, nil)
	for o := range int64(1000) {
		u.feed(o)
	}
	const runs = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		if _, _, err := u.encode(); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / runs; each > 400<<10 {
		t.Errorf("a state record takes %d bytes of memory", each)
	}
}
