package schedule

import "hash/fnv"

// Mix hashes numbers into one: h = splitmix64(h xor v) over all of them, from h = 0 (Steele, Lea and Flood, "Fast
// splittable pseudorandom number generators", 2014, with the constants of its reference code).
func Mix(values ...uint64) uint64 {
	h := uint64(0)
	for _, v := range values {
		h = splitmix64(h ^ v)
	}
	return h
}

func splitmix64(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Word hashes a name (FNV-1a), for use in Mix.
func Word(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	return h.Sum64()
}

// GroupSeed is the seed of a group's environment: Mix(run seed, Word(eval), group), never negative. eval is empty in
// training.
func GroupSeed(run int64, eval string, group int64) int64 {
	return int64(Mix(uint64(run), Word(eval), uint64(group)) >> 1)
}

// RolloutSeed is the seed of one rollout's sampling: Mix(group seed, index), never negative. It does not depend on the
// attempt. Who runs a whole group from one task derives every rollout's from it.
func RolloutSeed(groupSeed int64, index int) int64 {
	return int64(Mix(uint64(groupSeed), uint64(index)) >> 1)
}
