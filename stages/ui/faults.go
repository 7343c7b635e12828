package ui

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	client "github.com/prometheus/client_golang/prometheus"

	"github.com/prl-project/prl/deploy/prometheus"
	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/faults"
	"github.com/prl-project/prl/schemas"
)

const (
	// faultsForgotten is how long after its last word a fault is shown of a process that should have repeated it.
	faultsForgotten = 3*pipeline.FaultsRepeated + 10*time.Second
	// endedForgotten is how long one is shown with which a stage has ended.
	endedForgotten = 24 * time.Hour
	// livesAfter is how long after it a sign of life of the stage says that another process does its work.
	livesAfter = 2 * time.Minute
	mostTold   = 1000
)

// told is the faults that stages have told of on the topic metrics (pipeline.TellFaults).
type told struct{ list map[toldKey]toldFault }

type toldKey struct{ stage, instance, fault, about string }

type toldFault struct {
	faults.Report
	heard time.Time // by its writer's clock
}

// point takes a point of the topic metrics.
func (t *told) point(p *schemas.MetricPoint) {
	r, instance, at, ok := pipeline.FaultOf(p)
	if !ok {
		return
	}
	key := toldKey{r.Stage, instance, r.Fault.Name, r.About}
	switch {
	case r.Over && r.Fault.Name == "": // it has begun anew
		for k, f := range t.list {
			if k.instance == instance && (k.stage == r.Stage || r.Stage == "") && !f.heard.After(at) {
				delete(t.list, k)
			}
		}
	case r.Over:
		delete(t.list, key)
	case len(t.list) < mostTold:
		if t.list == nil {
			t.list = map[toldKey]toldFault{}
		}
		t.list[key] = toldFault{r, at}
	}
}

// lives takes a sign of life of a stage: if it has ended with a fault, it goes on now.
func (t *told) lives(stage string, at time.Time) {
	for k, f := range t.list {
		if k.stage == stage && f.Ended && at.After(f.heard.Add(livesAfter)) {
			delete(t.list, k)
		}
	}
}

// trained takes a version that was published: the trainer has what it needs.
func (t *told) trained(at time.Time) {
	for k, f := range t.list {
		if k.stage == "trainer" && at.After(f.heard) {
			delete(t.list, k)
		}
	}
}

// active are those that there are.
func (t *told) active(now time.Time) (list []faults.Report) {
	for k, f := range t.list {
		lasts := faultsForgotten
		if f.Ended {
			lasts = endedForgotten
		}
		if now.Sub(f.heard) > lasts {
			delete(t.list, k)
			continue
		}
		list = append(list, f.Report)
	}
	return list
}

// shown are the faults of which there are notices.
func (u *UI) shown() (list []faults.Report) {
	for _, n := range u.notices() {
		if n.Fault != "" {
			list = append(list, n.report)
		}
	}
	return list
}

// serveRunbook gives what the runbook says of a fault.
func serveRunbook(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("fault")
	text, ok := prometheus.Runbook(name)
	if !ok {
		refuse(w, http.StatusNotFound, fmt.Errorf("the runbook has no heading %q", name))
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = fmt.Fprintf(w, "%s\n\n%s\n", name, text) // the reader may be gone
}

// measure registers the metric of the faults that the page shows: those of processes, too, that have ended and can be asked no
// more. A run has one page in a process.
func (u *UI) measure() error {
	if u.rt.Registry == nil {
		return nil
	}
	err := u.rt.Registry.Register(pipeline.NewFaultGauge("prl_ui_fault_active",
		"1 while the page shows a fault of a stage, of one that has ended as well; not there without.", u.shown))
	if errors.As(err, &client.AlreadyRegisteredError{}) {
		return nil
	}
	return err
}
