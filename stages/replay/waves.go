package replay

import (
	"context"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// waves plays the emitter's part in ordered mode: it divides the groups, in the order of their ids, into the waves that
// the packer asks for, each of as few groups as cover what is asked. With the recorded configuration these are the recorded
// ones. Outside ordered mode it is nil, and does nothing.
type waves struct {
	step    int64
	number  int
	first   int64 // id of the wave
	next    int64 // id that comes next
	missing int   // rollouts
	pending []*schemas.SampleGroup
	// absent are ids without a group, for which one that failed stands in: a wave has every id of its range.
	absent map[int64]bool
}

func (r *replayer) firstWave(id int64) *waves {
	if !r.cfg.Run.Ordered() {
		return nil
	}
	return &waves{step: r.step, number: 1, first: id, next: id, missing: r.cfg.Run.BatchSize, absent: map[int64]bool{}}
}

// place gives the packer a wave when its last group has come; g is nil for an id without a group.
func (w *waves) place(ctx context.Context, r *replayer, id int64, g *schemas.SampleGroup) error {
	for ; w.next < id; w.next++ {
		w.standIn(w.next)
	}
	w.next = id + 1
	if g == nil {
		w.standIn(id)
		return nil
	}
	w.pending = append(w.pending, g)
	if w.missing -= g.Emitted; w.missing > 0 {
		return nil
	}
	wave, step, number, first := w.pending, w.step, w.number, w.first
	w.pending, w.first = nil, w.next
	for _, g := range wave {
		g.Step, g.Wave, g.WaveFirst, g.WaveLast = step, number, first, id
		if err := r.feed(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

func (w *waves) standIn(id int64) {
	w.absent[id] = true
	w.pending = append(w.pending, standIn(id))
}

// standIn is what the packer gets for a group that cannot be read.
func standIn(id int64) *schemas.SampleGroup {
	return &schemas.SampleGroup{Env: "unknown", GroupID: id, Reason: schemas.FateErrored}
}

func (w *waves) standsIn(id int64) bool { return w != nil && w.absent[id] }

// open is the number of groups that wait for the rest of their wave.
func (w *waves) open() (n int64) {
	if w == nil {
		return 0
	}
	for _, g := range w.pending {
		if !w.absent[g.GroupID] {
			n++
		}
	}
	return n
}

// follow hears what the packer made of a wave: a step, or a request for the next wave.
func (w *waves) follow(emitted []pipeline.Emission, batchSize int) {
	if w == nil {
		return
	}
	for _, e := range emitted {
		switch v := e.Value.(type) {
		case *schemas.MicroBatch:
			w.step, w.number, w.missing = v.Step+1, 1, batchSize
		case *schemas.Request:
			if v.Kind == schemas.RequestWave {
				w.number, w.missing = v.Wave, v.Rollouts
			}
		}
	}
}
