package packer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// Ordered mode (run.max_async_level = 0). The groups of a step come in waves, each a range of ids next to the one before;
// the range stands in each of its groups. All groups of a step are held until every id of the wave has come. Then
// either too few rollouts are left for a batch, and the next wave is requested, or the whole step is decided in the order
// of the ids: nothing depends on the order in which the partitions of traces delivered them.

// A wave is the one that is being waited for.
type wave struct {
	number int   // from 1
	first  int64 // id
	last   int64 // id; below first until a group of the wave has come
	asked  int   // rollouts that were asked for
	come   int64 // groups of the wave that are held
}

func (c *Core) firstWave() wave {
	return wave{number: 1, first: c.state.Next, last: c.state.Next - 1, asked: c.run.BatchSize}
}

// processOrdered holds a group of the step, or ends it as errored where it does not say that it belongs to the wave.
func (c *Core) processOrdered(h *held, out *pipeline.Out) error {
	g, w := h.group, &c.wave
	known := w.last >= w.first
	if g.Step != c.state.Step+1 || g.Wave != w.number || g.WaveFirst != w.first || known && g.WaveLast != w.last ||
		g.GroupID < g.WaveFirst || g.GroupID > g.WaveLast {
		out.Finish(h.ref)
		return c.lost(g, fmt.Errorf("group %d says it is of step %d, wave %d, ids %d to %d, not of step %d, wave %d from id %d",
			g.GroupID, g.Step, g.Wave, g.WaveFirst, g.WaveLast, c.state.Step+1, w.number, w.first), out)
	}
	w.last = g.WaveLast
	w.come++
	c.hold(h)
	return c.advance(out)
}

// advance goes on when the wave is complete: to the next wave, or to the cut.
func (c *Core) advance(out *pipeline.Out) error {
	for c.complete() {
		if !c.full() && c.wave.number < c.cfg.MaxWaves {
			missing := max(1, c.run.BatchSize-c.rollouts)
			c.wave = wave{number: c.wave.number + 1, first: c.wave.last + 1, last: c.wave.last, asked: missing}
			out.Emit(pipeline.TopicRequests, &schemas.Request{
				Kind: schemas.RequestWave, Step: c.state.Step + 1, Wave: c.wave.number, Rollouts: missing,
			})
			continue
		}
		if c.rollouts == 0 {
			return c.nothingLeft()
		}
		c.state.Next, c.state.Size = c.wave.last+1, c.size()
		c.cut(out)
		c.wave = c.firstWave()
	}
	return nil
}

// complete reports whether every id of the wave is held or, its record being unusable, decided.
//
// The range of a wave of which no record is usable is not known. It is taken to end where as many groups as the emitter
// needs for what was asked for, each of the size of the others, have come.
func (c *Core) complete() bool {
	w := &c.wave
	if w.last < w.first {
		groups := int64((w.asked + c.size() - 1) / c.size())
		if c.state.decided.Between(w.first, w.first+groups-1) < groups {
			return false
		}
		w.last = w.first + groups - 1
		return true
	}
	return w.come+c.state.decided.Between(w.first, w.last) == w.last-w.first+1
}

// size is the rollouts of a group of this step, or of the last one.
func (c *Core) size() int {
	size := 0
	for _, h := range c.held {
		if size == 0 || h.group.Emitted < size {
			size = h.group.Emitted
		}
	}
	if size == 0 {
		size = c.state.Size
	}
	return max(size, 1)
}

func (c *Core) nothingLeft() error {
	groups, failed := map[string]int64{}, ""
	for _, id := range slices.Sorted(maps.Keys(c.held)) {
		h := c.held[id]
		groups[h.by()]++
		for _, r := range h.group.Rollouts {
			failed = cmp.Or(r.Error, failed)
		}
	}
	return pipeline.Fatal("step %d: no sample after %d waves (groups by what ended them: %s)%s: %s and start over (--fresh, or another run.name), or raise packer.max_waves = %d and go on",
		c.state.Step+1, c.wave.number, figures(groups), lastError(failed), remedy, c.cfg.MaxWaves)
}
