package pipeline

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/schemas"
)

// figures sums the samples of a registry by metric; want are labels that count, as name=value.
func figures(t *testing.T, reg prometheus.Gatherer, want ...string) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			counts := true
			for _, w := range want {
				counts = counts && strings.Contains(" "+strings.Join(labels, " ")+" ", " "+w+" ")
			}
			if counts {
				sums[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sums
}

// counts is a meter.
type counts struct {
	samples int
	core    Core
	read    int
}

func (c *counts) Committed(e Emission) {
	if _, ok := e.Value.(*schemas.SampleGroup); ok {
		c.samples++
	}
}

func (c *counts) Read(core Core) { c.core = core; c.read++ }

// TestAbortCountsNothing lets transactions fail, and counts what was committed.
func TestAbortCountsNothing(t *testing.T) {
	rt, cluster := testRuntime(t)
	reg := prometheus.NewRegistry()
	rt.Metrics = NewMetrics(reg)
	fired := fault{kmsg.TxnOffsetCommit, kerr.UnknownServerError, 1, 2}.inject(t, rt, cluster)
	cl, meter, cfg := client(t, rt), &counts{}, toyConfig()
	cfg.Meter = meter
	dead := &kgo.Record{Topic: rt.TopicName(TopicTraces), Partition: 0, Value: []byte("no trace")}
	if err := cl.ProduceSync(t.Context(), dead).FirstErr(); err != nil {
		t.Fatal(err)
	}
	produce(t, rt, pairsOf(0, 9)...)
	stop := start(t, rt, cfg)
	committed(t, rt, TopicSamples, 10)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if fired() == 0 {
		t.Fatal("no transaction has failed")
	}
	if meter.samples != 10 {
		t.Errorf("%d samples are counted, 10 are committed", meter.samples)
	}
	if meter.core != nil || meter.read < 2 {
		t.Errorf("the core was read %d times, the last time %v: none is left after a stop", meter.read, meter.core)
	}
	got := figures(t, reg, "stage="+cfg.Stage)
	for name, want := range map[string]float64{
		"prl_stage_records_total": 21, "prl_stage_emitted_records_total": 10, "prl_stage_dead_letters_total": 1,
		"prl_stage_lag_records": 0, "prl_stage_unfinished_records": 0, "prl_stage_restarts_total": float64(fired()),
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if got["prl_stage_wait_seconds_total"] <= 0 {
		t.Error("it has waited for nothing")
	}
	if got := figures(t, reg); got["prl_broker_answered_timestamp_seconds"] == 0 || got["prl_broker_produce_seconds"] == 0 || got["prl_broker_sent_bytes_total"] == 0 {
		t.Errorf("of the brokers is seen %v", got)
	}
}

// TestLagIsSeen leaves a group open, and offsets unread.
func TestLagIsSeen(t *testing.T) {
	p := &Processor{rt: &Runtime{}, cfg: toyConfig(), units: map[int32]*unit{}}
	reg := prometheus.NewRegistry()
	p.rt.Metrics = NewMetrics(reg)
	for n := range int32(2) {
		set := newUnfinished(7, []int64{3, 5})
		p.units[n] = &unit{partition: n, owned: n == 0, inputs: []*input{{topic: p.cfg.Inputs[0], set: set, end: 20}}}
	}
	p.look(p.looked.Add(lookEvery))
	if got := figures(t, reg); got["prl_stage_lag_records"] != 13 || got["prl_stage_unfinished_records"] != 2 {
		t.Errorf("of one partition of two: %v", got)
	}
	p.lookAway()
	if got := figures(t, reg); got["prl_stage_lag_records"] != 0 {
		t.Errorf("of none: %v", got)
	}
}

// TestWordsAreBounded gives labels what hostile environments say.
func TestWordsAreBounded(t *testing.T) {
	var w Words
	if got := w.Of("timed_out"); got != "timed_out" {
		t.Errorf("%q", got)
	}
	long := strings.Repeat("x", 1<<20)
	if got := w.Of(long); len(got) != mostWord {
		t.Errorf("a word of %d bytes", len(got))
	}
	if got := w.Of("a\xff\xfeb"); got != "ab" {
		t.Errorf("%q", got)
	}
	seen := map[string]bool{}
	for i := range 10 * mostWords {
		seen[w.Of(strings.Repeat("a", i%mostWord)+string(rune('a'+i%26)))] = true
	}
	if len(seen) > mostWords || !seen[OtherWord] || w.Of("timed_out") != "timed_out" {
		t.Errorf("%d words, and the first is %q", len(seen), w.Of("timed_out"))
	}
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "x_total"}, []string{"word"})
	vec.WithLabelValues(w.Of("\xff")) // which would panic
	gauges := NewGauges("y", "Says what it is told.", []string{"word"}, func(set func(float64, ...string)) { set(1, "\xffok") })
	reg := prometheus.NewRegistry()
	reg.MustRegister(gauges)
	if got := figures(t, reg, "word=ok"); got["y"] != 1 {
		t.Errorf("%v", got)
	}
}

// TestDiskGauges asks the disk of a folder, and of one that is not there.
func TestDiskGauges(t *testing.T) {
	reg := prometheus.NewRegistry()
	for _, g := range DiskGauges(map[string]string{"run": t.TempDir(), "parquet": "/nowhere/at/all"}) {
		reg.MustRegister(g)
	}
	got := figures(t, reg, "folder=run")
	if got["prl_process_disk_size_bytes"] <= 0 || got["prl_process_disk_free_bytes"] > got["prl_process_disk_size_bytes"] {
		t.Errorf("%v", got)
	}
	if got := figures(t, reg, "folder=parquet"); len(got) > 0 {
		t.Errorf("of a folder that is not there: %v", got)
	}
}
