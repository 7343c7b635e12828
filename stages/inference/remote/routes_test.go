package remote

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func servers(n int) []*server {
	var all []*server
	for i := range n {
		all = append(all, &server{url: fmt.Sprintf("http://host-%d:8000", i), state: ready})
	}
	return all
}

func randomTokens(r *rand.Rand, n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = r.Int32N(1000)
	}
	return tokens
}

// TestAConversationStays: every turn of a conversation has the key of its first, and rollouts that begin alike share one.
func TestAConversationStays(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	r := newRoutes(1000)
	for range 50 {
		first := randomTokens(rng, 20+rng.IntN(50))
		key := r.key(first)
		for range 3 { // rollouts of a group
			prompt := append([]int32{}, first...)
			for turn := range 4 {
				if got := r.key(prompt); got != key {
					t.Fatalf("turn %d has key %x, the first has %x", turn, got, key)
				}
				answer := randomTokens(rng, 10)
				r.answered(key, prompt, answer)
				prompt = append(append(prompt, answer...), randomTokens(rng, 5)...)
			}
		}
	}
	if other := r.key(randomTokens(rng, 30)); other == r.key(randomTokens(rng, 30)) {
		t.Error("two conversations have one key")
	}
}

// TestRoutesForget: no more conversations are remembered than there is room for, the longest unused go.
func TestRoutesForget(t *testing.T) {
	r := newRoutes(2)
	for i := range int32(3) {
		r.answered(uint64(i), []int32{i}, []int32{100})
		r.key([]int32{0, 100, 1}) // the first is used all the time
	}
	for i, want := range []bool{true, false, true} {
		if got := r.key([]int32{int32(i), 100, 7}) == uint64(i); got != want {
			t.Errorf("conversation %d is remembered: %v", i, got)
		}
	}
	if len(r.known) != 2 || r.recent.Len() != 2 || r.ends[2] != 2 {
		t.Errorf("%d and %d are remembered, %d of two tokens", len(r.known), r.recent.Len(), r.ends[2])
	}
}

// TestAServerThatGoes moves its own conversations only, and they spread over the others; when it is back, so are they.
func TestAServerThatGoes(t *testing.T) {
	all := servers(5)
	counts, moved := map[string]int{}, map[string]int{}
	for key := range uint64(5000) {
		own := choose(mix(key), all, 1.5)
		counts[own.url]++
		rest := choose(mix(key), all[1:], 1.5)
		switch {
		case own == all[0]:
			moved[rest.url]++
		case own != rest:
			t.Fatalf("conversation %d moved from %s to %s", key, own.url, rest.url)
		}
	}
	for _, s := range all {
		if n := counts[s.url]; n < 850 || n > 1150 {
			t.Errorf("%s has %d of 5000 conversations", s.url, n)
		}
		if n := moved[s.url]; s != all[0] && (n < 150 || n > 350) {
			t.Errorf("%s got %d of those that moved", s.url, n)
		}
	}
}

// TestOverload: a server with more than its share gives conversations to the one with the least, and not before.
func TestOverload(t *testing.T) {
	all := servers(3)
	key := uint64(1)
	own := choose(key, all, 1.5)
	for i, s := range all {
		s.running = 10 + i
	}
	if got := choose(key, all, 1.5); got != own {
		t.Errorf("moved at an even load")
	}
	least := all[0]
	if least == own {
		least = all[1]
	}
	own.running, least.running = 40, 2
	if got := choose(key, all, 1.5); got != least {
		t.Errorf("%s, not %s, with loads %d and %d", got.url, least.url, got.running, least.running)
	}
	if got := choose(key, all[:1], 1); got != all[0] {
		t.Error("one server is not chosen")
	}
}

// BenchmarkKey is what a long prompt costs.
func BenchmarkKey(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	r := newRoutes(conversations)
	for range conversations {
		r.answered(rng.Uint64(), randomTokens(rng, 8+rng.IntN(4096)), nil)
	}
	prompt := randomTokens(rng, 65536)
	for b.Loop() {
		r.key(prompt)
	}
}
