package audit

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// An Invariant is the name DESIGN gives what must always hold: I1 to I8.
type Invariant string

// The invariants a log can break.
const (
	OneOutcome     Invariant = "I1" // every emitted group has one outcome
	TrainedOnce    Invariant = "I2" // no sample in two steps, nothing acknowledged lost
	Staleness      Invariant = "I3" // the bound on off-policy steps
	Crash          Invariant = "I4" // what crashes must not leave behind: gaps and forks
	BadInput       Invariant = "I5" // every record is taken, waits, or is in dlq with its reason
	Determinism    Invariant = "I6" // the log alone decides advantages and batches
	TokenExactness Invariant = "I7" // what is trained on is what was sampled
	NoEnvironment  Invariant = "I8" // tasks survive as they are
)

var invariants = []Invariant{OneOutcome, TrainedOnce, Staleness, Crash, BadInput, Determinism, TokenExactness, NoEnvironment}

// A Violation is one place where an invariant does not hold.
type Violation struct {
	Invariant Invariant
	Text      string
}

func (v Violation) String() string { return string(v.Invariant) + ": " + v.Text }

// maxTold bounds the violations of one invariant that are told one by one; all are counted.
const maxTold = 20

// A TopicCount is what a topic holds, and what of it is in Parquet files.
type TopicCount struct {
	Topic      string // without the run's prefix
	Records    int64
	Unreadable int64 // records that cannot be decoded, part of Records
	Injected   int64 // records that no stage wrote, part of Records
	Rows       int64 // in Parquet files; 0 where they were not looked at
}

// A Report is what an audit found.
type Report struct {
	// Ended is Config.Ended: nothing may be missing.
	Ended  bool
	Topics []TopicCount
	// Groups and Rollouts of training were emitted; EvalGroups of evals.
	Groups, Rollouts, EvalGroups int64
	// Repeated traces came for a rollout that had one without error already, which is allowed.
	Repeated int64
	// Packed groups are in Steps steps, as Samples samples of Tokens trained tokens.
	Packed, Steps, Samples, Tokens int64
	// Versions of the policy were published.
	Versions int64
	// Count is the number of violations by invariant.
	Count map[Invariant]int64
	// Violations are the first ones of every invariant.
	Violations []Violation
}

func (r *Report) violate(inv Invariant, format string, args ...any) {
	if r.Count == nil {
		r.Count = map[Invariant]int64{}
	}
	r.Count[inv]++
	if r.Count[inv] <= maxTold {
		r.Violations = append(r.Violations, Violation{inv, fmt.Sprintf(format, args...)})
	}
}

// Total is the number of violations.
func (r *Report) Total() (n int64) {
	for _, c := range r.Count {
		n += c
	}
	return n
}

// String is a table for people: records by topic, what was trained, violations by invariant and one by one.
func (r *Report) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "topic\trecords\tunreadable\tinjected\tParquet rows\t\n")
	for _, t := range r.Topics {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t\n", t.Topic, t.Records, t.Unreadable, t.Injected, t.Rows)
	}
	w.Flush() //nolint:errcheck // a strings.Builder takes everything
	fmt.Fprintf(&b, "\n%d groups of %d rollouts (%d traces repeated), %d packed as %d samples of %d trained tokens in %d steps; %d eval groups; %d policy versions\n",
		r.Groups, r.Rollouts, r.Repeated, r.Packed, r.Samples, r.Tokens, r.Steps, r.EvalGroups, r.Versions)
	if !r.Ended {
		b.WriteString("the run has not ended: what its last records have led to may still be missing\n")
	}
	fmt.Fprintf(&b, "violations: %d", r.Total())
	for _, inv := range invariants {
		fmt.Fprintf(&b, "  %s %d", inv, r.Count[inv])
	}
	b.WriteByte('\n')
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "  %v\n", v)
	}
	return b.String()
}
