// Package dryrun says what a stage would start with, and whether all it needs is there, before anything is started.
//
// It starts nothing, changes nothing and makes nothing: no topic, no group, no transaction, no folder. Where that would be needed to
// know more it says what would be made. What it writes are a probe in a blob store that is there already, which it takes away
// again, and files below the system's temporary folder. Each check has a deadline, and all are made even where one failed.
package dryrun

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
)

// A Run is the process that would be started.
type Run struct {
	Config *stages.Config
	// Name is what --stage says, and Stages are its rows of the flow: none for setup, audit and the like.
	Name   string
	Stages []stages.Stage
	// Instance is the name it was given; empty for one it would choose.
	Instance string
	// Envs are the environments it would serve; none for all that are configured.
	Envs []string
	// Embedded says that it would start the embedded broker itself, and BrokerDir where its data are. NoBrokers says why it has none.
	Embedded  bool
	BrokerDir string
	NoBrokers string
	// Alone says that it is of no run: an environment that is played by hand, or offered to other programs.
	Alone bool
	// Probe is the command that does stages.ProbeEnv.
	Probe []string
	// EnvLimit is how long an environment may take to load and to make a task; some start servers for it. 0 for two minutes.
	EnvLimit time.Duration
	// LeastFree is what the disk must have free at the least, in bytes: a full one stops the run. 0 for a GiB.
	LeastFree int64
}

// States of a result.
const (
	OK      = "ok"
	Failed  = "failed"
	Skipped = "skipped"
)

// A Result is what one check found.
type Result struct {
	Check string `json:"check"`
	State string `json:"state"`
	Says  string `json:"says"`
}

// A check is one question, with the time it may take.
type check struct {
	name  string
	limit time.Duration
	ask   func(ctx context.Context, r *Result)
}

func (r *Result) ok(format string, args ...any) { r.State, r.Says = OK, fmt.Sprintf(format, args...) }

func (r *Result) fail(format string, args ...any) {
	r.State, r.Says = Failed, strings.ReplaceAll(fmt.Errorf(format, args...).Error(), pipeline.ErrFatal.Error()+": ", "")
}

func (r *Result) skip(format string, args ...any) {
	r.State, r.Says = Skipped, fmt.Sprintf(format, args...)
}

// limit is how long most checks may take.
const limit = 15 * time.Second

// grace is how long a check may go on behind its limit before nobody waits for it.
const grace = 3 * time.Second

// Checks asks all there is to ask. Those of the brokers come one after the other, all others at once.
func (r *Run) Checks(ctx context.Context) []Result {
	groups := [][]check{}
	if r.Alone {
		return []Result{check{"environment " + r.Envs[0], r.envLimit(), func(ctx context.Context, res *Result) { r.seeEnv(ctx, res, r.Envs[0]) }}.run(ctx)}
	}
	for _, c := range r.local() {
		groups = append(groups, []check{c})
	}
	kafka, done := r.kafka()
	defer done()
	groups = append(groups, kafka)
	for _, c := range r.services() {
		groups = append(groups, []check{c})
	}
	results := make([][]Result, len(groups))
	var all sync.WaitGroup
	for i, group := range groups {
		all.Go(func() {
			for _, c := range group {
				results[i] = append(results[i], c.run(ctx))
			}
		})
	}
	all.Wait()
	var list []Result
	for _, group := range results {
		list = append(list, group...)
	}
	return list
}

// run asks, and waits no longer than the limit.
func (c check) run(ctx context.Context) Result {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	answer := make(chan Result, 1)
	go func() { // ends with what it asks; nobody waits for a disk or a driver that hangs
		r := Result{Check: c.name}
		c.ask(ctx, &r)
		answer <- r
	}()
	select {
	case r := <-answer:
		return r
	case <-time.After(c.limit + grace):
		return Result{c.name, Failed, fmt.Sprintf("no answer within %v", c.limit)}
	}
}

// Failures counts the checks that failed.
func Failures(results []Result) (n int) {
	for _, r := range results {
		if r.State == Failed {
			n++
		}
	}
	return n
}

// Print writes the settings and what the checks found, for people.
func Print(w io.Writer, settings string, results []Result) {
	fmt.Fprintf(w, "%s\n", settings)
	width := 0
	for _, r := range results {
		width = max(width, len(r.Check))
	}
	for _, r := range results {
		lines := strings.Split(strings.TrimSpace(r.Says), "\n")
		fmt.Fprintf(w, "%-7s  %-*s  %s\n", r.State, width, r.Check, lines[0])
		for _, l := range lines[1:] {
			fmt.Fprintf(w, "%*s%s\n", width+11, "", l)
		}
	}
	switch n := Failures(results); n {
	case 0:
		fmt.Fprintf(w, "\nAll it needs is there. Nothing was started, changed or made.\n")
	case 1:
		fmt.Fprintf(w, "\nOne check failed. Nothing was started, changed or made.\n")
	default:
		fmt.Fprintf(w, "\n%d checks failed. Nothing was started, changed or made.\n", n)
	}
}

// JSON writes the same for programs.
func JSON(w io.Writer, settings string, results []Result) error {
	return json.NewEncoder(w).Encode(map[string]any{"settings": settings, "checks": results, "ok": Failures(results) == 0})
}

// has reports whether the process would run a stage.
func (r *Run) has(stage string) bool {
	for _, s := range r.Stages {
		if s.Name == stage {
			return true
		}
	}
	return false
}

// runtime is what clients of the brokers need.
func (r *Run) runtime() *pipeline.Runtime {
	return &pipeline.Runtime{Run: r.Config.Run, Brokers: r.Config.Brokers, Kafka: r.Config.Kafka, Instance: "dry-run", Log: silent}
}
