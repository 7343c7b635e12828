package pipeline

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// brokerMetrics are what the clients of a process see of their brokers.
type brokerMetrics struct {
	answered, failed prometheus.Counter
	unreachable      prometheus.Counter
	last             *prometheus.GaugeVec // not there before the first answer
	produce          prometheus.Observer
	throttled        prometheus.Counter
	sent, received   prometheus.Counter
}

var (
	_ kgo.HookBrokerConnect  = (*brokerMetrics)(nil)
	_ kgo.HookBrokerE2E      = (*brokerMetrics)(nil)
	_ kgo.HookBrokerThrottle = (*brokerMetrics)(nil)
)

func newBrokerMetrics(in *Instruments) *brokerMetrics {
	requests := in.Counter("prl_broker_requests_total", "Requests of this process to brokers, by result: answered, or failed (the connection was lost).", "result")
	counter := func(name, help string) prometheus.Counter { return in.Counter(name, help).WithLabelValues() }
	return &brokerMetrics{
		answered: requests.WithLabelValues("answered"), failed: requests.WithLabelValues("failed"),
		unreachable: counter("prl_broker_connect_failures_total", "Connections to brokers that could not be made."),
		last:        in.Gauge("prl_broker_answered_timestamp_seconds", "When a broker has answered this process last, in seconds since 1970."),
		produce: in.Histogram("prl_broker_produce_seconds", "From the sending of records to their acknowledgement by the broker.",
			prometheus.ExponentialBuckets(0.001, 2, 14)).WithLabelValues(),
		throttled: counter("prl_broker_throttled_seconds_total", "Time that brokers made this process wait, by their quotas."),
		sent:      counter("prl_broker_sent_bytes_total", "Bytes sent to brokers."),
		received:  counter("prl_broker_received_bytes_total", "Bytes received from brokers."),
	}
}

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (m *brokerMetrics) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err != nil && !closing(err) {
		m.unreachable.Inc()
	}
}

// OnBrokerE2E implements kgo.HookBrokerE2E.
func (m *brokerMetrics) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e kgo.BrokerE2E) {
	m.sent.Add(float64(e.BytesWritten))
	m.received.Add(float64(e.BytesRead))
	switch err := e.Err(); {
	case err == nil:
		m.answered.Inc()
		m.last.WithLabelValues().SetToCurrentTime()
		if kmsg.Key(key) == kmsg.Produce {
			m.produce.Observe(e.DurationE2E().Seconds())
		}
	case !closing(err):
		m.failed.Inc()
	}
}

// OnBrokerThrottle implements kgo.HookBrokerThrottle.
func (m *brokerMetrics) OnBrokerThrottle(_ kgo.BrokerMetadata, wait time.Duration, _ bool) {
	m.throttled.Add(wait.Seconds())
}

// closing reports whether an error is of a client that ends.
func closing(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, net.ErrClosed) || errors.Is(err, kgo.ErrClientClosed)
}
