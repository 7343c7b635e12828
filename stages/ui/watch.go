package ui

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/ui/flow"
	"github.com/prl-project/prl/stages/ui/series"
)

// How far back a Watch goes when it begins: to what every rate needs, and at least so many offsets of a partition, at most
// mostBack of them.
const (
	ratesBack = 31 * time.Second
	mostBack  = 500
	statesAt  = 500 // offsets of a state's partition that are read first
)

// back is how many offsets are read whatever their age; markers of transactions are among them.
var back = map[string]int64{
	pipeline.TopicPolicies: 40, pipeline.TopicMetrics: 3000, pipeline.TopicOutcomes: 1000, pipeline.TopicEvals: 200, pipeline.TopicDLQ: 100,
	pipeline.TopicTraces: 30, pipeline.TopicEvalTraces: 30,
}

// A Watch is a run as its topics alone tell it, without files and without a page: what prl-stage --stage top shows. It follows
// them as the page does, from a little before now on.
type Watch struct {
	u     *UI
	stood []stood
}

// NewWatch watches a run; nothing is read yet.
func NewWatch(rt *pipeline.Runtime, o Options) *Watch {
	o.Live = true
	cfg := DefaultConfig()
	cfg.MaxRollouts, cfg.TailMiB = 1000, 1
	u := &UI{rt: rt, cfg: cfg, options: o, now: time.Now}
	u.model = newModel(cfg, o, u.now().Add(-ratesBack))
	return &Watch{u: u}
}

// Run reads where the run stands, calls ready, and follows it until ctx ends. Brokers that are gone later on are asked again
// and again; the sight says so.
func (w *Watch) Run(ctx context.Context, ready func()) error {
	seen := positions{}
	follow := func() error {
		from, err := w.begin(ctx, seen)
		if err != nil {
			return err
		}
		f, err := w.u.rt.FollowFrom(from, w.u.topics()...)
		if err != nil {
			return err
		}
		defer f.Close()
		w.u.begin(from)
		if err := w.load(ctx, f, seen); err != nil {
			return err
		}
		if ready != nil {
			ready()
			ready = nil
		}
		return w.u.listen(ctx, f, seen)
	}
	for {
		err := guarded(follow)
		if ctx.Err() != nil {
			return nil
		}
		if ready != nil && err != nil {
			return err
		}
		w.u.model.locked(func() { w.u.model.load.Live, w.u.model.load.Error = false, err.Error() })
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookEvery):
		}
	}
}

// begin is where following begins: a little before now, or where it was.
func (w *Watch) begin(ctx context.Context, seen positions) (positions, error) {
	u := w.u
	if err := u.ping(ctx); err != nil {
		return nil, err
	}
	if len(seen) > 0 {
		return maps.Clone(seen), nil
	}
	topics := u.topics()
	spans, err := u.rt.Spans(ctx, true, topics...)
	if err != nil {
		return nil, err
	}
	since, err := u.rt.Since(ctx, u.now().Add(-ratesBack), topics...)
	if err != nil {
		return nil, err
	}
	read, err := w.readBy(ctx, spans)
	if err != nil {
		return nil, err
	}
	from := positions{}
	for topic, parts := range spans {
		for p, span := range parts {
			at := min(since[topic][p], span.End)
			if next, known := read[topic][p]; known {
				at = min(at, next)
			}
			if topic == pipeline.TopicEnvs { // a few, which hold for good
				at = span.Start
			}
			at = min(max(at, span.End-mostBack), span.End-back[topic])
			from.raise(topic, p, max(at, span.Start))
		}
	}
	for _, s := range w.stood {
		if s.offset < from.at(pipeline.TopicState, s.partition) {
			u.model.meter.State(s.state, s.time)
		}
		if s.state.Stage == "emitter" && len(s.state.Core) > 0 {
			u.model.emitter = s.state.Core
		}
	}
	return from, nil
}

// stood is a state as it was when following began.
type stood struct {
	state     *schemas.StageState
	partition int32 // of the topic state
	offset    int64
	time      time.Time
}

