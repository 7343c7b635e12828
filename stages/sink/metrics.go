package sink

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prl-project/prl/pipeline"
)

// metrics is what Prometheus sees of a sink, beside what it sees of every stage.
type metrics struct {
	files, records *prometheus.CounterVec // by table
	bytes          *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	in := &pipeline.Instruments{Registry: reg}
	return &metrics{
		files:   in.Counter("prl_sink_files_total", "Parquet files that were published.", "table"),
		records: in.Counter("prl_sink_written_records_total", "Records in the files that were published.", "table"),
		bytes:   in.Gauge("prl_sink_buffered_bytes", "Bytes of records that are read and in no file yet."),
	}, in.Err()
}

// written counts a file.
func (m *metrics) written(table string, records int) {
	m.files.WithLabelValues(table).Inc()
	m.records.WithLabelValues(table).Add(float64(records))
}

// buffered says what is in memory: of chains that are written now, and the bytes of the rest.
func (m *metrics) buffered(rest int64, due []*Chain) {
	for _, c := range due {
		rest += c.bytes
	}
	m.bytes.WithLabelValues().Set(float64(rest))
}

// lag says how much of a partition is not read yet.
func (r *reader) lag(topic string, partition int32, behind int64) {
	if r.lags[topic] == nil {
		r.lags[topic] = map[int32]int64{}
	}
	r.lags[topic][partition] = behind
	r.rt.Metrics.Lag(stage, topic, maps.Clone(r.lags[topic]))
}
