package stages

import (
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prl-project/prl/pipeline"
)

// instrument gives the process the metrics of its run in reg. Stages add their own when they are made.
func (a *App) instrument(reg prometheus.Registerer) error {
	rt := a.Runtime
	rt.Registry, rt.Metrics = reg, pipeline.NewMetrics(reg)
	rt.OpenFaults()
	var err error
	if rt.Tracing, err = pipeline.NewTracer(a.Config.Tracing, rt.Run.Name, rt.Instance, reg, rt.Log); err != nil {
		return err
	}
	run, err := filepath.Abs(a.Config.RunDir())
	if err != nil {
		return err
	}
	folders := map[string]string{"run": run}
	if files, err := filepath.Abs(a.Config.Sink.Dir); err == nil && !strings.HasPrefix(files, run+string(filepath.Separator)) {
		folders["parquet"] = files
	}
	in := &pipeline.Instruments{Registry: reg}
	in.Register(pipeline.ReadyGauge(rt.Health))
	for _, g := range pipeline.DiskGauges(folders) {
		in.Register(g)
	}
	return in.Err()
}

// ofRun is a registry whose metrics all say of which run they are: Prometheus sees several, and a process may serve several.
func ofRun(run string, reg prometheus.Registerer) prometheus.Registerer {
	return prometheus.WrapRegistererWith(prometheus.Labels{"run": run}, reg)
}
