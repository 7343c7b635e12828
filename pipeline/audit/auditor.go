package audit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// An auditor is fed every record of a run, topic by topic in the order of topicsOf, and each partition in the order of its
// offsets; then the rows of the Parquet files. It keeps what it needs to hold records of other topics against, not the
// records.
type auditor struct {
	cfg    Config
	run    pipeline.RunConfig
	report Report

	topics  map[string]*TopicCount
	letters map[pipeline.Ref][]letter
	states  map[stateKey]*chain
	readers map[part][]*chain // of an input partition
	rows    map[part]*rowSums

	groups   map[groupKey]*group
	policies policies
	steps    map[int64]*step
	ranks    map[int32]*rankEnd
	lastPack packOrder
	results  map[resultKey]*schemas.EvalResult
}

// part names a partition of a topic.
type part struct {
	topic     string
	partition int32
}

type groupKey struct {
	eval string
	id   int64
}

func (k groupKey) String() string {
	if k.eval == "" {
		return fmt.Sprintf("group %d", k.id)
	}
	return fmt.Sprintf("group %s/%d", k.eval, k.id)
}

type resultKey struct {
	eval    string
	version int64
}

func newAuditor(cfg Config) *auditor {
	return &auditor{
		cfg: cfg, run: cfg.Runtime.Run, report: Report{Ended: cfg.Ended}, topics: map[string]*TopicCount{}, letters: map[pipeline.Ref][]letter{},
		states: map[stateKey]*chain{}, readers: map[part][]*chain{}, rows: map[part]*rowSums{},
		groups: map[groupKey]*group{}, steps: map[int64]*step{}, ranks: map[int32]*rankEnd{}, results: map[resultKey]*schemas.EvalResult{},
	}
}

func (a *auditor) violate(inv Invariant, format string, args ...any) {
	a.report.violate(inv, format, args...)
}

func (a *auditor) count(topic string) *TopicCount {
	c := a.topics[topic]
	if c == nil {
		c = &TopicCount{Topic: topic}
		a.topics[topic] = c
	}
	return c
}

func (a *auditor) group(k groupKey) *group {
	g := a.groups[k]
	if g == nil {
		g = &group{key: k}
		a.groups[k] = g
	}
	return g
}

// add takes the next record.
func (a *auditor) add(r record) {
	c := a.count(r.Topic)
	c.Records++
	a.keepRow(r)
	if r.Topic == pipeline.TopicDLQ {
		a.deadLetter(r)
		return
	}
	a.matchLetters(r)
	if r.Injected {
		c.Injected++
	}
	if r.Value == nil {
		c.Unreadable++
		a.unreadable(r)
		a.taken(r)
		return
	}
	switch v := r.Value.(type) {
	case *schemas.StageState:
		a.state(r.Ref, v)
	case *schemas.Task:
		a.task(r, v)
	case *schemas.Trace:
		a.trace(r, v)
	case *schemas.SampleGroup:
		a.sampleGroup(r, v)
	case *schemas.GroupOutcome:
		a.outcome(r, v)
	case *schemas.MicroBatch:
		a.microBatch(r, v)
	case *schemas.PolicyVersion:
		a.policy(r, v)
	case *schemas.EvalResult:
		a.evalResult(r, v)
	}
	a.taken(r)
}

// evalResult holds a result to being the only one of its eval and version. Of an eval by hand a further one may come as
// long as rollouts had failed, or with more examples.
func (a *auditor) evalResult(r record, v *schemas.EvalResult) {
	k := resultKey{v.Eval, v.Version}
	again := pipeline.EvalByHand(v.Eval) && a.results[k] != nil && (a.results[k].Errored > 0 || a.results[k].Examples < v.Examples)
	if a.results[k] != nil && !again && !r.Injected {
		a.violate(OneOutcome, "%v: eval %s of version %d has a second result", r.Ref, v.Eval, v.Version)
	}
	a.results[k] = v
}

// finish checks what only the whole shows, and gives the report.
func (a *auditor) finish() *Report {
	a.checkLetters()
	a.checkStates()
	a.checkNumbers()
	for _, k := range sortedGroups(a.groups) {
		a.checkGroup(a.groups[k])
	}
	a.checkSteps()
	a.checkPolicies()
	a.checkRows()
	a.fillCounts()
	slices.SortStableFunc(a.report.Violations, func(x, y Violation) int { return strings.Compare(string(x.Invariant), string(y.Invariant)) })
	return &a.report
}
