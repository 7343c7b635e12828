package pipeline

import (
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prl-project/prl/schemas"
)

// pickyPairs is the toy core, and counts the traces that are not its first.
type pickyPairs struct {
	Core
	seen int64
}

func (c *pickyPairs) Process(r Record, out *Out) error {
	c.seen++
	return c.Core.Process(r, out)
}

func (c *pickyPairs) Counts() map[string]int64 { return map[string]int64{"boring": max(0, c.seen-1)} }

// What cores count is added up over all of them and over restarts, and what is fed again counts once.
func TestCountsAreAddedUp(t *testing.T) {
	rt, _ := testRuntime(t)
	rt.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	reg := prometheus.NewRegistry()
	rt.Metrics = NewMetrics(reg)
	cfg := toyConfig()
	inner := cfg.New
	cfg.New = func(partition int32, state []byte) (Core, error) {
		core, err := inner(partition, state)
		return &pickyPairs{Core: core}, err
	}
	counted := func() float64 {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for _, f := range families {
			if !strings.Contains(f.GetName(), "passed_over") {
				continue
			}
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
		return sum
	}
	n := int64(rt.Partitions(TopicTraces)) // groups that are apart by it share a partition
	stop := start(t, rt, cfg)
	produce(t, rt, trace(0, 0), trace(n, 0), trace(2*n, 0), trace(0, 1))
	committed(t, rt, TopicSamples, 1)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if got := counted(); got != 3 {
		t.Errorf("%v counted of four traces, want 3", got)
	}
	stop = start(t, rt, cfg) // the traces of n and 2n come again
	produce(t, rt, trace(n, 1))
	recs := committed(t, rt, TopicSamples, 2)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if got := counted(); got != 4 || recs[1].Value.(*schemas.SampleGroup).GroupID != n {
		t.Errorf("%v counted of five traces, want 4", got)
	}
}
