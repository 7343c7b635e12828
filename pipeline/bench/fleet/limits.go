package fleet

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// A Limit is the rate at which something is full.
type Limit struct {
	Of   string
	Rate float64 // rollouts/s
}

type limits []Limit

// add is a limit of what has a capacity, per second, of which a rollout takes some. What nothing is known of sets none.
func (l *limits) add(capacity, use float64, of string, args ...any) {
	if use > 0 && capacity > 0 {
		*l = append(*l, Limit{fmt.Sprintf(of, args...), capacity / use})
	}
}

func (l limits) sorted() []Limit {
	slices.SortStableFunc(l, func(a, b Limit) int { return cmp.Compare(a.Rate, b.Rate) })
	return l
}

// Limits are all there are, the lowest first.
func (f Fleet) Limits() []Limit {
	var all limits
	all.add(float64(f.Batch), f.Step, "trainer: %d rollouts in %g s", f.Batch, f.Step)
	all.add(float64(f.Servers*f.Slots), f.Mean, "environment servers: %d × %d rollouts at once", f.Servers, f.Slots)
	all.add(float64(f.permits())-float64(f.Batch)/2, f.slowest(), "permits: %d open rollouts", f.permits()) // half a step waits for the rest
	if f.Cores > 0 {
		all.add(float64(f.Cores), f.allCPU(), "the %d cores of the machine", f.Cores)
		return all.sorted()
	}
	for _, s := range f.Stages {
		most := float64(s.Most)
		if s.Name == EnvServer {
			most = float64(f.Servers)
		}
		all.add(most, s.CPU, "%s: CPU of %g processes", s.Name, most)
		all.add(most*f.Network, f.bytes(s.Reads), "%s: network into %g processes", s.Name, most)
		all.add(most*f.Network, f.bytes(s.Writes), "%s: network out of %g processes", s.Name, most)
	}
	return append(all, f.brokerLimits()...).sorted()
}

// slowest is how long a group's longest rollout takes on average: so long the group has its permits.
func (f Fleet) slowest() (seconds float64) {
	const step = 1. / 256
	for z := -8.; z < 8; z += step { // the mean of the largest of so many, by its density
		below := math.Erfc(-z/math.Sqrt2) / 2
		density := float64(f.Group) * math.Pow(below, float64(f.Group-1)) * math.Exp(-z*z/2) / math.Sqrt(2*math.Pi)
		seconds += step * density * f.Mean * math.Exp(f.Sigma*z-f.Sigma*f.Sigma/2)
	}
	return seconds
}

// NeededAhead is the least max_async_level with which permits for a demand come back in time, where they are used for a part of it.
func (f Fleet) NeededAhead(demand, part float64) int {
	return max(0, int(math.Ceil(demand*f.slowest()/part/float64(f.Batch)+0.5))-2)
}

// brokerLimits are those of the brokers together, and of the busiest: it leads as much of one topic as a broker may have to, and its
// part of everything else.
func (f Fleet) brokerLimits() (all limits) {
	n, copies := float64(f.Brokers), float64(f.Replicas-1)
	work, in, out := 0., 0., 0.
	for _, t := range f.Topics {
		work, in, out = work+f.leads(t)+copies*t.Bytes/f.broker(), in+t.Bytes*(1+copies), out+f.out(t)
	}
	all.add(n, work, "%g brokers", n)
	all.add(n*f.Network, in, "network into %g brokers", n)
	all.add(n*f.Network, out, "network out of %g brokers", n)
	for _, t := range f.Topics {
		parts := float64(t.Partitions)
		if more := math.Ceil(parts/n)/parts - 1/n; more > 0 {
			others := copies * t.Bytes / (n - 1) // who leads a partition has no copy of it
			all.add(1, work/n+more*(f.leads(t)-others/f.broker()), "the broker that leads %s", t.Name)
			all.add(f.Network, in/n+more*(t.Bytes-others), "network into the broker that leads %s", t.Name)
			all.add(f.Network, out/n+more*f.out(t), "network out of the broker that leads %s", t.Name)
		}
	}
	return all
}

// allCPU is what a rollout takes of the one machine that all share.
func (f Fleet) allCPU() (seconds float64) {
	for _, s := range f.Stages {
		seconds += s.CPU
	}
	for _, t := range f.Topics {
		seconds += f.leads(t)
	}
	return seconds
}

// bytes is what a rollout adds to topics, and to the blob store beside them.
func (f Fleet) bytes(topics []string) (sum float64) {
	for _, name := range topics {
		t := f.topic(name)
		sum += t.Bytes + t.Blobs
	}
	return sum
}

// Needed is the number of processes of a stage at a demand in rollouts/s so that none is busy, nor its network, for more than a part of
// the time. It may be more than can share the work.
func (f Fleet) Needed(stage string, demand, part float64) int {
	s := f.stage(stage)
	use := s.CPU
	if f.Network > 0 {
		use = max(use, f.bytes(s.Reads)/f.Network, f.bytes(s.Writes)/f.Network)
	}
	return max(1, int(math.Ceil(demand*use/part)))
}

// NeededBrokers is the same for brokers; 0 where no number is enough, since one partition is too much for the broker that leads it.
func (f Fleet) NeededBrokers(demand, part float64) int {
	for f.Brokers = f.Replicas; f.Brokers <= 1000; f.Brokers++ {
		if l := f.brokerLimits().sorted(); len(l) == 0 || l[0].Rate*part >= demand {
			return f.Brokers
		}
	}
	return 0
}
