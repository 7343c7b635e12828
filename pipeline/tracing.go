package pipeline

import (
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline/tracing"
	"github.com/prl-project/prl/schemas"
)

// TracingConfig says where the spans of the stages go: the section [tracing]. Without an endpoint nothing is traced.
type TracingConfig struct {
	// Endpoint is an OpenTelemetry collector's OTLP over HTTP, such as http://localhost:4318 (Jaeger listens there, too); empty
	// for none.
	Endpoint string `toml:"endpoint"`
	// HeaderName is the header that goes with every request to it, where it wants one, such as Authorization.
	HeaderName string `toml:"header_name"`
	// HeaderFile or HeaderEnv names the file or the environment variable with what the header says.
	HeaderFile string `toml:"header_file"`
	// HeaderEnv is the environment variable; see HeaderFile.
	HeaderEnv string `toml:"header_env"`
	// SampleRatio is the share of groups that are traced, with all their rollouts, 0 to 1. It is to be the same for every stage
	// of a run: a stage with a lower one leaves its spans out.
	SampleRatio float64 `toml:"sample_ratio"`
	// Timeout bounds one request to the collector, and how long the end of a process waits for the last.
	Timeout Duration `toml:"timeout"`
}

// DefaultTracingConfig traces nothing, and all groups where it is given an endpoint.
func DefaultTracingConfig() TracingConfig {
	return TracingConfig{SampleRatio: 1, Timeout: Duration(5 * time.Second)}
}

// Validate checks the section.
func (c TracingConfig) Validate() error {
	if c.Endpoint != "" {
		u, err := url.Parse(c.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return fmt.Errorf("tracing.endpoint: want the URL of a collector, such as http://localhost:4318")
		}
		if u.User != nil {
			return fmt.Errorf("tracing.endpoint: %s holds a user: set tracing.header_name and header_file or header_env", u.Redacted())
		}
	}
	switch named := c.HeaderFile != "" || c.HeaderEnv != ""; {
	case !(c.SampleRatio >= 0 && c.SampleRatio <= 1):
		return fmt.Errorf("tracing.sample_ratio = %v: 0 to 1", c.SampleRatio)
	case c.Timeout <= 0 || c.Timeout > Duration(time.Minute):
		return fmt.Errorf("tracing.timeout = %v: more than 0, at most 1m", c.Timeout)
	case c.HeaderName == "" && named:
		return fmt.Errorf("tracing.header_name is empty: header_file and header_env say what a header holds, such as Authorization")
	case c.HeaderName != "" && (c.HeaderFile == "") == (c.HeaderEnv == ""):
		return fmt.Errorf("tracing.header_name = %q needs exactly one of tracing.header_file and tracing.header_env", c.HeaderName)
	}
	return nil
}

// NewTracer makes what traces a run in this process; nil where nothing is traced.
func NewTracer(c TracingConfig, run, instance string, reg prometheus.Registerer, log *slog.Logger) (*tracing.Tracer, error) {
	if c.Endpoint == "" {
		return nil, nil
	}
	headers := map[string]string{}
	if c.HeaderName != "" {
		secret, err := readSecret("tracing.header", c.HeaderFile, c.HeaderEnv)
		if err != nil {
			return nil, err
		}
		headers[c.HeaderName] = secret.Reveal()
	}
	return tracing.New(tracing.Options{
		Run: run, Instance: instance, Endpoint: c.Endpoint, Headers: headers, Ratio: c.SampleRatio, Timeout: time.Duration(c.Timeout),
		Log: log, Registry: reg,
	})
}

// carry puts the span that wrote a record into its headers.
func (rt *Runtime) carry(r *kgo.Record, v schemas.Record) {
	if c := spanOf(rt.Tracing, v); c.Valid() {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: tracing.Header, Value: []byte(c.String())})
	}
}

// from is the span that a record's headers name, where the process traces.
func (rt *Runtime) from(r *kgo.Record) tracing.Context {
	if rt.Tracing == nil {
		return tracing.Context{}
	}
	var values []string
	for _, h := range r.Headers {
		if h.Key == tracing.Header {
			values = append(values, string(h.Value))
		}
	}
	return rt.Tracing.Read(values)
}

// spanOf is the span that writes a record; none for records that belong to no group and no step, or to a group that is not
// traced.
func spanOf(t *tracing.Tracer, v schemas.Record) tracing.Context {
	switch v := v.(type) {
	case *schemas.Task:
		return t.Rollout(tracing.Rollout{Eval: v.Eval, Group: v.GroupID, Index: v.RolloutIndex}).Task(v.Attempt).Context
	case *schemas.Trace:
		return t.Rollout(tracing.Rollout{Eval: v.Eval, Group: v.GroupID, Index: v.RolloutIndex}).Played(v.Attempt)
	case *schemas.SampleGroup:
		return t.Rollout(tracing.Rollout{Group: v.GroupID, Index: -1}).Child(tracing.ScoreGroupSpan)
	case *schemas.GroupOutcome:
		return t.Rollout(tracing.Rollout{Eval: v.Eval, Group: v.GroupID, Index: -1}).Child(tracing.OutcomeSpan)
	case *schemas.Request:
		if v.Kind != schemas.RequestRefill {
			return tracing.Context{}
		}
		return t.Rollout(tracing.Rollout{Group: v.GroupID, Index: v.RolloutIndex}).Played(v.Attempt - 1)
	case *schemas.MicroBatch:
		return t.Step(v.Step)
	case *schemas.PolicyVersion:
		if v.Step > 0 {
			return t.Step(v.Step).Child(tracing.TrainSpan).Child(tracing.PublishSpan)
		}
	}
	return tracing.Context{}
}
