package fleet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// small is a fleet in which nothing is near its limit but the trainer.
func small() Fleet {
	return Fleet{
		Stages: []Stage{
			{Name: Emitter, CPU: 1e-5, Most: 1, Writes: []string{Tasks}},
			{Name: EnvServer, CPU: 1e-3, Reads: []string{Tasks}, Writes: []string{Traces}},
			{Name: Scorer, CPU: 4e-4, Most: 16, Reads: []string{Traces}, Writes: []string{Samples}},
			{Name: Packer, CPU: 2e-4, Most: 1, Reads: []string{Samples}, Writes: []string{Batches, Outcomes}},
			{Name: "sink", CPU: 1e-3, Reads: []string{Traces, Samples, Batches, Outcomes}},
		},
		Topics: []Topic{
			{Name: Tasks, Bytes: 500, Partitions: 16}, {Name: Traces, Bytes: 40_000, Partitions: 16}, {Name: Samples, Bytes: 50_000, Partitions: 1},
			{Name: Batches, Bytes: 50_000, Partitions: 8}, {Name: Outcomes, Bytes: 100, Partitions: 1},
		},
		Brokers: 3, Replicas: 3, Broker: 300e6, Network: 1.25e9,
		Servers: 100, Slots: 64, Mean: 2, Sigma: 0.7, Group: 8, Batch: 512, Step: 1, Ahead: 4, Hop: 0.005,
	}
}

func (f *Fleet) cpu(stage string) *float64 {
	for i := range f.Stages {
		if f.Stages[i].Name == stage {
			return &f.Stages[i].CPU
		}
	}
	panic(stage)
}

func enough(f Fleet) Processes { return Processes{Scorer: 16, "sink": 16} }

// bottlenecks make one thing of a small fleet the first that is full.
var bottlenecks = []struct {
	of   string
	slow func(f *Fleet, times float64)
}{
	{"trainer", func(f *Fleet, times float64) { f.Step = 2 * times }},
	{"environment servers", func(f *Fleet, times float64) { f.Servers, f.Slots, f.Mean = 2, 32, 0.4*times }},
	{"permits", func(f *Fleet, times float64) { f.Step, f.Slots, f.Mean = 0.01, 1000, 2*times }},
	{"scorer", func(f *Fleet, times float64) { *f.cpu(Scorer) = 0.1 * times }},
	{"packer", func(f *Fleet, times float64) { *f.cpu(Packer) = 6e-3 * times }},
	{"emitter", func(f *Fleet, times float64) { *f.cpu(Emitter) = 6e-3 * times }},
	{"3 brokers", func(f *Fleet, times float64) {
		f.Step, f.Broker = 0.01, 300e6/times
		for i := range f.Topics {
			f.Topics[i].Partitions = 3
		}
	}},
	{"machine", func(f *Fleet, times float64) { f.Step, f.Cores, *f.cpu(EnvServer) = 0.01, 2, 0.02*times }},
}

// What is full first decides: twice as slow is half the rate, and nothing else matters.
func TestBottleneckDecides(t *testing.T) {
	for _, b := range bottlenecks {
		t.Run(b.of, func(t *testing.T) {
			f := small()
			b.slow(&f, 10)
			first := f.Limits()[0]
			if !strings.Contains(first.Of, b.of) {
				t.Fatalf("the first limit is %+v", f.Limits())
			}
			slower := f
			slower.Stages, slower.Topics = slices.Clone(f.Stages), slices.Clone(f.Topics)
			b.slow(&slower, 20)
			if got := slower.Limits()[0].Rate; !near(got, first.Rate/2, 0.03) {
				t.Errorf("twice as slow: %v rollouts/s, was %v", got, first.Rate)
			}
			other := f
			other.Stages = slices.Clone(f.Stages)
			*other.cpu("sink") /= 10
			if b.of != "machine" && other.Limits()[0] != first {
				t.Errorf("with a faster sink: %v, was %v", other.Limits()[0], first)
			}
			full, half := f.Simulate(enough(f), 20, 1), slower.Simulate(enough(f), 20, 1)
			if !near(half.Rate, full.Rate/2, 0.05) {
				t.Errorf("twice as slow: %v rollouts/s are simulated, was %v", half.Rate, full.Rate)
			}
			if again := other.Simulate(enough(f), 20, 1); b.of != "machine" && !near(again.Rate, full.Rate, 0.01) {
				t.Errorf("with a faster sink: %v rollouts/s are simulated, was %v", again.Rate, full.Rate)
			}
		})
	}
}

