// Package flow measures how records move through the stages of a run, from the topics alone: what each stage has not read,
// what it works on, how much goes through it, and which of them the others wait for. It does no I/O, has no clock and is not
// safe for concurrent use.
package flow

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// A Stage is a row of the flow, as far as a picture needs it.
type Stage struct {
	Name   string   `json:"name"`
	Does   string   `json:"does"`
	Reads  []string `json:"reads"`
	Tables []string `json:"tables"`
	Writes []string `json:"writes"`
}

const (
	window     = 30 * time.Second // over which rates are measured
	maxOffsets = 8192             // of a partition; what lies before is counted by its offsets
)

// A Meter measures a run. Records are fed to it in the order of each partition.
type Meter struct {
	Stages []Stage

	began     time.Time
	topics    map[string]*topic
	positions map[positionKey]*position
	trained   []int64 // next offset of each rank
	sampled   rate    // tokens
	times     times
}

type topic struct {
	partitions map[int32]*log
	rate       rate
	total      int64
}

// log is the newest offsets of a partition.
type log struct {
	base    int64 // before it nothing was seen
	offsets []int64
}

type positionKey struct {
	stage, topic string
	partition    int32
}

type position struct {
	next        int64
	working     int
	instance    string
	concurrency int
	at          time.Time
	rate        rate
}

// times are the moving sums of what rollouts spend their time on.
type times struct{ generation, environment, rest float64 }

// New is a meter that begins now.
func New(stages []Stage, now time.Time) *Meter {
	return &Meter{Stages: stages, began: now, topics: map[string]*topic{}, positions: map[positionKey]*position{}}
}

// Begin says that a partition is fed from an offset on.
func (m *Meter) Begin(topicName string, partition int32, offset int64) {
	l := m.log(topicName, partition)
	l.base, l.offsets = offset, nil
}

func (m *Meter) topic(name string) *topic {
	t := m.topics[name]
	if t == nil {
		t = &topic{partitions: map[int32]*log{}}
		m.topics[name] = t
	}
	return t
}

func (m *Meter) log(name string, partition int32) *log {
	t := m.topic(name)
	l := t.partitions[partition]
	if l == nil {
		l = &log{}
		t.partitions[partition] = l
	}
	return l
}

// Record takes a record of a topic.
func (m *Meter) Record(r pipeline.Record, now time.Time) {
	l := m.log(r.Topic, r.Partition)
	l.offsets = append(l.offsets, r.Offset)
	if len(l.offsets) > 2*maxOffsets {
		l.offsets = slices.Clone(l.offsets[maxOffsets:])
		l.base = l.offsets[0]
	}
	t := m.topic(r.Topic)
	t.total++
	t.rate.add(now, 1)
	switch v := r.Value.(type) {
	case *schemas.StageState:
		m.state(v, now)
	case *schemas.PolicyVersion:
		m.trained = v.NextOffsets
	case *schemas.Trace:
		for i := range v.Nodes {
			for _, b := range v.Nodes[i].Mask {
				m.tokens(int64(b&1), now)
			}
		}
		m.spent(v.Timing)
	}
}

func (m *Meter) tokens(n int64, now time.Time) {
	if n > 0 {
		m.sampled.add(now, n)
	}
}

// spent forgets slowly, so that it tells of the last hundred rollouts or so.
func (m *Meter) spent(t schemas.Timing) {
	const keep = 0.99
	for _, ms := range []float64{t.GenerationMs, t.EnvironmentMs, t.SetupMs, t.ScoringMs} {
		if !(ms >= 0 && ms < 1e12) { // whatever else a record holds, NaN among it
			return
		}
	}
	m.times.generation = keep*m.times.generation + t.GenerationMs
	m.times.environment = keep*m.times.environment + t.EnvironmentMs
	m.times.rest = keep*m.times.rest + t.SetupMs + t.ScoringMs
}

// State takes a state record from before the meter began.
func (m *Meter) State(s *schemas.StageState, at time.Time) { m.state(s, at) }

func (m *Meter) state(s *schemas.StageState, now time.Time) {
	key := positionKey{s.Stage, s.Topic, int32(s.Partition)}
	p := m.positions[key]
	if p == nil {
		if len(m.positions) >= maxOffsets {
			return
		}
		p = &position{next: s.NextOffset}
		m.positions[key] = p
	}
	if l := m.log(s.Topic, int32(s.Partition)); s.NextOffset > p.next {
		p.rate.add(now, int64(l.from(p.next)-l.from(s.NextOffset)))
	}
	p.next, p.instance, p.concurrency, p.at = s.NextOffset, s.Instance, s.Concurrency, now
	if open, err := pipeline.UnfinishedOffsets(s.LowOffset, s.NextOffset, s.Unfinished); err == nil {
		p.working = len(open)
	}
}

// from counts the records at or behind an offset, as far as they were seen.
func (l *log) from(offset int64) int {
	n := len(l.offsets) - sort.Search(len(l.offsets), func(i int) bool { return l.offsets[i] >= offset })
	if offset < l.base {
		n += int(l.base - offset) // markers of transactions among them
	}
	return n
}

// A View is a run at one time.
type View struct {
	Stages     []StageView      `json:"stages"`
	Topics     map[string]Topic `json:"topics"` // tasks of all environments are one
	Tokens     float64          `json:"tokens_per_second"`
	Generation float64          `json:"generation_share"` // of a rollout's time, that it waits for the model
	Slow       Bottleneck       `json:"bottleneck"`
}

