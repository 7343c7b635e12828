package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// A Kind is a kind of fault.
type Kind string

// The kinds of faults. README.md says of each what it is done to and why the world may do it.
const (
	Kill        Kind = "SIGKILL"
	Crash       Kind = "SIGKILL at a marked place"
	Absence     Kind = "SIGKILL, back later"
	Nap         Kind = "SIGSTOP, short"
	Sleep       Kind = "SIGSTOP past the session"
	Zombie      Kind = "SIGSTOP, successor, SIGCONT"
	Restart     Kind = "SIGTERM and start"
	Scale       Kind = "instance added, then --leave"
	BrokerKill  Kind = "broker SIGKILL"
	BrokerNap   Kind = "broker SIGSTOP"
	ModelSlow   Kind = "model slow"
	ModelDrop   Kind = "model drops requests"
	ModelCut    Kind = "model cuts replies"
	ModelRefuse Kind = "model refuses"
	DiskSlow    Kind = "disk slow"
	DiskFull    Kind = "disk full"
	Duplicate   Kind = "records duplicated"
	Reorder     Kind = "old records replayed"
	Truncate    Kind = "records truncated"
	Garbage     Kind = "garbage records"
	Oversize    Kind = "records at the size limit"
	FalseClaim  Kind = "claims of missing blobs"
)

// Lengths of the faults that last. A session ends after 6 s and a transaction after 4 s of silence.
var lasting = map[Kind][2]time.Duration{
	Absence: {5 * time.Second, 20 * time.Second}, Nap: {300 * time.Millisecond, 3 * time.Second}, Sleep: {7 * time.Second, 12 * time.Second}, Zombie: {3 * time.Second, 9 * time.Second},
	Scale: {6 * time.Second, 15 * time.Second}, BrokerKill: {0, 4 * time.Second}, BrokerNap: {500 * time.Millisecond, 8 * time.Second},
	ModelSlow: {2 * time.Second, 8 * time.Second}, ModelDrop: {2 * time.Second, 8 * time.Second}, ModelCut: {2 * time.Second, 8 * time.Second},
	ModelRefuse: {time.Second, 4 * time.Second}, DiskSlow: {2 * time.Second, 8 * time.Second}, DiskFull: {time.Second, 4 * time.Second},
}

// recovery is how long a target is left alone after a fault has ended, so that not all of them hit something that is
// down already. Brokers get time to elect, load and serve.
var recovery = map[Kind]time.Duration{Kill: time.Second, Crash: 4 * time.Second, Absence: 2 * time.Second, Sleep: 3 * time.Second, Zombie: 5 * time.Second, Restart: 6 * time.Second, BrokerKill: 45 * time.Second, BrokerNap: 20 * time.Second}

// weights is how often each kind is drawn.
var weights = []struct {
	kind   Kind
	weight int
}{
	{Kill, 40}, {Crash, 14}, {Absence, 3}, {Nap, 6}, {Sleep, 5}, {Zombie, 4}, {Restart, 5}, {Scale, 2}, {BrokerKill, 4}, {BrokerNap, 2},
	{ModelSlow, 2}, {ModelDrop, 2}, {ModelCut, 2}, {ModelRefuse, 1}, {DiskSlow, 2}, {DiskFull, 2},
	{Duplicate, 4}, {Reorder, 3}, {Truncate, 2}, {Garbage, 4}, {Oversize, 1}, {FalseClaim, 2},
}

// A Fault is one thing that is done to the pipeline.
type Fault struct {
	At     time.Duration // since the faults began
	Kind   Kind
	Target string        // slot, broker, or what there is one of: "model", "disk", "topics"
	For    time.Duration // how long it lasts; 0 for an instant
	Seed   uint64        // of what else it draws
}

func (f Fault) String() string {
	s := fmt.Sprintf("%6.1fs %s: %s", f.At.Seconds(), f.Target, f.Kind)
	if f.For > 0 {
		s += fmt.Sprintf(" for %.1fs", f.For.Seconds())
	}
	return s
}

