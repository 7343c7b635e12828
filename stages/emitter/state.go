package emitter

import (
	"encoding/binary"
	"fmt"

	"github.com/prl-project/prl/stages/internal/schedule"
)

// stateFormat is the first byte of State. Format 1, which is still read, lacks what is marked below.
const stateFormat = 2

// maxWaves bounds the waves a state may speak of.
const maxWaves = 1 << 16

// State is, in varints and texts: format, generator, clock, next id, packed step, waves, the mix by its name (from
// format 2), the environments with their cursors and their curricula by name (from format 2), and the open groups by id,
// each as a difference to the one before, with the version at its emission (from format 2).
func (c *Core) State() ([]byte, error) {
	b, err := c.pcg.AppendBinary([]byte{stateFormat})
	if err != nil {
		return nil, err
	}
	uint := func(values ...int64) {
		for _, v := range values {
			b = binary.AppendUvarint(b, uint64(v))
		}
	}
	learnt := func(kind string, state []byte) {
		if len(state) == 0 {
			kind = ""
		}
		b = appendText(appendText(b, kind), state)
	}
	uint(c.clock.Ran, c.clock.Last, c.nextID, c.packed, c.waves.step, int64(c.waves.missing), int64(len(c.waves.ranges)))
	for _, r := range c.waves.ranges {
		uint(r[0], r[1])
	}
	learnt(c.cfg.Mix, c.mix.State())
	uint(int64(len(c.envs)))
	index := map[*environment]int64{}
	for i, env := range c.envs {
		index[env] = int64(i)
		b = appendText(b, env.Name)
		uint(env.cursor.epoch, env.cursor.pos)
		learnt(env.cfg.Curriculum.Kind, env.curriculum.appendState(nil))
	}
	uint(int64(len(c.open)))
	last := &group{}
	for _, g := range c.open {
		uint(g.id-last.id, index[g.env], int64(g.size)<<2|flag(g.whole)<<1|flag(g.ended), c.clock.Ran-g.born, g.taskIndex, int64(len(g.attempts)))
		for _, a := range g.attempts {
			uint(int64(a.index+1), int64(a.number))
		}
		uint(g.version - last.version)
		last = g
	}
	return b, nil
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// restore reads what State wrote. An environment that has been taken out of the configuration loses its cursor; while
// it has open groups it must stay. What another kind of mix or curriculum has learnt is lost, too.
func (c *Core) restore(state []byte) error {
	const head = 1 + 20 // format and generator
	if len(state) < head || state[0] < 1 || state[0] > stateFormat {
		return fmt.Errorf("%d bytes of another format", len(state))
	}
	format := state[0]
	if err := c.pcg.UnmarshalBinary(state[1:head]); err != nil {
		return err
	}
	r := reader{rest: state[head:]}
	c.clock = schedule.Clock{Ran: r.uint(), Last: r.uint()}
	c.nextID, c.packed = r.uint(), r.uint()
	c.waves.step, c.waves.missing = r.uint(), int(r.uint())
	for range r.count(maxWaves) {
		c.waves.ranges = append(c.waves.ranges, [2]int64{r.uint(), r.uint()})
	}
	if format >= 2 {
		if kind, learnt := r.text(), r.text(); r.err == nil && kind == c.cfg.Mix {
			r.err = c.mix.Restore([]byte(learnt))
		}
	}
	var names []string
	for range r.count(len(r.rest)) {
		name := r.text()
		names = append(names, name)
		epoch, pos := r.uint(), r.uint()
		kind, learnt := "", ""
		if format >= 2 {
			kind, learnt = r.text(), r.text()
		}
		if i := c.tables.Index(name); i >= 0 && r.err == nil {
			env := c.envs[i]
			env.cursor.epoch, env.cursor.pos = epoch, pos
			if kind == env.cfg.Curriculum.Kind {
				r.err = restoreCurriculum(env.curriculum, learnt)
			}
		}
	}
	last := &group{}
	for range r.count(len(r.rest)) {
		g := &group{}
		g.id = last.id + r.uint()
		env := r.count(len(names) - 1)
		size := r.uint()
		g.size, g.whole, g.ended = int(size>>2), size&2 != 0, size&1 != 0
		g.born, g.taskIndex = c.clock.Ran-r.uint(), r.uint()
		for range r.count(len(r.rest)) {
			g.attempts = append(g.attempts, attempt{int(r.uint()) - 1, int(r.uint())})
		}
		if format >= 2 {
			g.version = last.version + r.uint()
			c.version = max(c.version, g.version) // it was published
		}
		if r.err != nil {
			return r.err
		}
		last = g
		i := c.tables.Index(names[env])
		if i < 0 && c.another {
			continue
		}
		if i < 0 {
			return fmt.Errorf("group %d of environment %q is open, which is not configured: put [envs.%s] back (ratio = 0 keeps it from being picked)", g.id, names[env], names[env])
		}
		g.env = c.envs[i]
		c.add(g)
	}
	if r.err == nil && len(r.rest) > 0 {
		r.err = fmt.Errorf("%d bytes too many", len(r.rest))
	}
	return r.err
}

// restoreCurriculum gives a curriculum all of its state.
func restoreCurriculum(c curriculum, state string) error {
	r := reader{rest: []byte(state)}
	c.restore(&r)
	if r.err == nil && len(r.rest) > 0 {
		r.err = fmt.Errorf("%d bytes too many for a curriculum", len(r.rest))
	}
	return r.err
}
