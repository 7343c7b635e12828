package sink

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
)

// A share is the part of the partitions that a sink writes: of each topic's those that are at mod of, counted from a start that is the
// topic's own, so that topics of one partition do not all fall to the same sink.
//
// It only divides the work. Where shares overlap (one of two sinks does not know yet that there are four), the chain of files says who was
// first, as ever; what is in nobody's share waits, and clean-up deletes nothing of it meanwhile.
type share struct{ at, of uint64 }

// parseShare reads "0/2" and "1/2", and takes an empty text for everything.
func parseShare(text string) (share, error) {
	if text == "" {
		return share{0, 1}, nil
	}
	first, second, _ := strings.Cut(text, "/")
	at, err1 := strconv.ParseUint(first, 10, 31)
	of, err2 := strconv.ParseUint(second, 10, 31)
	if errors.Join(err1, err2) != nil || at >= of {
		return share{}, fmt.Errorf(`sink.share = %q: which sink of how many, counted from 0, as "0/2" and "1/2"; empty for a sink that writes everything`, text)
	}
	return share{at, of}, nil
}

// has reports whether a partition is in it. The topic is named without the run's prefix.
func (s share) has(topic string, partition int32) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(topic)) // it never fails
	return (uint64(h.Sum32())+uint64(partition))%s.of == s.at
}
