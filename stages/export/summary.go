package export

import (
	"fmt"
	"strings"
)

// A Summary says what an export holds, and what was left out and why.
type Summary struct {
	Run       string `json:"run"`
	Selection Config `json:"-"`
	// Traces is how many were read, Rollouts how many of them were looked into.
	Traces   int64 `json:"traces"`
	Rollouts int64 `json:"rollouts"`
	// Left counts traces, and conversations of rollouts that were looked into, by why they were left out.
	Left map[string]int64 `json:"left_out"`
	// Missing are rollouts that are asked for and decided, and whose trace is not in the files: not yet, or it was undecodable.
	Missing int64 `json:"missing"`
	// Train and Test are conversations.
	Train int64 `json:"train"`
	Test  int64 `json:"test"`
	// Exact of them are rendered to the recorded tokens by the run's chat format, Inexact are not.
	Exact   int64 `json:"token_exact"`
	Inexact int64 `json:"token_inexact"`
}

func (s *Summary) count(split string, row Row) {
	if split == splitTest {
		s.Test++
	} else {
		s.Train++
	}
	switch exact := row.Provenance.TokenExact; {
	case exact == nil:
	case *exact:
		s.Exact++
	default:
		s.Inexact++
	}
}

func (s Summary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d conversations of %d rollouts (%d traces)", s.Train+s.Test, s.Rollouts, s.Traces)
	if s.Test > 0 {
		fmt.Fprintf(&b, ": %d to train, %d to test", s.Train, s.Test)
	}
	b.WriteByte('\n')
	for _, why := range whys {
		if n := s.Left[why]; n > 0 {
			fmt.Fprintf(&b, "  left out %8d  %s\n", n, why)
		}
	}
	if s.Missing > 0 {
		fmt.Fprintf(&b, "  missing  %8d  that are asked for are not in the files: the sink has not written them yet, or could not read them\n", s.Missing)
	}
	if n := s.Exact + s.Inexact; n > 0 {
		fmt.Fprintf(&b, "The run's chat format makes the recorded tokens of %d of %d.\n", s.Exact, n)
	}
	return b.String()
}
