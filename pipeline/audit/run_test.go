package audit

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/deploy/kafka/kafkatest"
	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// Run reads committed records alone, whatever the broker, and passes over what a fault harness says it has injected.
func TestRun(t *testing.T) {
	kafkatest.Each(t, func(t *testing.T, b kafkatest.Broker) {
		l := newLog(t, false)
		l.run.Name = "audit-" + rand.Text()[:8]
		rt := &pipeline.Runtime{
			Run: l.run, Brokers: b.Addrs, Instance: "audit", Blobs: l.blobs, Metrics: pipeline.NewMetrics(prometheus.NewRegistry()),
			Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Health: &pipeline.Health{},
		}
		if err := rt.SetUp(t.Context(), []string{"e"}); err != nil {
			t.Fatal(err)
		}
		write(t, rt, l.records, true)
		_, twice := outcomeOf(l, 0)
		write(t, rt, []*record{l.put(pipeline.TopicOutcomes, 0, twice)}, false)
		_, again := samplesOf(l, 0)
		injected := l.put(pipeline.TopicSamples, 0, again)
		injected.Headers = map[string]string{"chaos": "duplicate"}
		write(t, rt, []*record{injected}, true)

		cfg := Config{Runtime: rt, Envs: []string{"e"}, Ended: true, Weights: true, Advantages: map[string]Advantage{"e": MeanFree}}
		r, err := Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		expect(t, r, OneOutcome, "group 0 was scored 2 times")
		cfg.Injected = func(r *kgo.Record) bool {
			return slices.ContainsFunc(r.Headers, func(h kgo.RecordHeader) bool { return h.Key == "chaos" })
		}
		if r, err = Run(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		if r.Total() != 0 || r.Groups != 7 || r.Samples != 16 {
			t.Errorf("%v", r)
		}
		for _, c := range r.Topics {
			if c.Topic == pipeline.TopicSamples && (c.Records != 8 || c.Injected != 1) || c.Topic == pipeline.TopicTraces && c.Unreadable != 1 ||
				c.Topic == pipeline.TopicOutcomes && c.Records != 8 {
				t.Errorf("counted %+v", c)
			}
		}
		cfg.Envs = []string{"e", "none"}
		if _, err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "tasks.none") {
			t.Errorf("an environment without tasks: %v", err)
		}
	})
}

// Who may not read a topic is told which right is missing.
func TestRunDenied(t *testing.T) {
	fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.EnableACLs(), kfake.User(pipeline.SASLPlain, "alice", "right"))
	if err != nil {
		t.Fatal(err)
	}
	defer fake.Close()
	t.Setenv("PRL_TEST_PASSWORD", "right")
	rt := &pipeline.Runtime{
		Run: pipeline.RunConfig{Name: "t"}, Brokers: fake.ListenAddrs(), Log: slog.New(slog.DiscardHandler),
		Kafka: pipeline.KafkaConfig{SASL: pipeline.SASLPlain, User: "alice", PasswordEnv: "PRL_TEST_PASSWORD", Cleartext: true},
	}
	if _, err := Run(t.Context(), Config{Runtime: rt}); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "the right Read on topic t.dlq") {
		t.Errorf("error %v", err)
	}
}

// A schema registry that is down is no fault of the records under its ids.
func TestRunWithoutItsRegistry(t *testing.T) {
	fake, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer fake.Close()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	registry := pipeline.DefaultSchemaRegistryConfig()
	registry.URLs, registry.Timeout = []string{"http://127.0.0.1:1"}, pipeline.Duration(100*time.Millisecond)
	down, err := pipeline.NewSchemaRegistry(registry, log)
	if err != nil {
		t.Fatal(err)
	}
	rt := &pipeline.Runtime{Run: newLog(t, false).run, Brokers: fake.ListenAddrs(), Instance: "audit", Schemas: down, Log: log}
	if err := rt.SetUp(t.Context(), []string{"e"}); err != nil {
		t.Fatal(err)
	}
	framed := &record{Raw: []byte{0, 0, 0, 0, 7, 'x'}}
	framed.Topic = pipeline.TopicTraces
	write(t, rt, []*record{framed}, true)
	if r, err := Run(t.Context(), Config{Runtime: rt, Envs: []string{"e"}}); !errors.Is(err, pipeline.ErrTransient) {
		t.Errorf("error %v, report\n%v", err, r)
	}
}

// write produces records, or aborts a transaction of them.
func write(t *testing.T, rt *pipeline.Runtime, records []*record, commit bool) {
	t.Helper()
	opts := []kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner())}
	if !commit {
		opts = append(opts, kgo.TransactionalID(rt.Run.Name), kgo.TransactionTimeout(10*time.Second))
	}
	cl, err := rt.Client(opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	var out []*kgo.Record
	for _, r := range records {
		k := &kgo.Record{Topic: rt.TopicName(r.Topic), Partition: r.Partition, Key: []byte(r.Key), Value: r.Raw}
		for name, value := range r.Headers {
			k.Headers = append(k.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
		}
		if r.Value != nil {
			if k.Value, err = schemas.Encode(r.Value); err != nil {
				t.Fatal(err)
			}
		}
		out = append(out, k)
	}
	if commit {
		if err := cl.ProduceSync(t.Context(), out...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := pipeline.ProduceAll(t.Context(), cl, out); err != nil {
		t.Fatal(err)
	}
	if err := cl.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
}

// What dlq says comes before what the record it holds said of itself.
func TestDecodeHeaders(t *testing.T) {
	header := func(key, value string) kgo.RecordHeader { return kgo.RecordHeader{Key: key, Value: []byte(value)} }
	rt := &pipeline.Runtime{Run: pipeline.RunConfig{Name: "t"}}
	r := decode(t.Context(), Config{Runtime: rt}, &kgo.Record{Topic: "t.dlq", Headers: []kgo.RecordHeader{
		header("prl-stage", "scorer"), header("prl-stage", "none"), header("own", "1"),
	}})
	if r.Topic != pipeline.TopicDLQ || r.Headers["prl-stage"] != "scorer" || r.Headers["own"] != "1" {
		t.Errorf("%+v", r)
	}
}
