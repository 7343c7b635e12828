package replay

import (
	"github.com/prl-project/prl/schemas"
)

// Figures are what a trainer has seen, or would have, and what became of the rest.
type Figures struct {
	// Groups by what became of them: packed, stale, errored and so on, and "filtered by" the filter. Those without an
	// outcome yet are open.
	Groups map[string]int64
	// Packed is the rewards of the rollouts of packed groups.
	Packed Distribution
	// Steps that were cut, the micro-batches they are made of, and their tokens: all, those that some loss trains, and
	// the room there is for them (run.seq_len in each micro-batch).
	Steps, MicroBatches, Tokens, Trained, Room int64
	Samples                                    int64
	// OffPolicy counts samples by their off-policy steps; Frozen those of a frozen policy, which have none.
	OffPolicy map[int64]int64
	Frozen    int64
	// Advantages of the tokens that the policy gradient trains.
	Advantages Distribution
}

// What Groups calls a group without an outcome.
const (
	// Open groups wait for the rest of their step.
	Open = "open"
	// undecided groups are no part of what is packed: the rollouts that they would wait for were not recorded.
	undecided = "undecided"
	// notReached groups come after the run would have stopped.
	notReached = "not reached"
)

func newFigures() Figures {
	return Figures{Groups: map[string]int64{}, OffPolicy: map[int64]int64{}}
}

// outcome is what the figures need of a GroupOutcome.
type outcome struct {
	by      string
	step    int64 // it was packed into; 0 for none
	rewards []float64
}

func outcomeOf(o *schemas.GroupOutcome) outcome {
	by := o.Fate
	if o.Filter != "" {
		by += " by " + o.Filter
	}
	short := outcome{by: by}
	if o.Step != nil {
		short.step = *o.Step
	}
	if o.Fate == schemas.FatePacked {
		for _, r := range o.Rollouts {
			if r.Reward != nil && r.Fate == schemas.FatePacked {
				short.rewards = append(short.rewards, *r.Reward)
			}
		}
	}
	return short
}

func (f *Figures) group(o outcome) {
	f.Groups[o.by]++
	for _, r := range o.rewards {
		f.Packed.Add(float32(r), 1)
	}
}

// batch counts a micro-batch; those of a step come one after the other.
func (f *Figures) batch(mb *schemas.MicroBatch, seqLen int) {
	if mb.Rank == 0 && mb.Index == 0 {
		f.Steps++
	}
	f.MicroBatches++
	f.Room += int64(seqLen)
	f.Samples += int64(len(mb.Samples))
	for _, s := range mb.Samples {
		if s.PolicyStart == nil {
			f.Frozen++
		} else {
			f.OffPolicy[mb.Step-1-*s.PolicyStart]++
		}
	}
	if len(mb.Samples) == 0 {
		return // a dummy: its token is no one's
	}
	f.Tokens += int64(len(mb.Mask))
	last, equal := float32(0), int64(0) // the tokens of a rollout often have one advantage
	for i, m := range mb.Mask {
		if m == 1 {
			if a := mb.Advantages.At(i); a != last {
				f.Advantages.Add(last, equal)
				last, equal = a, 0
			}
			equal++
		}
		if m == 1 || weighted(mb.CeWeights, i) || weighted(mb.RefKlWeights, i) {
			f.Trained++
		}
	}
	f.Advantages.Add(last, equal)
}

func weighted(weights schemas.Float32s, i int) bool { return len(weights) > 0 && weights.At(i) != 0 }

// Padding is the share of the room that holds no token.
func (f *Figures) Padding() float64 {
	if f.Room == 0 {
		return 0
	}
	return float64(f.Room-f.Tokens) / float64(f.Room)
}

func (f *Figures) offPolicyMean() float64 {
	sum, n := int64(0), int64(0)
	for steps, count := range f.OffPolicy {
		sum, n = sum+steps*count, n+count
	}
	if n == 0 {
		return 0
	}
	return float64(sum) / float64(n)
}
