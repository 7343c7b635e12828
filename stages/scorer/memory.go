package scorer

import (
	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// memory is where the tensors of a group's samples are. New memory for each group would cost more than all else that the
// scorer does with it, so a core uses that of the group before, once it is encoded (pipeline.Recycler).
type memory struct {
	block []byte
	used  int
	// lent is the group whose tensors are here; nil for none.
	lent *schemas.SampleGroup
	// back says that memory has come back: room for more than is asked for is worth while.
	back bool
}

// maxKept bounds the memory that a core, which has one partition, uses again.
const maxKept = 32 << 20

// lend is memory for the tensors of a group: m itself, or new memory while the tensors of another group are here.
func (m *memory) lend(sg *schemas.SampleGroup) *memory {
	if m.lent != nil {
		m = new(memory)
	}
	m.lent = sg
	return m
}

// take is n bytes, which hold anything.
func (m *memory) take(n int) []byte {
	if n > len(m.block)-m.used {
		size := n
		if m.back {
			size = max(n, 2*len(m.block))
		}
		m.block, m.used = make([]byte, size), 0
	}
	m.used += n
	return m.block[m.used-n : m.used : m.used]
}

var _ pipeline.Recycler = (*Core)(nil)

// Recycle implements pipeline.Recycler. Of several groups that one trace has decided, the last one's memory is used again.
func (c *Core) Recycle(v schemas.Record) {
	sg := c.memory.lent
	if sg == nil || v != schemas.Record(sg) {
		return
	}
	sg.Samples = nil
	c.memory.used, c.memory.lent, c.memory.back = 0, nil, true
	if len(c.memory.block) > maxKept {
		c.memory = new(memory)
	}
}
