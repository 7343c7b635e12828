package emitter

import (
	"math/bits"

	"github.com/prl-project/prl/stages/internal/schedule"
)

// cursor goes through the training tasks of one environment in a random order, all of them before any comes again, and
// then in another order. Its state is two numbers; the order is a permutation that is computed, not kept.
type cursor struct {
	key   uint64 // of the run's seed and the environment's name
	epoch int64
	pos   int64
}

// next is the index of the next task of n. Where n has changed since the last call, the epoch goes on with the
// permutation of the new n.
func (c *cursor) next(n int64) int64 {
	if c.pos >= n {
		c.epoch, c.pos = c.epoch+1, 0
	}
	at := permute(schedule.Mix(c.key, uint64(c.epoch)), uint64(c.pos), uint64(n))
	c.pos++
	return int64(at)
}

// permute maps i to its place in a pseudo-random permutation of [0, n): a Feistel network over the next even power of
// two, walked until it falls below n (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002): fewer than four
// rounds of it on average.
func permute(key, i, n uint64) uint64 {
	half := max(1, (bits.Len64(n-1)+1)/2)
	mask := uint64(1)<<half - 1
	for {
		left, right := i>>half, i&mask
		for round := range uint64(8) {
			left, right = right, left^schedule.Mix(key, round, right)&mask
		}
		if i = left<<half | right; i < n {
			return i
		}
	}
}
