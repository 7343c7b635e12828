package lm

import (
	"slices"
	"testing"
)

// TestDecoderSlots: slots are handed out and taken back, truncated and reused without a trace of what was in them.
func TestDecoderSlots(t *testing.T) {
	m := newModel(t, tinyConfig(13), 3)
	m.refresh()
	d, err := NewDecoder(m, 2, 8)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := d.Acquire()
	b, _ := d.Acquire()
	if _, ok := d.Acquire(); ok || a == b {
		t.Fatalf("two slots give %d, %d and a third", a, b)
	}
	step := func(slot int, tokens ...int32) []float32 {
		t.Helper()
		logits, err := d.Step([]Chunk{{slot, tokens}})
		if err != nil {
			t.Fatal(err)
		}
		return slices.Clone(logits)
	}
	want := step(a, 1, 2, 3)
	step(b, 4, 5, 6, 7)
	d.Truncate(b, 1)
	d.Truncate(a, 2)
	if got := step(a, 3); !sameBits(got, want) {
		t.Error("a truncated slot gives other logits")
	}
	d.Free(b)
	if c, ok := d.Acquire(); !ok || c != b || d.Len(c) != 0 {
		t.Errorf("after Free, Acquire gives %d, %v with %d tokens", c, ok, d.Len(c))
	}
	if got := step(b, 1, 2, 3); !sameBits(got, want) {
		t.Error("a reused slot gives other logits")
	}
}

// TestDecoderRefuses: a step with anything wrong changes nothing.
func TestDecoderRefuses(t *testing.T) {
	m := newModel(t, tinyConfig(13), 3)
	d, err := NewDecoder(m, 3, 4)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := d.Acquire()
	b, _ := d.Acquire()
	for name, chunks := range map[string][]Chunk{
		"free slot":      {{a, []int32{1}}, {2, []int32{1}}},
		"no slot":        {{a, []int32{1}}, {3, []int32{1}}},
		"negative slot":  {{-1, []int32{1}}},
		"slot twice":     {{a, []int32{1}}, {b, []int32{1}}, {a, []int32{1}}},
		"no tokens":      {{a, []int32{1}}, {b, nil}},
		"too many":       {{a, []int32{1, 2, 3, 4, 5}}},
		"token":          {{a, []int32{1}}, {b, []int32{13}}},
		"negative token": {{a, []int32{-1}}},
	} {
		if _, err := d.Step(chunks); err == nil {
			t.Errorf("%s: no error", name)
		}
		if d.Len(a) != 0 || d.Len(b) != 0 {
			t.Fatalf("%s: a refused step extended a slot", name)
		}
	}
	if logits, err := d.Step(nil); err != nil || len(logits) != 0 {
		t.Errorf("an empty step gives %v, %v", logits, err)
	}
}

// TestDecoderSetModel: a swap keeps the slots and changes the logits of what comes after; another shape is refused.
func TestDecoderSetModel(t *testing.T) {
	m, other := newModel(t, tinyConfig(13), 3), newModel(t, tinyConfig(13), 4)
	m.refresh()
	other.refresh()
	d, err := NewDecoder(m, 1, 8)
	if err != nil {
		t.Fatal(err)
	}
	slot, _ := d.Acquire()
	if _, err := d.Step([]Chunk{{slot, []int32{1, 2}}}); err != nil {
		t.Fatal(err)
	}
	if err := d.SetModel(other); err != nil || d.Len(slot) != 2 {
		t.Fatalf("swap: %v, slot of %d tokens", err, d.Len(slot))
	}
	logits, err := d.Step([]Chunk{{slot, []int32{3}}})
	if err != nil {
		t.Fatal(err)
	}
	if alone := decodeAlone(t, other, []int32{1, 2, 3})[2]; sameBits(logits, alone) {
		t.Error("the swap recomputed the cache")
	}
	if old := decodeAlone(t, m, []int32{1, 2, 3})[2]; sameBits(logits, old) {
		t.Error("the swap changed nothing")
	}
	for name, cfg := range map[string]Config{"vocabulary": tinyConfig(14), "norms": tinyConfig(13).Qwen3()} {
		cfg.RopeTheta, cfg.RMSNormEps = m.cfg.RopeTheta, m.cfg.RMSNormEps
		if err := d.SetModel(newModel(t, cfg, 3)); err == nil {
			t.Errorf("a model of another shape is accepted: %s", name)
		}
	}
}
