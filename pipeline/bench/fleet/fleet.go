// Package fleet says what a fleet of prl can carry: which of its stages, brokers and networks is full first, how many processes a
// demand needs, and how long a rollout waits on its way. It computes from what one rollout takes of each of them.
//
// Guarantees: equal inputs give equal answers, on any machine. Limits is the utilisation law: no schedule of the work carries more.
// Simulate plays single rollouts on a simulated clock, with what averages do not show: the burst of tasks and outcomes at the end of a
// step, rollouts of very unequal length, and records that wait for the process that has their partition.
//
// What it leaves out: crashes, compaction, and disks (brokers and files are taken to be as fast as they were measured).
package fleet

import "slices"

// A Stage is what one kind of process does.
type Stage struct {
	Name string
	CPU  float64 // seconds of a core that a rollout takes
	// Most is how many processes can share the work, each with a core of its own; 0 for any number.
	Most    int
	Reads   []string // topics that its processes share
	Follows []string // topics that each of them reads whole
	Writes  []string
}

// A Topic is what one rollout adds to a log, and over how many partitions, so brokers, that is spread.
type Topic struct {
	Name       string
	Bytes      float64
	Blobs      float64 // bytes that its writer puts into the blob store, and each reader takes from there
	Partitions int
}

// Names of the stages and topics that Simulate follows. A Fleet may have others: they take CPU, brokers and network, and no rollout
// waits for them.
const (
	Emitter   = "emitter"
	EnvServer = "envserver"
	Scorer    = "scorer"
	Packer    = "packer"
	Tasks     = "tasks"
	Traces    = "traces"
	Samples   = "samples"
	Outcomes  = "outcomes"
	Batches   = "batches"
)

// A Fleet is what a run has.
type Fleet struct {
	Stages []Stage
	Topics []Topic

	Brokers  int
	Replicas int
	// Broker is the bytes a second that one broker takes and gives, both together; copies for other brokers are among them.
	Broker float64
	// Network is the bytes a second, each way, of every machine; 0 for a network that is never full.
	Network float64

	Servers int // of environments
	Slots   int // rollouts at once in each
	// Beats are the requests a second of an idle environment server, Requests those that a broker answers if it does nothing else.
	Beats, Requests float64
	// Mean and Sigma are those of a rollout's duration, which is log-normal: its mean in seconds, the deviation of its logarithm.
	Mean, Sigma float64

	Group int     // rollouts that are compared with each other
	Batch int     // rollouts of a step
	Step  float64 // seconds that the ranks train on one
	// Ahead is max_async_level: packed steps that may wait for the trainer while tasks are still emitted.
	Ahead int
	// Hop is the seconds that a record takes from one stage to the next where nothing else waits.
	Hop float64
	// Cores are those of the one machine that all stages and the broker share; 0 where each process has a machine of its own.
	Cores int
}

func (f Fleet) stage(name string) Stage {
	return f.Stages[slices.IndexFunc(f.Stages, func(s Stage) bool { return s.Name == name })]
}

func (f Fleet) topic(name string) Topic {
	return f.Topics[slices.IndexFunc(f.Topics, func(t Topic) bool { return t.Name == name })]
}

// permits bounds the rollouts of open groups, as the emitter's default does.
func (f Fleet) permits() int { return (f.Ahead+2)*f.Batch + f.Group }

// out is the bytes that the leader of a topic gives for a rollout: to readers, and to the brokers that have copies.
func (f Fleet) out(t Topic) float64 {
	times := float64(f.Replicas - 1)
	for _, s := range f.Stages {
		if slices.Contains(s.Reads, t.Name) {
			times++
		}
		if slices.Contains(s.Follows, t.Name) && s.Name == EnvServer {
			times += float64(f.Servers)
		} else if slices.Contains(s.Follows, t.Name) {
			times++
		}
	}
	return t.Bytes * times
}

// leads is the seconds that a rollout's part of a topic keeps the broker that leads it busy.
func (f Fleet) leads(t Topic) float64 { return (t.Bytes + f.out(t)) / f.broker() }

// broker is the bytes a second that a broker has left beside what idle servers ask.
func (f Fleet) broker() float64 {
	if f.Requests == 0 {
		return f.Broker
	}
	return f.Broker * max(0, 1-float64(f.Servers)*f.Beats/f.Requests/float64(f.Brokers))
}
