package pipeline

import (
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/schemas"
)

// A Meter counts, for Prometheus, what a stage's core decides. Cores have no metrics: a meter hears of the records that are
// durable, so that what an aborted transaction decided is counted once, when it is decided again. Its methods are called one
// at a time.
type Meter interface {
	// Committed hears of every record the core has emitted, once its transaction is committed.
	Committed(e Emission)
	// Read takes the figures of the core of the one partition, about once a second; nil where that is another instance's.
	Read(core Core)
}

// Metrics counts what the shells do; every stage has them.
type Metrics struct {
	Records      *prometheus.CounterVec   // by stage, topic
	Emitted      *prometheus.CounterVec   // by stage, topic
	DeadLetters  *prometheus.CounterVec   // by stage, topic
	PassedOver   *prometheus.CounterVec   // by stage, why
	Transactions *prometheus.CounterVec   // by stage, result
	Commit       *prometheus.HistogramVec // by stage
	Restore      *prometheus.HistogramVec // by stage
	Restarts     *prometheus.CounterVec   // by stage
	Waited       *prometheus.CounterVec   // by stage

	version, final *prometheus.GaugeVec // by stage
	topics         topicGauges
	broker         *brokerMetrics
}

// NewMetrics registers the shells' metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	in := &Instruments{Registry: reg}
	seconds := prometheus.ExponentialBuckets(0.001, 2, 15)
	m := &Metrics{
		Records:      in.Counter("prl_stage_records_total", "Records consumed; of a stage with transactions, in committed ones.", "stage", "topic"),
		Emitted:      in.Counter("prl_stage_emitted_records_total", "Records written in committed transactions.", "stage", "topic"),
		DeadLetters:  in.Counter("prl_stage_dead_letters_total", "Records that the stage could not use and sent to dlq, by the topic they came from.", "stage", "topic"),
		PassedOver:   in.Counter("prl_stage_passed_over_records_total", "Records that changed nothing, by why.", "stage", "why"),
		Transactions: in.Counter("prl_stage_transactions_total", "Transactions by result: committed or aborted.", "stage", "result"),
		Commit:       in.Histogram("prl_stage_transaction_seconds", "From begin to end of a committed transaction.", seconds, "stage"),
		Restore:      in.Histogram("prl_stage_restore_seconds", "Building a core from its state and unfinished records.", seconds, "stage"),
		Restarts:     in.Counter("prl_stage_restarts_total", "Times that the stage threw its session away and started over, within its process.", "stage"),
		Waited:       in.Counter("prl_stage_wait_seconds_total", "Time in which the stage waited for records and had nothing else to do.", "stage"),
		version:      in.Gauge("prl_stage_policy_version", "Newest policy version that the stage knows of.", "stage"),
		final:        in.Gauge("prl_stage_policy_final", "1 once the stage knows the run's final policy version, else 0.", "stage"),
		broker:       newBrokerMetrics(in),
	}
	m.topics.register(in)
	if err := in.Err(); err != nil {
		panic(err) // two of one name in the table of this file
	}
	return m
}

// Policy says that a stage has read, or written, policy versions.
func (m *Metrics) Policy(stage string, versions ...*schemas.PolicyVersion) {
	if m == nil {
		return
	}
	for _, v := range versions {
		m.version.WithLabelValues(stage).Set(float64(v.Version))
		final := 0.0
		if v.Final {
			final = 1
		}
		m.final.WithLabelValues(stage).Set(final)
	}
}

// policies is Policy for those among records.
func (m *Metrics) policies(stage string, recs []Record) {
	for _, r := range recs {
		if v, ok := r.Value.(*schemas.PolicyVersion); ok {
			m.Policy(stage, v)
		}
	}
}

// Refused counts records that are in dlq for good.
func (m *Metrics) Refused(stage string, dead []*kgo.Record) {
	for _, r := range dead {
		topic, _, _ := strings.Cut(string(r.Key), "/")
		m.DeadLetters.WithLabelValues(stage, topic).Inc()
	}
}

// Lag says, by partition, how far a stage is behind in a topic; nil where it reads none of it. It replaces what was said of the
// two before.
func (m *Metrics) Lag(stage, topic string, lag map[int32]int64) {
	if lag == nil {
		m.topics.set(stage, topic, nil)
		return
	}
	f := topicFigures{topic: topic, unfinished: -1}
	for _, n := range lag {
		f.lag += max(0, n)
	}
	m.topics.set(stage, topic, []topicFigures{f})
}

// Behind is how many offsets of a fetched partition lie at or above position.
func Behind(ft kgo.FetchTopicPartition, position int64) int64 {
	return max(0, ft.LastStableOffset-position)
}

// lookEvery is the least time between two looks at the figures of cores.
const lookEvery = time.Second

// look takes the figures of the cores.
func (p *Processor) look(now time.Time) {
	if now.Sub(p.looked).Abs() < lookEvery {
		return
	}
	p.looked = now
	units := p.owned()
	list := make([]topicFigures, len(p.cfg.Inputs))
	for i, topic := range p.cfg.Inputs {
		list[i].topic = topic
		for _, u := range units {
			in := u.input(topic)
			list[i].unfinished += int64(len(in.set.open))
			list[i].lag += max(0, in.end-in.set.next)
		}
	}
	p.rt.Metrics.topics.set(p.cfg.Stage, p.cfg.Group, list)
	if p.cfg.Meter == nil {
		return
	}
	if len(units) == 0 {
		p.cfg.Meter.Read(nil)
	}
	for _, u := range units {
		p.cfg.Meter.Read(u.core)
	}
}

// lookAway forgets the figures of the cores: their partitions may be another instance's soon.
func (p *Processor) lookAway() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.looked = time.Time{}
	p.rt.Metrics.topics.set(p.cfg.Stage, p.cfg.Group, nil)
	if p.cfg.Meter != nil {
		p.cfg.Meter.Read(nil)
	}
}

// topicFigures are those of the partitions of a topic that are this process's now; -1 for what its stage does not have.
type topicFigures struct {
	topic           string
	unfinished, lag int64
}

// topicGauges are the figures of all shells of a process.
type topicGauges struct {
	mu sync.Mutex
	by map[shellKey][]topicFigures
}

// A shellKey is a shell of a process: an environment server has one for each environment.
type shellKey struct{ stage, group string }

func (g *topicGauges) set(stage, group string, list []topicFigures) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.by == nil {
		g.by = map[shellKey][]topicFigures{}
	}
	g.by[shellKey{stage, group}] = list
}

func (g *topicGauges) register(in *Instruments) {
	labels := []string{"stage", "topic"}
	each := func(figure func(topicFigures) int64) func(set func(float64, ...string)) {
		return func(set func(float64, ...string)) {
			g.mu.Lock()
			by := maps.Clone(g.by)
			g.mu.Unlock()
			for key, list := range by {
				for _, f := range list {
					if n := figure(f); n >= 0 {
						set(float64(n), key.stage, f.topic)
					}
				}
			}
		}
	}
	in.Register(
		NewGauges("prl_stage_unfinished_records", "Records fed to a core and not finished.", labels,
			each(func(f topicFigures) int64 { return f.unfinished })),
		NewGauges("prl_stage_lag_records", "Offsets of a topic that the stage has not read, as its newest fetch said; the markers of transactions count: one may be left of a partition that is read to its end.", labels,
			each(func(f topicFigures) int64 { return f.lag })),
	)
}
