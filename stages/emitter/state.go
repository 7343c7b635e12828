package emitter

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/prl-project/prl/stages/internal/schedule"
)

// stateFormat is the first byte of State.
const stateFormat = 1

// maxWaves bounds the waves a state may speak of.
const maxWaves = 1 << 16

// State is, in varints: format, generator, clock, next id, packed step, waves, the environments with their cursors, and
// the open groups by id, each as a difference to the one before.
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
	uint(c.clock.Ran, c.clock.Last, c.nextID, c.packed, c.waves.step, int64(c.waves.missing), int64(len(c.waves.ranges)))
	for _, r := range c.waves.ranges {
		uint(r[0], r[1])
	}
	uint(int64(len(c.envs)))
	index := map[*environment]int64{}
	for i, env := range c.envs {
		index[env] = int64(i)
		uint(int64(len(env.Name)))
		b = append(b, env.Name...)
		uint(env.cursor.epoch, env.cursor.pos)
	}
	uint(int64(len(c.open)))
	last := int64(0)
	for _, g := range c.open {
		uint(g.id-last, index[g.env], int64(g.size)<<2|flag(g.whole)<<1|flag(g.ended), c.clock.Ran-g.born, g.taskIndex, int64(len(g.attempts)))
		for _, a := range g.attempts {
			uint(int64(a.index+1), int64(a.number))
		}
		last = g.id
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
// it has open groups it must stay.
func (c *Core) restore(state []byte) error {
	const head = 1 + 20 // format and generator
	if len(state) < head || state[0] != stateFormat {
		return fmt.Errorf("%d bytes of another format", len(state))
	}
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
	var names []string
	for range r.count(len(r.rest)) {
		name := string(r.bytes(r.count(len(r.rest))))
		names = append(names, name)
		epoch, pos := r.uint(), r.uint()
		if i := c.tables.Index(name); i >= 0 {
			c.envs[i].cursor.epoch, c.envs[i].cursor.pos = epoch, pos
		}
	}
	id := int64(0)
	for range r.count(len(r.rest)) {
		g := &group{}
		id += r.uint()
		env := r.count(len(names) - 1)
		size := r.uint()
		g.id, g.size, g.whole, g.ended = id, int(size>>2), size&2 != 0, size&1 != 0
		g.born, g.taskIndex = c.clock.Ran-r.uint(), r.uint()
		for range r.count(len(r.rest)) {
			g.attempts = append(g.attempts, attempt{int(r.uint()) - 1, int(r.uint())})
		}
		if r.err != nil {
			return r.err
		}
		i := c.tables.Index(names[env])
		if i < 0 {
			return fmt.Errorf("group %d of environment %q is open, which is not configured: put [envs.%s] back (ratio = 0 keeps it from being picked)", id, names[env], names[env])
		}
		g.env = c.envs[i]
		c.add(g)
	}
	if r.err == nil && len(r.rest) > 0 {
		r.err = fmt.Errorf("%d bytes too many", len(r.rest))
	}
	return r.err
}

// reader takes varints off a state; the first error stays, and all is 0 from then on.
type reader struct {
	rest []byte
	err  error
}

var errShort = errors.New("cut short or out of range")

func (r *reader) uint() int64 {
	v, n := binary.Uvarint(r.rest)
	if r.err != nil || n <= 0 || v > 1<<62 {
		r.err, r.rest = errShort, nil
		return 0
	}
	r.rest = r.rest[n:]
	return int64(v)
}

// count reads a number that is at most most.
func (r *reader) count(most int) int {
	v := r.uint()
	if v > int64(most) {
		r.err, r.rest = errShort, nil
		return 0
	}
	return int(v)
}

func (r *reader) bytes(n int) []byte {
	if r.err != nil || n > len(r.rest) {
		r.err, r.rest = errShort, nil
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}
