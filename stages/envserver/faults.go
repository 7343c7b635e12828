package envserver

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/faults"
	"github.com/prl-project/prl/schemas"
)

const (
	// watchedRollouts are those of an environment by which it is judged, the newest; enoughRollouts how many there must be.
	watchedRollouts, enoughRollouts = 40, 10
	// poisonLasts is how long after the last end without warning a task is told of.
	poisonLasts = 10 * time.Minute
)

// An illness is a way in which rollouts go wrong that is a fault where too many do: from the share begins on, until it is below ends.
type illness struct {
	fault        faults.Fault
	begins, ends float64
	shows        func(*schemas.Trace) bool
}

var illnesses = []illness{
	{faults.EnvFails, 0.5, 0.25, failedItself},
	{faults.ModelSlow, 0.25, 0.1, lateForModel},
}

// failedItself reports whether a rollout failed by its environment. One whose process ended may be a neighbour of the task that did it.
func failedItself(t *schemas.Trace) bool {
	if len(t.Errors) == 0 {
		return false
	}
	kind := t.Errors[0].Type
	return kind == errorEnvironment || kind == errorInternal
}

// lateForModel reports whether a rollout ran out of time, and spent most of it waiting for the model.
func lateForModel(t *schemas.Trace) bool {
	w := t.Timing
	late := t.StopReason == stopDeadline || len(t.Errors) > 0 && t.Errors[0].Type == errorModel && strings.Contains(t.Errors[0].Message, errDeadline.Error())
	return late && w.GenerationMs > w.EnvironmentMs+w.SetupMs+w.ScoringMs
}

// A watch judges environments by their newest rollouts.
type watch struct {
	rt *pipeline.Runtime

	mu   sync.Mutex
	envs map[string][]seen // the newest last
}

// seen is what a rollout showed, by illness.
type seen [2]bool

func newWatch(rt *pipeline.Runtime) *watch { return &watch{rt: rt, envs: map[string][]seen{}} }

// traces takes rollouts that were played.
func (w *watch) traces(traces []*schemas.Trace) {
	for _, t := range traces {
		if len(t.Errors) > 0 && t.Errors[0].Type == schemas.ErrorCrashed {
			w.crashed(t.Env, t.GroupID, t.TaskIndex, t.Errors[0].Message+"; it was given up")
		}
		if !abandoned(t) {
			w.trace(t)
		}
	}
}

// abandoned reports whether a rollout was not played to its end, for a reason that says nothing of its environment.
func abandoned(t *schemas.Trace) bool {
	if len(t.Errors) == 0 {
		return false
	}
	kind := t.Errors[0].Type
	return kind == schemas.ErrorStale || kind == schemas.ErrorCancelled || kind == schemas.ErrorCrashed
}

func (w *watch) trace(t *schemas.Trace) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var s seen
	for i, ill := range illnesses {
		s[i] = ill.shows(t)
	}
	all := append(w.envs[t.Env], s)
	all = all[max(0, len(all)-watchedRollouts):]
	w.envs[t.Env] = all
	if len(all) < enoughRollouts {
		return
	}
	for i, ill := range illnesses {
		n := 0
		for _, s := range all {
			if s[i] {
				n++
			}
		}
		switch share := float64(n) / float64(len(all)); {
		case share >= ill.begins:
			w.rt.Fault("envserver", ill.fault, t.Env, fmt.Errorf("%d of the newest %d rollouts of %s: %s", n, len(all), t.Env, lastOf(t)))
		case share < ill.ends:
			w.rt.Mended("envserver", ill.fault, t.Env)
		}
	}
}

// lastOf is what a rollout says of itself.
func lastOf(t *schemas.Trace) string {
	if len(t.Errors) > 0 {
		return short(t.Errors[0].Message)
	}
	return fmt.Sprintf("the last ended by %s, after %.1f s of waiting for the model", t.StopReason, t.Timing.GenerationMs/1000)
}

// rerun hears of a task that is begun again.
func (w *watch) rerun(j *job, why string) {
	if why == rerunCrashed && j.crashes >= 2 {
		w.crashed(j.task.Env, j.task.GroupID, j.task.TaskIndex, fmt.Sprintf("its process ended without warning %d times", j.crashes))
	}
}

func (w *watch) crashed(env string, group, task int64, how string) {
	w.rt.FaultSeen("envserver", faults.PoisonTask, env, fmt.Errorf("task %d of %s (group %d): %s", task, env, group, how), poisonLasts)
}
