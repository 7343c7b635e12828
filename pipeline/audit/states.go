package audit

import (
	"fmt"
	"slices"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// stateKey names a stage's input partition.
type stateKey struct {
	stage string
	input part
}

// A chain is the state records of a stage's input partition, one after the other.
type chain struct {
	stage      string
	at         pipeline.Ref
	low, next  int64
	unfinished []int64 // in order
	met        int     // unfinished records that were read
	end        int64   // behind the last record that was read
}

func (c *chain) waits(offset int64) bool {
	_, ok := slices.BinarySearch(c.unfinished, offset)
	return ok
}

// state holds a state record against the one before it. Compaction may have taken some in between: what must hold from one
// record to the next holds over several, too.
func (a *auditor) state(at pipeline.Ref, s *schemas.StageState) {
	k := stateKey{s.Stage, part{s.Topic, int32(s.Partition)}}
	name := fmt.Sprintf("%v: state of %s %s/%d", at, s.Stage, s.Topic, s.Partition)
	if want := slices.Index(pipeline.StateStages, s.Stage); want != int(at.Partition) {
		a.violate(Crash, "%s is in partition %d, its stage's is %d", name, at.Partition, want)
	}
	unfinished, err := pipeline.UnfinishedOffsets(s.LowOffset, s.NextOffset, s.Unfinished)
	if err != nil {
		a.violate(Crash, "%s: %v", name, err)
		return
	}
	oldest := s.NextOffset
	if len(unfinished) > 0 {
		oldest = unfinished[0]
	}
	if oldest != s.LowOffset {
		a.violate(Crash, "%s: low offset %d, the oldest unfinished record is %d", name, s.LowOffset, oldest)
	}
	c := a.states[k]
	if c == nil {
		c = &chain{stage: s.Stage}
		a.states[k] = c
		a.readers[k.input] = append(a.readers[k.input], c)
	} else {
		a.follows(name, c, s, unfinished)
	}
	*c = chain{stage: s.Stage, at: at, low: s.LowOffset, next: s.NextOffset, unfinished: unfinished}
}

func (a *auditor) follows(name string, before *chain, s *schemas.StageState, unfinished []int64) {
	switch {
	case s.NextOffset < before.next:
		a.violate(Crash, "%s: next offset %d, and %d before in %v: the chain has a fork", name, s.NextOffset, before.next, before.at)
	case s.LowOffset < before.low:
		a.violate(Crash, "%s: low offset %d, and %d before in %v: the chain has a fork", name, s.LowOffset, before.low, before.at)
	}
	for _, o := range unfinished {
		if o >= before.next {
			break
		}
		if !before.waits(o) {
			a.violate(Crash, "%s: offset %d is unfinished, and was finished before in %v: the chain has a fork", name, o, before.at)
			return
		}
	}
}

// taken holds a record against what its readers' states say of it.
func (a *auditor) taken(r record) {
	for _, c := range a.readers[part{r.Topic, r.Partition}] {
		c.end = r.Offset + 1
		waits := c.waits(r.Offset)
		if waits {
			c.met++
		}
		switch refused := a.refused(r.Ref, c.stage); {
		case refused && waits:
			a.violate(BadInput, "%v is in dlq and still unfinished in the state of %s, %v", r.Ref, c.stage, c.at)
		case refused || r.Value == nil || r.Offset >= c.next:
		case waits:
			a.unfinished(r, c)
		default:
			a.finished(r)
		}
	}
}

// unfinished notes a record that a stage keeps.
func (a *auditor) unfinished(r record, c *chain) {
	if r.Injected {
		return
	}
	switch v := r.Value.(type) {
	case *schemas.Trace:
		first(&a.group(groupKey{v.Eval, v.GroupID}).waitingTrace, r.Ref)
	case *schemas.SampleGroup:
		first(&a.group(groupKey{"", v.GroupID}).waitingSamples, r.Ref)
	case *schemas.Task: // waits for its rollout, however long
	default:
		a.violate(BadInput, "%v is unfinished in the state of %s, %v, which finishes such records as they come", r.Ref, c.stage, c.at)
	}
}

// finished notes what must have followed from a record that a stage no longer needs.
func (a *auditor) finished(r record) {
	switch v := r.Value.(type) {
	case *schemas.Trace:
		first(&a.group(groupKey{v.Eval, v.GroupID}).spentTrace, r.Ref)
	case *schemas.SampleGroup:
		first(&a.group(groupKey{"", v.GroupID}).spentSamples, r.Ref)
	case *schemas.Task:
		if !r.Injected {
			g := a.group(groupKey{v.Eval, v.GroupID})
			g.played = append(g.played, played{v.RolloutIndex, r.Ref})
		}
	}
}

func first(to **pipeline.Ref, ref pipeline.Ref) {
	if *to == nil {
		*to = &ref
	}
}

// unreadable holds a record that cannot be decoded to being in dlq of every stage that took it, and notes which group its
// key names.
func (a *auditor) unreadable(r record) {
	for _, c := range a.readers[part{r.Topic, r.Partition}] {
		refused := a.refused(r.Ref, c.stage)
		if r.Offset < c.next && !refused {
			a.violate(BadInput, "%v cannot be read (%v), %s has passed it, and dlq does not have it", r.Ref, r.Err, c.stage)
		}
		if eval, id, ok := pipeline.GroupOfKey(r.Key); ok && refused && r.Topic == pipeline.TopicSamples {
			a.group(groupKey{eval, id}).lost = true
		}
	}
}

// checkStates holds the newest states to speaking of records that exist.
func (a *auditor) checkStates() {
	for k, c := range a.states {
		if c.met < len(c.unfinished) {
			a.violate(Crash, "%v: %s has %d unfinished records of %s/%d, of which %d exist", c.at, k.stage, len(c.unfinished), k.input.topic, k.input.partition, c.met)
		}
		if c.next > c.end {
			a.violate(Crash, "%v: %s has read %s/%d to offset %d, the last record is before %d", c.at, k.stage, k.input.topic, k.input.partition, c.next, c.end)
		}
	}
}
