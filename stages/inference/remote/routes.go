package remote

import (
	"container/list"
	"encoding/binary"
	"hash/fnv"
	"sync"
)

// routes keeps conversations apart, so that each stays with one server. The key of a conversation is the hash of its first
// prompt; rollouts of a group, which begin alike, share it. A later prompt is recognised by beginning with all that stood
// at the end of an earlier answer. What is forgotten gets a new key, and so another server perhaps: nothing depends on it.
type routes struct {
	limit int

	mu     sync.RWMutex
	known  map[uint64]*list.Element // of *ending, by the hash of prompt and answer together
	recent *list.List               // the most recently used first
	ends   []int                    // how many of them are of a length: only there a prompt is looked up
}

// ending is where a conversation stood.
type ending struct {
	hash   uint64
	key    uint64
	length int
}

func newRoutes(limit int) *routes {
	return &routes{limit: limit, known: map[uint64]*list.Element{}, recent: list.New()}
}

// key is the conversation that a prompt goes on with, or begins.
func (r *routes) key(prompt []int32) uint64 {
	h, key := start, uint64(0)
	var found *list.Element
	r.mu.RLock()
	for i, t := range prompt {
		h = h.add(t)
		if i+1 >= len(r.ends) || r.ends[i+1] == 0 {
			continue
		}
		if e := r.known[uint64(h)]; e != nil {
			found, key = e, e.Value.(*ending).key // the longest counts
		}
	}
	r.mu.RUnlock()
	if found == nil {
		return uint64(h)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recent.MoveToFront(found) // does nothing where it has been forgotten meanwhile
	return key
}

// answered notes how a conversation stands.
func (r *routes) answered(key uint64, prompt, answer []int32) {
	h := start
	for _, part := range [][]int32{prompt, answer} {
		for _, t := range part {
			h = h.add(t)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.known[uint64(h)]; e != nil {
		e.Value.(*ending).key = key
		r.recent.MoveToFront(e)
		return
	}
	length := len(prompt) + len(answer)
	r.known[uint64(h)] = r.recent.PushFront(&ending{uint64(h), key, length})
	if length >= len(r.ends) {
		r.ends = append(r.ends, make([]int, length+1-len(r.ends))...)
	}
	r.ends[length]++
	for r.recent.Len() > r.limit {
		oldest := r.recent.Remove(r.recent.Back()).(*ending)
		delete(r.known, oldest.hash)
		r.ends[oldest.length]--
	}
}

// hash is FNV-1a over tokens, one step for each.
type hash uint64

const start hash = 14695981039346656037

func (h hash) add(token int32) hash { return (h ^ hash(uint32(token))) * 1099511628211 }

// weight is how much a server is the one of a conversation: the one with the most is (rendezvous hashing), so that a server
// that comes or goes moves only its own conversations.
func weight(key uint64, server string) uint64 {
	h := fnv.New64a()
	h.Write(binary.LittleEndian.AppendUint64(nil, key))
	h.Write([]byte(server))
	return mix(h.Sum64())
}

// mix spreads what FNV leaves close together (the finaliser of MurmurHash3).
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// choose picks the server of a conversation among those that are ready: its own, unless that has more than overload times
// the mean load and some other less; then the one with the least.
func choose(key uint64, ready []*server, overload float64) *server {
	total := 1 // with the request itself
	own, least := ready[0], ready[0]
	for _, s := range ready {
		total += s.running
		if weight(key, s.url) > weight(key, own.url) {
			own = s
		}
		if s.running < least.running {
			least = s
		}
	}
	most := overload * float64(total) / float64(len(ready))
	if float64(own.running+1) > max(most, 1) && least.running < own.running {
		return least
	}
	return own
}
