package pipeline

import (
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/prl-project/prl/schemas"
)

// echo is a core that emits each trace, some of them otherwise.
type echo struct{ change func(*schemas.Trace) }

func (c echo) Process(r Record, out *Out) error {
	t := *r.Value.(*schemas.Trace)
	c.change(&t)
	out.Emit(TopicEvalTraces, &t)
	out.Finish(r.Ref)
	return nil
}

func (echo) State() ([]byte, error) { return nil, nil }

func echoConfig(change func(*schemas.Trace)) ProcessorConfig {
	cfg := toyConfig()
	cfg.New = func(int32, []byte) (Core, error) { return echo{change}, nil }
	return cfg
}

// onePartition writes traces so that a poll brings them together and in order.
func onePartition(t *testing.T, rt *Runtime, groups int) {
	t.Helper()
	var recs []schemas.Record
	for g := range groups {
		recs = append(recs, trace(int64(g)*int64(rt.Partitions(TopicTraces)), 0))
	}
	produce(t, rt, recs...)
}

// TestSentAhead has a core that is not done with the second record of a poll before the brokers have what it made of the first.
func TestSentAhead(t *testing.T) {
	rt, _ := testRuntime(t)
	onePartition(t, rt, 2)
	seen := 0
	stop := start(t, rt, echoConfig(func(*schemas.Trace) {
		if seen++; seen == 2 {
			await(t, "the brokers to have what was made of the first record", func() bool {
				spans, err := rt.Spans(t.Context(), false, TopicEvalTraces)
				return err == nil && spans[TopicEvalTraces][0].End > 0
			})
		}
	}))
	committed(t, rt, TopicEvalTraces, 2)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// TestSentAheadAndTakenBack has outputs that go by way of the blob store, which nothing waits for in an open transaction: what was
// sent ahead of the first is taken back and comes once, and nothing is sent ahead after it. The same where a record comes whose
// tensors are in the store.
func TestSentAheadAndTakenBack(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, rt *Runtime) ProcessorConfig{
		"to the store": func(t *testing.T, rt *Runtime) ProcessorConfig {
			onePartition(t, rt, 6)
			return echoConfig(func(trace *schemas.Trace) {
				if group := trace.GroupID / int64(rt.Partitions(TopicTraces)); group == 2 || group == 4 {
					trace.Nodes = bigTrace(tooLong).Nodes
				}
			})
		},
		"from the store": func(t *testing.T, rt *Runtime) ProcessorConfig {
			var recs []schemas.Record
			for g := range 6 {
				one := trace(int64(g)*int64(rt.Partitions(TopicTraces)), 0)
				if g == 2 || g == 4 {
					one.Nodes = bigTrace(tooLong).Nodes
				}
				recs = append(recs, one)
			}
			produce(t, rt, recs...)
			return echoConfig(func(trace *schemas.Trace) { trace.Nodes = nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			rt, _ := testRuntime(t)
			rt.Run.SeqLen = longSequences // what is left of a record in the batch makes none larger
			stop := start(t, rt, test(t, rt))
			seen := map[int64]int{}
			for _, r := range committed(t, rt, TopicEvalTraces, 6) {
				seen[r.Value.(*schemas.Trace).GroupID]++
			}
			noMore(t, rt, TopicEvalTraces, 6)
			if err := stop(); err != nil || len(seen) != 6 {
				t.Fatalf("groups came %v times, %v", seen, err)
			}
			var aborted dto.Metric
			if err := rt.Metrics.Transactions.WithLabelValues("scorer", "aborted").Write(&aborted); err != nil {
				t.Fatal(err)
			}
			if n := aborted.GetCounter().GetValue(); n != 1 {
				t.Errorf("%v transactions were aborted, want that of what was sent ahead", n)
			}
		})
	}
}
