package ui

import (
	"sync"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/ui/index"
)

// tail keeps the newest records whole, up to a number of bytes: those that the sink has not written yet.
type tail struct {
	limit int64

	mu    sync.Mutex
	kept  map[any]kept
	order []any // of arrival; keys may be gone
	bytes int64
}

type kept struct {
	value schemas.Record
	bytes int64
}

type (
	groupAt int64
	batchAt struct {
		step        int64
		rank, index int
	}
)

func (t *tail) trace(id index.ID, v *schemas.Trace) {
	n := int64(1000)
	for i := range v.Nodes {
		x := &v.Nodes[i]
		n += int64(300 + len(x.Content) + len(x.Reasoning) + len(x.TokenIDs) + len(x.Mask) + len(x.Logprobs) + len(x.TokenRewards) + len(x.RefLogprobs))
		for k := range x.ToolCalls {
			n += int64(len(x.ToolCalls[k].Arguments) + 100)
		}
		for k := range x.Images {
			n += int64(len(x.Images[k].Data))
		}
	}
	for i := range v.Errors {
		n += int64(len(v.Errors[i].Traceback) + len(v.Errors[i].Message))
	}
	t.put(id, v, n+int64(len(v.Task)+len(v.Info)))
}

func (t *tail) group(v *schemas.SampleGroup) {
	n := int64(500)
	for i := range v.Samples {
		n += 200 + int64(21*v.Samples[i].TokenIDs.Len())
	}
	t.put(groupAt(v.GroupID), v, n)
}

func (t *tail) batch(v *schemas.MicroBatch) {
	t.put(batchAt{v.Step, v.Rank, v.Index}, v, int64(500+25*v.TokenIDs.Len()+64*len(v.Samples)))
}

func (t *tail) put(key any, v schemas.Record, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kept == nil {
		t.kept = map[any]kept{}
	}
	if old, twice := t.kept[key]; twice {
		t.bytes -= old.bytes
	} else {
		t.order = append(t.order, key)
	}
	t.kept[key] = kept{v, bytes}
	t.bytes += bytes
	for t.bytes > t.limit && len(t.order) > 1 {
		t.bytes -= t.kept[t.order[0]].bytes
		delete(t.kept, t.order[0])
		t.order = t.order[1:]
	}
}

// find gives a record that is kept.
func find[T schemas.Record](t *tail, key any) (v T, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, ok = t.kept[key].value.(T)
	return v, ok
}

// traces gives what is kept of traces, newest first, until more says false.
func (t *tail) traces(more func(index.ID, *schemas.Trace) bool) {
	t.mu.Lock()
	type one struct {
		id index.ID
		v  *schemas.Trace
	}
	var list []one
	for i := len(t.order) - 1; i >= 0; i-- {
		if id, ok := t.order[i].(index.ID); ok {
			if v, ok := t.kept[id].value.(*schemas.Trace); ok {
				list = append(list, one{id, v})
			}
		}
	}
	t.mu.Unlock()
	for _, o := range list {
		if !more(o.id, o.v) {
			return
		}
	}
}

// batches are what is kept of a step, in no order.
func (t *tail) batches(step int64) (list []*schemas.MicroBatch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, k := range t.kept {
		if at, ok := key.(batchAt); ok && at.step == step {
			if v, ok := k.value.(*schemas.MicroBatch); ok {
				list = append(list, v)
			}
		}
	}
	return list
}