// readBy is to where the slowest reader of each partition has read. It keeps the newest state of every stage and partition: it
// looks from the end of the topic on backwards, as far as it must, since a stage that stands still writes none.
func (w *Watch) readBy(ctx context.Context, spans pipeline.Spans) (positions, error) {
	u := w.u
	read := positions{}
	lower := func(topic string, p int32, next int64) {
		if at, known := read[topic][p]; !known || next < at {
			if read[topic] == nil {
				read[topic] = map[int32]int64{}
			}
			read[topic][p] = next
		}
	}
	for i, stage := range pipeline.StateStages {
		at := int32(i)
		missing := w.reads(stage, spans)
		span := spans[pipeline.TopicState][at]
		for end, size := span.End, int64(statesAt); end > span.Start && len(missing) > 0; size *= 8 {
			start := max(span.Start, end-size)
			newest := map[string]stood{}
			err := u.rt.ReadSpans(ctx, true, pipeline.Spans{pipeline.TopicState: {at: {Start: start, End: end}}}, func(r *kgo.Record) error {
				if r.Attrs.IsControl() {
					return nil
				}
				v, err := u.rt.DecodeValue(ctx, r.Value)
				if s, ok := v.(*schemas.StageState); ok && err == nil && s.Stage == stage {
					newest[fmt.Sprintf("%s/%d", s.Topic, s.Partition)] = stood{s, at, r.Offset, r.Timestamp}
				}
				return nil // what cannot be read tells nothing
			})
			if err != nil {
				return nil, fmt.Errorf("read where the stage %s stands: %w", stage, err)
			}
			for key, s := range newest {
				if !missing[key] {
					continue
				}
				delete(missing, key)
				w.stood = append(w.stood, s)
				lower(s.state.Topic, int32(s.state.Partition), s.state.NextOffset)
			}
			end = start
		}
	}
	policies := spans[pipeline.TopicPolicies][0]
	policies.Start = max(policies.Start, policies.End-back[pipeline.TopicPolicies])
	err := u.rt.ReadSpans(ctx, true, pipeline.Spans{pipeline.TopicPolicies: {0: policies}}, func(r *kgo.Record) error {
		v, err := u.rt.DecodeValue(ctx, r.Value)
		if p, ok := v.(*schemas.PolicyVersion); ok && err == nil {
			delete(read, pipeline.TopicBatches)
			for rank, next := range p.NextOffsets {
				lower(pipeline.TopicBatches, int32(rank), next)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read where the trainer stands: %w", err)
	}
	return read, nil
}

// reads are the partitions that a stage reads and that hold something, as topic/partition.
func (w *Watch) reads(stage string, spans pipeline.Spans) map[string]bool {
	set := map[string]bool{}
	for _, s := range w.u.options.Stages {
		if s.Name != stage {
			continue
		}
		for topic, parts := range spans {
			_, tasks := pipeline.EnvOfTasks(topic)
			if !slices.ContainsFunc(s.Reads, func(t string) bool { _, all := pipeline.EnvOfTasks(t); return t == topic || all && tasks }) {
				continue
			}
			for p, span := range parts {
				if span.End > span.Start {
					set[fmt.Sprintf("%s/%d", topic, p)] = true
				}
			}
		}
	}
	return set
}

// load reads to the ends of the topics, at the times of the records: rates are right from the first sight on. States come
// last, since they tell what was read of the others.
func (w *Watch) load(ctx context.Context, f *pipeline.Follower, seen positions) error {
	u := w.u
	var states []pipeline.Stamped
	feed := func(r pipeline.Stamped) {
		at := r.Time
		if now := u.now(); at.After(now) { // another machine's clock
			at = now
		}
		u.model.feed([]pipeline.Stamped{r}, at)
		seen.raise(r.Topic, r.Partition, r.Offset+1)
	}
	err := f.LoadStamped(ctx, func(recs []pipeline.Stamped) {
		for _, r := range recs {
			if r.Topic == pipeline.TopicState {
				states = append(states, r)
			} else {
				feed(r)
			}
		}
	})
	for _, r := range states {
		feed(r)
	}
	return err
}

// A Sight is the run at one time.
type Sight struct {
	Run       string           `json:"run"`
	Now       time.Time        `json:"time"`
	MaxSteps  int64            `json:"max_steps,omitempty"` // 0 where nobody said
	Version   *int64           `json:"version"`             // the newest policy version; null before the first
	Step      int64            `json:"step"`                // that was trained last
	Packed    int64            `json:"packed_step"`
	Final     bool             `json:"final"`
	Envs      []EnvSight       `json:"envs"`
	Evals     []EvalSight      `json:"evals"`
	OffPolicy *OffPolicy       `json:"off_policy"`   // null before the first step
	Open      *OpenSight       `json:"open"`         // null where the emitter has not told
	Ends      map[string]int64 `json:"ends"`         // of the newest groups that ended, by way
	DLQ       int64            `json:"dead_letters"` // as far back as was read
	Flow      flow.View        `json:"flow"`
	Notices   []Notice         `json:"notices"`
	Following bool             `json:"following"` // the brokers answer
}

// An EnvSight is an environment.
type EnvSight struct {
	Env       string    `json:"env"`
	Announced bool      `json:"announced"` // a server has told what it is
	Reward    *float64  `json:"reward"`    // mean of the newest steps; null where there is none
	Curve     []float64 `json:"curve"`     // by step, as far back as was read
}

// An EvalSight is the newest result of an eval.
type EvalSight struct {
	Eval    string   `json:"eval"`
	Version int64    `json:"version"`
	K       int      `json:"k"`
	Avg     *float64 `json:"avg"`
	Stderr  *float64 `json:"stderr"`
}

// OffPolicy is how old the samples of the newest step were.
type OffPolicy struct {
	Mean float64 `json:"mean"`
	Max  float64 `json:"max"`
}

// OpenSight is what has no outcome yet.
type OpenSight struct {
	Groups   int `json:"groups"`
	Rollouts int `json:"rollouts"`
}

// rewardSteps are those over which a reward is told, curvePoints how much of its curve.
const (
	rewardSteps = 5
	curvePoints = 200
)

// Sight says how things are.
func (w *Watch) Sight() Sight {
	u := w.u
	s := Sight{Run: u.rt.Run.Name, Now: u.now(), MaxSteps: u.options.MaxSteps, Flow: u.flowView(), Envs: []EnvSight{}, Evals: []EvalSight{}, Ends: map[string]int64{}}
	u.model.locked(func() {
		m := u.model
		s.Packed, s.DLQ, s.Following = m.run.Packed(), m.dlq.Count, m.load.Error == ""
		if v, ok := m.run.Newest(); ok {
			s.Version, s.Step, s.Final = &v.Version, v.Step, v.Final
		}
		s.Notices = m.notices(s.Flow, u.rt.Faults.Active(), s.Now)
		for _, way := range m.recent.fates {
			s.Ends[way]++
		}
		if u.options.OpenGroups != nil && m.emitter != nil {
			if groups, rollouts, err := u.options.OpenGroups(m.emitter); err == nil {
				s.Open = &OpenSight{groups, rollouts}
			}
		}
		mean, ok := m.run.Last("packer", "off_policy_mean", 1)
		most, ok2 := m.run.Last("packer", "off_policy_max", 1)
		if ok && ok2 {
			s.OffPolicy = &OffPolicy{mean, most}
		}
		w.look(&s, m.run.View(curvePoints))
	})
	return s
}

// look takes from the curves what a sight has.
func (w *Watch) look(s *Sight, v series.View) {
	rewards := map[string][]float64{}
	for _, c := range v.Curves {
		if c.Stage == "packer" && c.Name == "reward" && len(c.Y) > 0 {
			rewards[c.Labels["env"]] = c.Y
		}
	}
	names := slices.Clone(w.u.options.Envs)
	for env := range rewards {
		if !slices.Contains(names, env) {
			names = append(names, env)
		}
	}
	slices.Sort(names)
	for _, env := range names {
		e := EnvSight{Env: env, Announced: w.u.model.announced[env], Curve: rewards[env]}
		if n := len(e.Curve); n > 0 {
			sum := 0.0
			newest := e.Curve[max(0, n-rewardSteps):]
			for _, y := range newest {
				sum += y
			}
			e.Reward = new(sum / float64(len(newest)))
		}
		s.Envs = append(s.Envs, e)
	}
	for _, e := range v.Evals {
		if n := len(e.Version); n > 0 && !pipeline.EvalByHand(e.Name) {
			s.Evals = append(s.Evals, EvalSight{e.Name, e.Version[n-1], e.K, e.Avg[n-1], e.Stderr[n-1]})
		}
	}
}