// Where there is enough to do, the simulation comes to within a few percent of the law, and never above it.
func TestSimulationMeetsTheLaw(t *testing.T) {
	for _, b := range bottlenecks {
		f := small()
		b.slow(&f, 10)
		r := f.Simulate(enough(f), 80, 1) // what was on its way when counting began is a small part of that
		if limit := f.Limits()[0].Rate; !near(r.Rate, limit, 0.05) {
			t.Errorf("%s: %v rollouts/s are simulated, the limit is %v", b.of, r.Rate, limit)
		}
		if f.Cores > 0 {
			continue
		}
		for _, s := range f.Stages { // utilisation = rate · use
			n := enough(f)[s.Name]
			if s.Name == EnvServer {
				n = f.Servers
			}
			if want := r.Rate * s.CPU / float64(max(1, n)); !near(r.Busy[s.Name], want, 0.1) {
				t.Errorf("%s: the %s is busy %v of the time, the law says %v", b.of, s.Name, r.Busy[s.Name], want)
			}
		}
	}
	rng := rand.New(rand.NewPCG(1, 0))
	for range 40 {
		f := small()
		for i := range f.Stages {
			f.Stages[i].CPU *= math.Exp(2 * rng.NormFloat64())
		}
		f.Broker *= math.Exp(rng.NormFloat64())
		f.Step *= math.Exp(rng.NormFloat64())
		if r, limit := f.Simulate(enough(f), 20, 1), f.Limits()[0]; r.Rate > 1.02*limit.Rate {
			t.Errorf("%v rollouts/s are simulated, but %s is full at %v", r.Rate, limit.Of, limit.Rate)
		}
	}
}

// A queue is as long as theory says: arrivals at random before one server with constant work wait ρ/(2(1-ρ)) of it on average.
func TestQueue(t *testing.T) {
	for _, rho := range []float64{0.3, 0.6, 0.8} {
		const n = 400_000
		rng, p := rand.New(rand.NewPCG(1, 0)), newPool(1)
		now, waited := 0., 0.
		for range n {
			now += rng.ExpFloat64() / rho
			waited += p.work(now, 0, 1) - now - 1
		}
		if want := rho / (2 * (1 - rho)); !near(waited/n, want, 0.03) {
			t.Errorf("at %v: waited %v, want %v", rho, waited/n, want)
		}
	}
}

// Records of one group go to one process: who has no work does not help.
func TestKeysStay(t *testing.T) {
	p := newPool(2)
	for _, w := range []struct {
		key  int
		done float64
	}{{0, 1}, {2, 2}, {1, 1}, {anyone, 2}, {anyone, 3}} {
		if done := p.work(0, w.key, 1); done != w.done {
			t.Errorf("work of key %d is done at %v, want %v", w.key, done, w.done)
		}
	}
	if p.busy != 5 {
		t.Errorf("it was busy %v", p.busy)
	}
}

func TestClock(t *testing.T) {
	var c clock
	var seen []string
	see := func(what string) func() { return func() { seen = append(seen, fmt.Sprint(c.now, what)) } }
	c.at(2, see("b"))
	c.at(1, func() { see("a")(); c.at(0, see("late")); c.at(2, see("c")) })
	c.run(func() bool { return false })
	if want := []string{"1a", "1late", "2b", "2c"}; !slices.Equal(seen, want) {
		t.Errorf("%v, want %v", seen, want)
	}
}

// The same seed plays the same run, another one another.
func TestInvariant_Determinism(t *testing.T) {
	f := small()
	one, again, other := f.Simulate(enough(f), 10, 1), f.Simulate(enough(f), 10, 1), f.Simulate(enough(f), 10, 2)
	if !reflect.DeepEqual(one, again) {
		t.Errorf("%+v\n%+v", one, again)
	}
	if reflect.DeepEqual(one, other) {
		t.Errorf("another seed gives the same: %+v", one)
	}
}