// Targets are what faults are done to.
type Targets struct {
	Slots   []string // processes: <stage>-<number>
	Brokers int      // that may be killed: 0 for an embedded one
}

// Schedule draws the faults of a duration, one every mean on average. It depends on its arguments alone: the same seed
// gives the same faults. No target gets a fault while it has one, or shortly after.
func Schedule(seed uint64, duration, mean time.Duration, t Targets) []Fault {
	rng := rand.New(rand.NewPCG(seed, 0xc4a05))
	busy := map[string]time.Duration{} // until when
	var faults []Fault
	for at := time.Duration(0); ; {
		at += mean/4 + time.Duration(rng.Int64N(int64(mean*3/2)))
		if at >= duration {
			return faults
		}
		f := Fault{At: at, Kind: draw(rng), Seed: rng.Uint64()}
		f.Target = target(rng, f.Kind, t)
		if l, ok := lasting[f.Kind]; ok {
			f.For = l[0] + time.Duration(rng.Int64N(int64(l[1]-l[0])+1))
		}
		where := f.Target
		if f.Kind == BrokerKill || f.Kind == BrokerNap {
			where = "brokers" // a quorum of them is always left alone
		}
		if f.Target == "" || busy[where] > at {
			continue
		}
		busy[where] = at + f.For + recovery[f.Kind]
		faults = append(faults, f)
	}
}

func draw(rng *rand.Rand) Kind {
	sum := 0
	for _, w := range weights {
		sum += w.weight
	}
	n := rng.IntN(sum)
	for _, w := range weights {
		if n -= w.weight; n < 0 {
			return w.kind
		}
	}
	return Kill
}

// target draws what a fault is done to; empty where there is nothing. Every stage is as likely as every other, however
// many instances it has.
func target(rng *rand.Rand, k Kind, t Targets) string {
	slots := map[string][]string{}
	var stages []string
	for _, s := range t.Slots {
		stage := stageOf(s)
		if k == Crash && places[stage] == nil || (k == Zombie || k == Scale) && !named(stage) {
			continue
		}
		if k == Scale && stage == "trainer" || k == Absence && (stage == "trainer" || stage == "inference") {
			continue // there is one
		}
		if slots[stage] == nil {
			stages = append(stages, stage)
		}
		slots[stage] = append(slots[stage], s)
	}
	switch k {
	case Kill, Crash, Absence, Nap, Sleep, Zombie, Restart, Scale:
		if len(stages) == 0 {
			return ""
		}
		of := slots[stages[rng.IntN(len(stages))]]
		return of[rng.IntN(len(of))]
	case BrokerKill, BrokerNap:
		if t.Brokers == 0 {
			return ""
		}
		return fmt.Sprintf("broker-%d", rng.IntN(t.Brokers))
	case ModelSlow, ModelDrop, ModelCut, ModelRefuse:
		return "model"
	case DiskSlow, DiskFull:
		return "disk"
	}
	return "topics"
}

// named reports whether instances of a stage have names that fence each other.
func named(stage string) bool {
	return slices.Contains([]string{"emitter", "envserver", "scorer", "packer", "trainer", "eval"}, stage)
}

// places are where the processes of a stage can be told to kill themselves (pipeline.Crash).
var places = map[string][]string{
	"emitter":   {"emitter.before-commit", "emitter.after-commit"},
	"envserver": {"envserver.before-commit", "envserver.after-commit", "envserver.published"},
	"scorer":    {"scorer.before-commit", "scorer.after-commit"},
	"packer":    {"packer.before-commit", "packer.after-commit"},
	"eval":      {"eval.before-commit", "eval.after-commit"},
	"trainer":   {"trainer.before-commit", "trainer.after-weights", "trainer.after-publish"},
	"sink":      {"sink-written", "sink-linked"},
}
