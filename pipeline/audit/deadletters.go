package audit

import (
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"

	"github.com/prl-project/prl/pipeline"
)

// A letter is a record of dlq.
type letter struct {
	at    pipeline.Ref // in dlq
	stage string
	bytes uint64 // sum of those of the record it refuses
	found bool
}

// maxLetterBytes is how much of a refused record dlq keeps.
const maxLetterBytes = 8 << 20

// deadLetter notes a record of dlq. A stage may refuse a record twice, if it crashes: a reader tells by the key.
func (a *auditor) deadLetter(r record) {
	if r.Injected {
		a.count(r.Topic).Injected++
		return
	}
	source, err := sourceOf(r.Key)
	switch stage := r.Headers["prl-stage"]; {
	case err != nil:
		a.violate(BadInput, "%v: the key %q names no record: %v", r.Ref, r.Key, err)
	case stage == "":
		a.violate(BadInput, "%v does not say which stage refused %v", r.Ref, source)
	case strings.TrimSpace(r.Headers["prl-error"]) == "":
		a.violate(BadInput, "%v does not say why %s refused %v", r.Ref, stage, source)
	default:
		a.letters[source] = append(a.letters[source], letter{at: r.Ref, stage: stage, bytes: maphash.Bytes(canonSeed, r.Raw)})
	}
}

// sourceOf reads topic/partition/offset. An environment's name may hold slashes.
func sourceOf(key string) (ref pipeline.Ref, err error) {
	parts := strings.Split(key, "/")
	n := len(parts) - 2
	if n < 1 {
		return ref, fmt.Errorf("want topic/partition/offset")
	}
	partition, err := strconv.ParseInt(parts[n], 10, 32)
	if err != nil {
		return ref, err
	}
	offset, err := strconv.ParseInt(parts[n+1], 10, 64)
	return pipeline.Ref{Topic: strings.Join(parts[:n], "/"), Partition: int32(partition), Offset: offset}, err
}

// matchLetters holds what dlq says of a record against the record.
func (a *auditor) matchLetters(r record) {
	letters := a.letters[r.Ref]
	for i := range letters {
		l := &letters[i]
		if l.bytes != maphash.Bytes(canonSeed, r.Raw[:min(len(r.Raw), maxLetterBytes)]) {
			a.violate(BadInput, "%v holds other bytes than %v, which it names", l.at, r.Ref)
		}
		l.found = true
	}
}

// refused reports whether a stage refused a record.
func (a *auditor) refused(ref pipeline.Ref, stage string) bool {
	for _, l := range a.letters[ref] {
		if l.stage == stage {
			return true
		}
	}
	return false
}

func (a *auditor) checkLetters() {
	for ref, letters := range a.letters {
		for _, l := range letters {
			spec, known := pipeline.TopicOf(ref.Topic)
			if !l.found && !(known && spec.Compacted) {
				a.violate(BadInput, "%v: %s refused %v, which does not exist", l.at, l.stage, ref)
			}
		}
	}
}
