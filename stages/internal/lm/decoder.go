package lm

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// Decoder generates: it keeps the keys and values of up to maxSlots sequences and extends any of them by any number of
// tokens in one step. It is used by one goroutine, and uses all CPUs itself.
type Decoder struct {
	model  *Model
	cache  *cache
	len    []int  // tokens in each slot
	taken  []bool // slots handed out by Acquire
	inStep []bool // scratch of Step
	parts  []part
	passes []*pass // one for each CPU
	logits []float32
}

// part is a range of a step's chunks.
type part struct{ from, to int }

// Chunk is a run of tokens that continues the sequence in a slot.
type Chunk struct {
	Slot   int
	Tokens []int32
}

// NewDecoder makes a decoder with maxSlots slots of maxLen tokens each.
func NewDecoder(m *Model, maxSlots, maxLen int) (*Decoder, error) {
	if maxSlots < 1 || maxLen < 1 || maxLen > m.cfg.MaxPositionEmbeddings {
		return nil, fmt.Errorf("decoder with %d slots of %d tokens: at least 1 slot, and 1 to %d tokens", maxSlots, maxLen, m.cfg.MaxPositionEmbeddings)
	}
	w := m.cfg.KVDim()
	c := &cache{layers: m.cfg.NumHiddenLayers, maxLen: maxLen, width: w, data: make([]float32, maxSlots*m.cfg.NumHiddenLayers*maxLen*2*w)}
	return &Decoder{model: m, cache: c, len: make([]int, maxSlots), taken: make([]bool, maxSlots), inStep: make([]bool, maxSlots)}, nil
}

// Acquire hands out an empty slot, the lowest that is free.
func (d *Decoder) Acquire() (slot int, ok bool) {
	for i, t := range d.taken {
		if !t {
			d.taken[i], d.len[i] = true, 0
			return i, true
		}
	}
	return 0, false
}

// Free empties a slot and gives it back.
func (d *Decoder) Free(slot int) { d.taken[slot], d.len[slot] = false, 0 }

// Truncate forgets all but the first n tokens of a slot.
func (d *Decoder) Truncate(slot, n int) { d.len[slot] = min(d.len[slot], n) }

// Len is the number of tokens in a slot.
func (d *Decoder) Len(slot int) int { return d.len[slot] }

// MaxLen is the number of tokens a slot can hold.
func (d *Decoder) MaxLen() int { return d.cache.maxLen }

// Model is the model whose weights the next step uses.
func (d *Decoder) Model() *Model { return d.model }

// SetModel changes the weights and keeps the slots: their keys and values stay those of the old weights, new tokens get
// the new ones'. The model must have the same shape.
func (d *Decoder) SetModel(m *Model) error {
	if !m.cfg.sameShape(d.model.cfg) {
		return errors.New("swap weights: the new model has another shape")
	}
	d.model = m
	return nil
}

// Step extends the slots and returns the logits after the last token of each chunk, [len(chunks) × vocab], which are
// valid until the next step. On an error (a slot named twice or not acquired, no tokens or more than fit, a token
// outside the vocabulary) nothing has changed.
func (d *Decoder) Step(chunks []Chunk) ([]float32, error) {
	rows, err := d.check(chunks)
	if err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	d.logits = grow(d.logits, len(chunks)*d.model.cfg.VocabSize)
	d.cut(chunks, rows)
	d.runParts(chunks)
	for _, c := range chunks {
		d.len[c.Slot] += len(c.Tokens)
	}
	return d.logits, nil
}

