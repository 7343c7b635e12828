package ui

import (
	"sync"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/ui/flow"
	"github.com/prl-project/prl/stages/ui/index"
	"github.com/prl-project/prl/stages/ui/series"
)

// model is what is known of the run.
type model struct {
	rollouts *index.Index
	tail     *tail

	mu        sync.Mutex
	run       *series.Run
	meter     *flow.Meter
	load      Loading
	recent    recent
	policy    *schemas.PolicyVersion // the newest
	dlq       deadLetters
	told      told
	emitter   []byte          // its newest state
	announced map[string]bool // environments of which a server has told
	rev       int64           // grows with whatever can be seen
}

// Loading says how much of the run is known.
type Loading struct {
	Live       bool   `json:"live"`                // the topics are followed
	Files      int    `json:"files"`               // of those that there are
	Loaded     int    `json:"loaded"`              //
	Skipped    int    `json:"skipped,omitempty"`   // files with older rollouts than can be held
	Failed     string `json:"failed,omitempty"`    // the last file that could not be read
	Error      string `json:"error,omitempty"`     // why it does not go on
	Following  bool   `json:"following,omitempty"` // reads to the ends of the topics, having been through the files
	LastRecord string `json:"last_record,omitempty"`
}

// recent is what the newest outcomes and traces tell of how things go.
type recent struct {
	fates   []string // of the newest groups that ended, of training
	errors  []string // of the newest rollouts; empty for those that have none
	outcome time.Time
	trace   time.Time
	skipped int64 // newest step whose gradient was not finite
}

const recently = 200

// maxEnvs bounds the environments that are remembered.
const maxEnvs = 1000

func newModel(cfg Config, o Options, now time.Time) *model {
	return &model{
		rollouts: index.New(cfg.MaxRollouts), tail: &tail{limit: int64(cfg.TailMiB) << 20}, run: series.New(),
		meter: flow.New(o.Stages, now), announced: map[string]bool{},
	}
}

// feed takes records that have just come.
func (m *model) feed(recs []pipeline.Stamped, now time.Time) {
	if len(recs) == 0 {
		return
	}
	var outcomes []*schemas.GroupOutcome
	var rollouts []index.Rollout
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range recs {
		m.meter.Record(r.Record, now)
		if r.Topic == pipeline.TopicDLQ {
			m.dlq.came(r.Offset, r.Refused)
			continue
		}
		switch v := r.Value.(type) {
		case *schemas.Trace:
			rollouts = append(rollouts, rolloutOf(r.Ref, v, now))
			m.tail.trace(rollouts[len(rollouts)-1].ID, v)
			m.recent.errors = last(m.recent.errors, rollouts[len(rollouts)-1].Error)
			m.recent.trace = now
		case *schemas.GroupOutcome:
			outcomes = append(outcomes, v)
			if v.Eval == "" {
				m.recent.fates = last(m.recent.fates, way(v))
				m.recent.outcome = now
			}
		case *schemas.SampleGroup:
			m.tail.group(v)
		case *schemas.MicroBatch:
			m.tail.batch(v)
		case *schemas.StageState:
			if v.Stage == "emitter" && len(v.Core) > 0 {
				m.emitter = v.Core
			}
			m.told.lives(v.Stage, r.Time)
		case *schemas.EnvInfo:
			if len(m.announced) < maxEnvs {
				m.announced[v.Env] = true
			}
		case *schemas.PolicyVersion:
			m.told.trained(r.Time)
			m.small(v)
		default:
			m.small(v)
		}
	}
	m.rollouts.Add(rollouts...)
	m.rollouts.Outcome(outcomes...)
	m.run.Outcomes(outcomes)
	m.rev++
}

// small takes a record of a topic that has few; its own lock is held.
func (m *model) small(v schemas.Record) {
	switch v := v.(type) {
	case *schemas.MetricPoint:
		m.run.Metric(v)
		m.told.point(v)
	case *schemas.EvalResult:
		m.run.Eval(v)
	case *schemas.PolicyVersion:
		m.run.Policy(v)
		if m.policy == nil || v.Version >= m.policy.Version {
			m.policy = v
		}
		if v.Skipped {
			m.recent.skipped = max(m.recent.skipped, v.Step)
		}
	}
}

func way(o *schemas.GroupOutcome) string {
	if o.Filter != "" {
		return o.Fate + ":" + o.Filter
	}
	return o.Fate
}

// last keeps the newest.
func last(list []string, s string) []string {
	if len(list) >= recently {
		list = append(list[:0], list[len(list)-recently+1:]...)
	}
	return append(list, s)
}

// rolloutOf is a trace as the index wants it.
func rolloutOf(ref pipeline.Ref, t *schemas.Trace, now time.Time) index.Rollout {
	r := index.Rollout{
		ID: index.ID{Eval: ref.Topic == pipeline.TopicEvalTraces, Partition: ref.Partition, Offset: ref.Offset}, Env: t.Env, Eval: t.Eval, Group: t.GroupID, Task: t.TaskIndex,
		Rollout: t.RolloutIndex, Attempt: t.Attempt, Time: now, Reward: t.Reward, Start: t.PolicyStart, End: t.PolicyEnd,
		Seconds: (t.Timing.SetupMs + t.Timing.GenerationMs + t.Timing.EnvironmentMs + t.Timing.ScoringMs) / 1000,
		Stop:    t.StopReason, Policy: t.Policy, Truncated: t.Truncated,
	}
	for i := range t.Nodes {
		r.Tokens += len(t.Nodes[i].Mask)
	}
	if len(t.Errors) > 0 {
		r.Error = t.Errors[0].Type + ": " + t.Errors[0].Message
	}
	return r
}

// locked gives what needs the lock.
func (m *model) locked(do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	do()
}
