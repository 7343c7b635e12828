package pipeline

import (
	"reflect"
	"testing"

	"github.com/prl-project/prl/pipeline/tracing"
	"github.com/prl-project/prl/schemas"
)

// reuser emits each trace again, with its tensors in memory that it uses for all of them.
type reuser struct {
	through
	memory [1 << 10]byte
	back   int
}

func (c *reuser) Process(r Record, out *Out) error {
	again := *r.Value.(*schemas.Trace)
	again.Nodes = []schemas.Node{again.Nodes[0]}
	again.Nodes[0].TokenIDs = append(c.memory[:0:len(c.memory)], again.Nodes[0].TokenIDs...)
	out.Emit(TopicTraces, &again)
	return c.through.Process(r, out)
}

// Recycle implements Recycler: what is read of the memory from here on is wrong.
func (c *reuser) Recycle(schemas.Record) {
	c.back++
	for i := range c.memory {
		c.memory[i] = 0xFF
	}
}

// A core gets back what it emitted as soon as that is encoded, and before the next record; where spans of it are made after the
// commit, never.
func TestRecycler(t *testing.T) {
	for name, tracer := range map[string]*tracing.Tracer{"alone": nil, "traced": {}} {
		rt := &Runtime{Run: DefaultRunConfig(), Tracing: tracer}
		p := &Processor{rt: rt, cfg: ProcessorConfig{Stage: "scorer", Inputs: []string{TopicTraces}}}
		core := &reuser{}
		u := &unit{core: core, inputs: []*input{{topic: TopicTraces, set: newUnfinished(0, nil)}}}
		var sent []*schemas.Trace
		for i := range 3 {
			v := &schemas.Trace{Env: "toy", GroupID: int64(i), GroupSize: 2, Nodes: []schemas.Node{{
				Parent: -1, Role: "user", TokenIDs: schemas.PackInt32s([]int32{int32(i), 7}), Mask: make([]byte, 2), Logprobs: make([]byte, 8)}}}
			r, err := (&Runtime{Run: rt.Run}).Encode(t.Context(), Emission{TopicTraces, AutoPartition, v})
			if err != nil {
				t.Fatal(err)
			}
			r.Partition, r.Offset = 0, int64(i)
			if err := u.feed(t.Context(), p, r); err != nil {
				t.Fatal(err)
			}
			sent = append(sent, v)
		}
		if tracer != nil {
			if core.back > 0 || len(u.outputs) > 0 {
				t.Errorf("%s: the core got %d emissions back", name, core.back)
			}
			continue
		}
		if core.back != len(sent) {
			t.Errorf("%s: the core got %d of %d emissions back", name, core.back, len(sent))
		}
		if err := u.encode(t.Context(), p); err != nil || len(u.outputs) != len(sent) {
			t.Fatalf("%s: %d of %d emissions are encoded (%v)", name, len(u.outputs), len(sent), err)
		}
		for i, r := range u.outputs {
			if got, err := schemas.DecodeAs[*schemas.Trace](r.Value); err != nil || !reflect.DeepEqual(got, sent[i]) {
				t.Errorf("%s: emission %d was written as %+v (%v)", name, i, got, err)
			}
		}
	}
}