// A group's longest rollout is as long as drawing says, and so many steps ahead its permits last.
func TestSlowest(t *testing.T) {
	f := small()
	rng, sum := rand.New(rand.NewPCG(1, 0)), 0.
	const n = 100_000
	for range n {
		longest := 0.
		for range f.Group {
			longest = max(longest, f.Mean*math.Exp(f.Sigma*rng.NormFloat64()-f.Sigma*f.Sigma/2))
		}
		sum += longest
	}
	if !near(f.slowest(), sum/n, 0.01) {
		t.Errorf("the longest of %d takes %v, drawing says %v", f.Group, f.slowest(), sum/n)
	}
	f.Mean = 20
	f.Ahead = f.NeededAhead(512, 1)
	if spare := float64(f.permits()) - float64(f.Batch)/2 - 512*f.slowest(); spare < 0 || spare > float64(f.Batch+f.Group) {
		t.Errorf("%d steps ahead for %v s of 512 rollouts/s", f.Ahead, f.slowest())
	}
}

// So many are needed, and one fewer is too few.
func TestNeeded(t *testing.T) {
	f := small()
	const demand, part = 1000, 0.7
	for _, s := range f.Stages {
		n := f.Needed(s.Name, demand, part)
		use := max(s.CPU, f.bytes(s.Reads)/f.Network, f.bytes(s.Writes)/f.Network)
		if busy := demand * use / float64(n); busy > part || n > 1 && demand*use/float64(n-1) <= part {
			t.Errorf("%d of %s are busy %v of the time", n, s.Name, busy)
		}
	}
	f.Topics[2].Bytes = 10_000 // of the topic with one partition
	n := f.NeededBrokers(demand, part)
	for _, brokers := range []int{n, n - 1} {
		f.Brokers = brokers
		if full := f.brokerLimits().sorted()[0]; n <= f.Replicas || (full.Rate*part >= demand) != (brokers == n) {
			t.Errorf("%d brokers of %d needed are full at %v", brokers, n, full)
		}
	}
	f.Topics[2].Bytes = 1e6
	if n := f.NeededBrokers(demand, part); n != 0 {
		t.Errorf("%d brokers are enough, though one has to lead all of a topic that is too much for it", n)
	}
}

// A step that is cut lets a burst of tasks out, which the last of them waits for; the trainer has steps before it meanwhile.
func TestBurst(t *testing.T) {
	f := small()
	*f.cpu(Emitter) = 1e-3
	r := f.Simulate(enough(f), 20, 1)
	if burst := float64(f.Batch) * 1e-3; r.Refilled.P99 < 0.9*burst || r.Refilled.P99 > 2*burst {
		t.Errorf("tasks took %+v s after the cut of a step, a burst takes the emitter %v s", r.Refilled, burst)
	}
	if r.Idle > 0.01 {
		t.Errorf("the trainer waits %v of the time", r.Idle)
	}
	f.Ahead, f.Mean = 0, 5 // one step at a time is on its way: the trainer waits for the stragglers
	if r := f.Simulate(enough(f), 20, 1); r.Idle < 0.3 {
		t.Errorf("the trainer waits %v of the time for rollouts that take five times as long as a step", r.Idle)
	}
}

func near(got, want, part float64) bool { return math.Abs(got-want) <= part*math.Abs(want) }

// Many servers cost brokers something although a rollout is played by one: each reads all outcomes, and asks while it is idle.
func TestManyServers(t *testing.T) {
	f := small()
	f.Stages[1].Follows = []string{Outcomes}
	f.Servers, f.Step = 10_000, 0.01
	if first := f.Limits()[0]; !strings.Contains(first.Of, "leads outcomes") {
		t.Errorf("the first limit is %v", first)
	}
	if got, want := f.out(f.topic(Outcomes)), 100.*(10_000+2+1); got != want { // copies, the sink
		t.Errorf("a rollout's outcome is sent as %v bytes, want %v", got, want)
	}
	f.Beats, f.Requests = 6, 40_000
	if got, want := f.broker(), f.Broker*(1-0.5); !near(got, want, 1e-9) {
		t.Errorf("beside 20,000 requests a second of 40,000 a broker has %v bytes/s left, want %v", got, want)
	}
}

// What goes by way of the blob store is on the network of who writes and reads it, and not on that of the brokers.
func TestBlobs(t *testing.T) {
	f := small()
	was := f.brokerLimits().sorted()[0]
	f.Network = 1e6
	f.Topics[2].Blobs = 1e6 // of samples
	for _, stage := range []string{Scorer, Packer} {
		if n := f.Needed(stage, 100, 1); n != 105 {
			t.Errorf("%d of the %s are needed for 100 × 1.05 MB/s over 1 MB/s each", n, stage)
		}
	}
	f.Network = 1.25e9
	if is := f.brokerLimits().sorted()[0]; is != was {
		t.Errorf("the brokers' first limit is %v, was %v", is, was)
	}
}
