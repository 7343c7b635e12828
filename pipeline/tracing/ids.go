package tracing

import (
	"crypto/sha256"
	"encoding/binary"

	"go.opentelemetry.io/otel/trace"
)

// A Rollout names a rollout of a run. A negative index is the group as a whole.
type Rollout struct {
	Eval  string // name of the eval; empty for training
	Group int64
	Index int
}

// group is the rollout's group.
func (r Rollout) group() Rollout { return Rollout{r.Eval, r.Group, -1} }

// An identity is what all ids of a run are made from.
type identity [sha256.Size]byte

func newIdentity(run string) identity { return sha256.Sum256([]byte("prl\x00" + run)) }

// Kinds of traces, in what their ids are made from.
const (
	ofRollout = 'r'
	ofStep    = 's'
)

func (i identity) rollout(r Rollout) trace.TraceID {
	var room [128]byte
	b := append(append(room[:0], i[:]...), ofRollout)
	b = binary.BigEndian.AppendUint64(b, uint64(r.Group))
	b = binary.BigEndian.AppendUint64(b, uint64(int64(r.Index)))
	return traceID(append(b, r.Eval...))
}

func (i identity) step(s int64) trace.TraceID {
	var room [128]byte
	return traceID(binary.BigEndian.AppendUint64(append(append(room[:0], i[:]...), ofStep), uint64(s)))
}

// traceID is one that is valid, which all zeros is not.
func traceID(b []byte) (id trace.TraceID) {
	sum := sha256.Sum256(b)
	copy(id[:], sum[:])
	id[len(id)-1] |= 1
	return id
}

// spanID is the id of a span of a trace by its name and what tells it from others of that name.
func spanID(of trace.TraceID, under trace.SpanID, name string, which ...int) (id trace.SpanID) {
	var room [128]byte
	b := append(append(append(room[:0], of[:]...), under[:]...), name...)
	for _, n := range which {
		b = binary.BigEndian.AppendUint64(b, uint64(int64(n)))
	}
	sum := sha256.Sum256(b)
	copy(id[:], sum[:])
	id[len(id)-1] |= 1
	return id
}

// drawn reports whether a group is among a share of all.
func (i identity) drawn(r Rollout, ratio float64) bool {
	switch {
	case ratio >= 1:
		return true
	case ratio <= 0:
		return false
	}
	id := i.rollout(r.group())
	return float64(binary.BigEndian.Uint64(id[:8])>>11)/(1<<53) < ratio
}