// A StageView is a stage at one time.
type StageView struct {
	Stage
	Unread    int            `json:"unread"`           // records it has not read
	Working   int            `json:"working"`          // records it has read and not finished
	Rate      float64        `json:"rate"`             // records it reads a second
	Instances int            `json:"instances"`        // processes that have told of themselves
	Places    int            `json:"places,omitempty"` // rollouts all its processes run at a time
	Quiet     float64        `json:"quiet,omitempty"`  // seconds since it last told of itself
	Behind    map[string]int `json:"behind,omitempty"` // unread records by topic
}

// A Topic is a topic at one time.
type Topic struct {
	Rate  float64 `json:"rate"`  // records a second
	Total int64   `json:"total"` // records since the page began to look
}

// family is the name under which the topics of a record are one.
func family(name string) string {
	if _, ok := pipeline.EnvOfTasks(name); ok {
		return "tasks"
	}
	return name
}

// View says how things are.
func (m *Meter) View(now time.Time) View {
	v := View{Topics: map[string]Topic{}, Tokens: m.sampled.perSecond(m.began, now)}
	for name, t := range m.topics {
		f := v.Topics[family(name)]
		f.Rate += t.rate.perSecond(m.began, now)
		f.Total += t.total
		v.Topics[family(name)] = f
	}
	if all := m.times.generation + m.times.environment + m.times.rest; all > 0 {
		v.Generation = m.times.generation / all
	}
	for _, s := range m.Stages {
		v.Stages = append(v.Stages, m.stage(s, now))
	}
	return v
}

func (m *Meter) stage(s Stage, now time.Time) StageView {
	v := StageView{Stage: s, Behind: map[string]int{}}
	places := map[string]int{}
	var latest time.Time
	for key, p := range m.positions {
		if key.stage != s.Name {
			continue
		}
		v.Behind[family(key.topic)] += m.log(key.topic, key.partition).from(p.next)
		v.Working += p.working
		v.Rate += p.rate.perSecond(m.began, now)
		places[p.instance] = max(places[p.instance], p.concurrency)
		if p.at.After(latest) {
			latest = p.at
		}
	}
	if s.Name == "trainer" {
		for rank, next := range m.trained {
			v.Behind[pipeline.TopicBatches] += m.log(pipeline.TopicBatches, int32(rank)).from(next)
		}
		v.Rate = m.topic(pipeline.TopicPolicies).rate.perSecond(m.began, now)
	}
	for _, n := range v.Behind {
		v.Unread += n
	}
	v.Instances = len(places)
	for _, n := range places {
		v.Places += n
	}
	if !latest.IsZero() {
		v.Quiet = max(0, now.Sub(latest).Seconds())
	}
	return v
}

// rate counts by second.
type rate struct {
	seconds [int(window/time.Second) + 1]int64
	at      int64 // Unix second of the newest
}

func (r *rate) add(now time.Time, n int64) {
	second := now.Unix()
	r.move(second)
	if second > r.at-int64(len(r.seconds)) && second >= 0 { // what is older is forgotten
		r.seconds[second%int64(len(r.seconds))] += n
	}
}

// move forgets what is too old.
func (r *rate) move(to int64) {
	if to-r.at >= int64(len(r.seconds)) {
		r.seconds = [len(r.seconds)]int64{}
		r.at = max(r.at, to)
	}
	for r.at < to {
		r.at++
		r.seconds[r.at%int64(len(r.seconds))] = 0
	}
}

// perSecond is the rate over the window, or since the beginning where that was later. The second that has begun is left out.
func (r *rate) perSecond(began, now time.Time) float64 {
	r.move(now.Unix())
	sum := int64(0)
	for i, n := range r.seconds {
		if int64(i) != r.at%int64(len(r.seconds)) {
			sum += n
		}
	}
	over := min(window, now.Truncate(time.Second).Sub(began)).Seconds()
	return float64(sum) / max(1, over)
}

// Facts are what a bottleneck is told by beside the view.
type Facts struct {
	TrainerWait float64 // share of the last steps' time in which the trainer waited for a batch; NaN where that is not known
	Packed      int64   // newest step that was packed
	Trained     int64   // newest step that was trained
	Ended       bool
}

// A Bottleneck is the stage that the others wait for.
type Bottleneck struct {
	Stage string `json:"stage,omitempty"` // empty where none can be told
	Why   string `json:"why,omitempty"`
}

// order is the stages that read what grows without the trainer.
var order = []string{"eval", "emitter", "envserver", "scorer", "packer"}

func (v View) find(name string) StageView {
	i := slices.IndexFunc(v.Stages, func(s StageView) bool { return s.Name == name })
	if i < 0 {
		return StageView{}
	}
	return v.Stages[i]
}

// behind are the stages that have much to read, in the order of the flow; the worst one first.
func (v View) behind() []StageView {
	const enough = 5.0 // seconds of work
	var list []StageView
	for _, name := range order {
		s := v.find(name)
		if s.Unread > 200 && float64(s.Unread) > enough*s.Rate {
			list = append(list, s)
		}
	}
	slices.SortStableFunc(list, func(a, b StageView) int { return cmp.Compare(b.Unread, a.Unread) })
	return list
}
