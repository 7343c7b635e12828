package pipelinetest

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prl-project/prl/pipeline"
)

// Runtime is a run as a test's process has it: instance "one", blobs in a folder that goes with the test, the log in the
// test's output. Its topics are not made yet.
func Runtime(t testing.TB, brokers []string, run pipeline.RunConfig) *pipeline.Runtime {
	t.Helper()
	blobs, err := pipeline.OpenBlobs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &pipeline.Runtime{
		Run: run, Brokers: brokers, Instance: "one", Blobs: blobs, Health: &pipeline.Health{},
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Metrics: pipeline.NewMetrics(prometheus.NewRegistry()),
	}
}