// check counts the tokens of valid chunks.
func (d *Decoder) check(chunks []Chunk) (rows int, err error) {
	clear(d.inStep)
	for _, c := range chunks {
		switch {
		case c.Slot < 0 || c.Slot >= len(d.taken) || !d.taken[c.Slot]:
			return 0, fmt.Errorf("slot %d is not acquired", c.Slot)
		case d.inStep[c.Slot]:
			return 0, fmt.Errorf("slot %d is named twice", c.Slot)
		case len(c.Tokens) == 0:
			return 0, fmt.Errorf("no tokens for slot %d", c.Slot)
		case d.len[c.Slot]+len(c.Tokens) > d.cache.maxLen:
			return 0, fmt.Errorf("slot %d holds %d tokens: %d more do not fit into %d", c.Slot, d.len[c.Slot], len(c.Tokens), d.cache.maxLen)
		}
		for _, t := range c.Tokens {
			if t < 0 || int(t) >= d.model.cfg.VocabSize {
				return 0, fmt.Errorf("token %d is not in the vocabulary of %d", t, d.model.cfg.VocabSize)
			}
		}
		d.inStep[c.Slot] = true
		rows += len(c.Tokens)
	}
	return rows, nil
}

// cut divides chunks into parts for a pass each.
func (d *Decoder) cut(chunks []Chunk, rows int) {
	const fewest, most = 8, 64 // rows of a pass: the cost of starting one, and the size of the CPU's cache
	perPass := min(max((rows+runtime.GOMAXPROCS(0)-1)/runtime.GOMAXPROCS(0), fewest), most)
	d.parts = d.parts[:0]
	size := 0
	for i, c := range chunks {
		if i == 0 || size+len(c.Tokens) > perPass {
			d.parts = append(d.parts, part{from: i})
			size = 0
		}
		d.parts[len(d.parts)-1].to = i + 1
		size += len(c.Tokens)
	}
}

// runParts runs the parts, on as many CPUs as there are parts for.
func (d *Decoder) runParts(chunks []Chunk) {
	cpus := min(runtime.GOMAXPROCS(0), len(d.parts))
	for len(d.passes) < cpus {
		d.passes = append(d.passes, &pass{cache: d.cache, acts: make([]activations, 1)})
	}
	if cpus < 2 { // nothing to start, and nothing to allocate
		for _, of := range d.parts {
			d.run(d.passes[0], chunks, of)
		}
		return
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for _, p := range d.passes[:cpus] {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(d.parts); i = int(next.Add(1)) - 1 {
				d.run(p, chunks, d.parts[i])
			}
		})
	}
	wg.Wait()
}

// run brings the chunks of a part through the layers.
func (d *Decoder) run(p *pass, chunks []Chunk, of part) {
	p.m = d.model
	p.reset()
	for _, c := range chunks[of.from:of.to] {
		p.add(c, d.len[c.Slot])
	}
	v := d.model.cfg.VocabSize
	p.logits = d.logits[of.from*v : of.to*v]
	p.forward()
}

// add appends the rows of a chunk, of which the last is wanted.
func (p *pass) add(c Chunk, past int) {
	s := span{from: len(p.tokens), wantFrom: len(p.want), slot: c.Slot}
	for i := range c.Tokens {
		p.pos = append(p.pos, int32(past+i))
	}
	p.tokens = append(p.tokens, c.Tokens...)
	s.to = len(p.tokens)
	p.want = append(p.want, int32(s.to-1))
	s.wantTo = len(p.want)
	p.spans = append(p.spans, s)
}

// cache holds keys, transposed, and values of every slot and layer.
type cache struct {
	layers, maxLen, width int
	data                  []float32
}

// append stores rows of keys and values, [rows × 2·width], from position past on and returns all of the sequence's.
func (c *cache) append(layer, slot, past int, kv []float32, rows int) keyValues {
	size := c.maxLen * c.width
	at := (slot*c.layers + layer) * 2 * size
	k, v := c.data[at:at+size], c.data[at+size:at+2*size]
	transposeStrided(k[past:], c.maxLen, kv, 2*c.width, rows, c.width)
	for r := range rows {
		copy(v[(past+r)*c.width:], kv[(2*r+1)*c.width:(2*r+2)*c.width])
	}
	return keyValues{kT: k, ldk: c.maxLen, v: v, ldv: c.width}
}
