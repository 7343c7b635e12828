package packer

import (
	"testing"
)

// What a plan leaves on the table: no more than the peer's algorithm on the same lengths, and no more than was reached.
// None of it depends on the machine.
func TestCostOfPlans(t *testing.T) {
	for _, tt := range []struct {
		n, ranks int
		most     balance
	}{
		{512, 1, balance{1, 1, 0.003}},
		{512, 8, balance{1.0005, 1.093, 0.072}},
		{512, 64, balance{2.011, 2.112, 0.478}},
		{2048, 1, balance{1, 1, 0.002}},
		{2048, 8, balance{1.0005, 1.021, 0.006}},
		{2048, 64, balance{1.0005, 1.24, 0.037}},
		{8192, 1, balance{1, 1, 0.002}},
		{8192, 8, balance{1.0005, 1.005, 0.002}},
		{8192, 64, balance{1.0005, 1.044, 0.017}},
	} {
		b := benchmarked(tt.n, tt.ranks)
		planned := plan(b.lengths, b.cost, b.capacity, tt.ranks)
		got, peer := b.balance(planned), b.balance(peerPlan(b.lengths, b.cost, b.capacity, tt.ranks))
		if got.ranks > tt.most.ranks || got.microSteps > tt.most.microSteps || got.padding > tt.most.padding {
			t.Errorf("%d samples on %d ranks: %.4f, at most %.4f", tt.n, tt.ranks, got, tt.most)
		}
		if got.ranks > max(1.0005, peer.ranks) || got.microSteps > peer.microSteps || got.padding > peer.padding {
			t.Errorf("%d samples on %d ranks: %.4f, the peer's algorithm %.4f", tt.n, tt.ranks, got, peer)
		}
		if limit := b.limit(); got.ranks < limit.ranks || got.microSteps < limit.microSteps || got.padding < limit.padding {
			t.Errorf("%d samples on %d ranks: %.4f, below the limit of %.4f", tt.n, tt.ranks, got, limit)
		}
		// Of 1,008 micro-batches of a rank one more than that holds all tokens; for the others it is the least there can be.
		if count := len(planned[0]); count > b.count()+b.count()/1000 {
			t.Errorf("%d samples on %d ranks: %d micro-batches on each, %d have room for all", tt.n, tt.ranks, count, b.count())
		}
	}
}

// A plan allocates a few times for each sample, the core too, and neither more often where samples are longer.
func TestCostAllocations(t *testing.T) {
	for _, tt := range []struct {
		n, ranks int
		most     float64
	}{{512, 8, 2.5}, {2048, 1, 1}, {2048, 8, 2}, {2048, 64, 2.5}, {8192, 64, 2}} {
		b := benchmarked(tt.n, tt.ranks)
		if got := testing.AllocsPerRun(1, func() { plan(b.lengths, b.cost, b.capacity, b.ranks) }) / float64(tt.n); got > tt.most {
			t.Errorf("a plan of %d samples on %d ranks allocates %.2f times a sample, at most %v", tt.n, tt.ranks, got, tt.most)
		}
	}
	for _, imitates := range []bool{false, true} {
		perRollout := func(times int) float64 {
			s, cfg := benchmarkedStep(imitates, times), DefaultConfig()
			cfg.FlopsLinear *= int64(times) // the same plan
			core, next := s.core(t, cfg), int64(0)
			return testing.AllocsPerRun(3, func() {
				s.feed(t, core, next)
				next += int64(len(s.groups))
			}) / float64(s.rollouts)
		}
		short, long := perRollout(1), perRollout(4)
		if short > 5 || long > short+0.25 {
			t.Errorf("imitates=%v: a rollout costs %.2f allocations, of four times the tokens %.2f", imitates, short, long)
		}
	}
}
