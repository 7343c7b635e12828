// Package chaos tries to break a run: every stage is a process of its own, and by a schedule drawn from a seed processes
// and brokers are killed, stopped and restarted, topics get bad and repeated records, and disks and the model are slow or
// fail. Afterwards an independent auditor holds what the run has written to the invariants I1 to I8.
//
// Guarantee: the same seed draws the same faults at the same times; every fault that is counted was carried out; nothing
// that the harness started outlives it; and what the world cannot do is not done (README.md says why each fault is
// fair).
//
// The parts: schedule draws the faults; world is the run; slot and process keep its stages running; brokers, proxy, disk and
// inject are what faults are done to; faults carries them out; watch sees how the run gets on; report counts; chaos joins
// them.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/prl-project/prl/pipeline/audit"
)

// Config says what is done to a run.
type Config struct {
	// Dir holds everything: data, logs, the binary.
	Dir string
	// Seed of the faults.
	Seed uint64
	// Nodes of Apache Kafka, 1 or 3; 0 for the embedded broker, which is not killed.
	Nodes int
	// Calm is how long the run is measured without faults first; Chaos how long it has faults.
	Calm, Chaos time.Duration
	// Every is the mean time between two faults.
	Every time.Duration
	// Probes is how often each stage is killed alone, between the two.
	Probes int
	// Out hears what happens.
	Out io.Writer
}

const (
	runName = "chaos"
	envName = "catch"
	// startDeadline bounds the time until the first version is trained.
	startDeadline = 3 * time.Minute
	// stall is how long a pipeline may be without a new policy version: the longest fault, the restart of a broker, and
	// what a small machine needs on top.
	stall = 90 * time.Second
	// endDeadline bounds the end of the run once the faults are over.
	endDeadline = 5 * time.Minute
	// probeDeadline bounds the wait for progress after a probe.
	probeDeadline = 60 * time.Second
	// lastSteps is how many more steps a run gets after the faults.
	lastSteps = 10
)

// Run breaks a run and audits it. An error says that the harness could not do its work; what it found is in the report.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	w := &world{cfg: cfg, report: newReport(cfg), slots: map[string]*slot{}, began: time.Now()}
	err := w.run(ctx)
	return w.report, err
}

func (w *world) run(ctx context.Context) (err error) {
	if err := w.prepare(ctx); err != nil {
		return err
	}
	if err := w.openBrokers(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.brokers.stop()) }()
	guard, stopGuard := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer func() { stopGuard(); background.Wait() }()
	background.Go(func() { w.brokers.guard(guard) })
	if err := w.open(ctx); err != nil {
		return err
	}
	defer w.close()
	background.Go(func() {
		w.watch.run(guard, func(err error) { w.say("the watch's client: %v", err) })
	})
	defer w.end() // nothing that was started is left running
	if err := w.play(ctx); err != nil {
		return err
	}
	w.report.Wedges = w.brokers.wedges
	w.judge()
	return w.audit(ctx)
}

// Audit audits the run that is in a folder, once more, after Run has ended.
func Audit(ctx context.Context, cfg Config) (_ *Report, err error) {
	w := &world{cfg: cfg, report: newReport(cfg), slots: map[string]*slot{}, began: time.Now()}
	if err := w.locate(); err != nil {
		return w.report, err
	}
	if err := w.openBrokers(ctx); err != nil {
		return w.report, err
	}
	defer func() { err = errors.Join(err, w.brokers.stop()) }()
	if err := w.open(ctx); err != nil {
		return w.report, err
	}
	defer w.close()
	return w.report, w.audit(ctx)
}

// play is the life of the run: it starts, it is measured, it is broken, it ends.
func (w *world) play(ctx context.Context) error {
	w.say("the stages start")
	if err := w.start(); err != nil {
		return err
	}
	if !w.await(ctx, startDeadline, func() bool { return w.watch.newest() >= 3 }) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("no step was trained within %v of the start; the logs are in %s", startDeadline, w.logs())
	}
	w.say("calm for %v", w.cfg.Calm)
	from := time.Now()
	w.await(ctx, w.cfg.Calm, func() bool { return false })
	w.report.Calm = w.rollouts(from, time.Now())
	w.say("%.1f rollouts trained a second", w.report.Calm)
	w.probe(ctx)
	w.chaos(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	return w.finish(ctx)
}

// rollouts is how many were trained a second.
func (w *world) rollouts(from, to time.Time) float64 {
	steps, _ := w.watch.rate(from, to)
	return steps * float64(w.app.Config.Run.BatchSize)
}

// finish lets the run end: all stages stop in order, the end of the run is set a few steps ahead, and they start again.
func (w *world) finish(ctx context.Context) error {
	w.say("the faults are over; all stages stop and start")
	w.end()
	step := w.watch.step() + lastSteps
	if err := w.setEnd(step); err != nil {
		return err
	}
	if err := w.start(); err != nil {
		return err
	}
	w.say("the run ends with step %d", step)
	var state string
	ended := w.await(ctx, endDeadline, func() bool {
		var ok bool
		ok, state = w.watch.ended()
		return ok
	})
	if !ended {
		w.report.violate("I1: the run has not ended within %v: %s", endDeadline, state)
	}
	w.end()
	return ctx.Err()
}

// maxSteps is the setting that ends a run.
var maxSteps = regexp.MustCompile(`max_steps = \d+`)

// setEnd changes run.max_steps, in the settings and in what the run began with. Nothing may run meanwhile, and no step
// above it may be packed.
func (w *world) setEnd(step int64) error {
	for _, path := range []string{w.toml, filepath.Join(w.app.Config.RunDir(), "run.toml")} {
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("set the end of the run: %w", err)
		}
		text = maxSteps.ReplaceAll(text, fmt.Appendf(nil, "max_steps = %d", step))
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return fmt.Errorf("set the end of the run: %w", err)
		}
	}
	w.app.Runtime.Run.MaxSteps = step
	return nil
}

// judge looks at what the auditor cannot know.
func (w *world) judge() {
	for _, at := range w.inject.mustBeRefused() {
		if !w.watch.refused(at) {
			w.report.violate("I5: the bad record %s is not in dlq", at)
		}
	}
	for _, k := range []Kind{Duplicate, Reorder, Truncate, Garbage, Oversize, FalseClaim} {
		w.report.Injected[k] = w.inject.written(k)
	}
	for _, k := range []Kind{ModelSlow, ModelDrop, ModelCut, ModelRefuse} {
		w.report.Injected[k] = w.proxy.hits(k)
	}
}

func (w *world) audit(ctx context.Context) (err error) {
	w.say("the auditor reads")
	w.report.Audit, err = audit.Run(ctx, audit.Config{
		Runtime: w.app.Runtime, Envs: []string{envName}, Parquet: w.app.Config.Sink.Dir, Ended: true, Weights: true,
		Advantages: map[string]audit.Advantage{envName: audit.MeanFree}, Injected: injected,
	})
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}
