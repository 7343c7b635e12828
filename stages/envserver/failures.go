package envserver

import (
	"sync"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// failureEvery is how often a failed rollout of an environment is logged at level info; all of them are at level debug.
const failureEvery = time.Second

// A failureLog logs what rollouts failed at: what environments throw and panic with, under their names.
type failureLog struct {
	rt  *pipeline.Runtime
	now func() time.Time

	mu   sync.Mutex
	envs map[string]*failures
}

type failures struct {
	told   time.Time
	untold int
}

func newFailureLog(rt *pipeline.Runtime) *failureLog {
	return &failureLog{rt: rt, now: time.Now, envs: map[string]*failures{}}
}

// traces takes those that are written. What was cancelled did not fail.
func (l *failureLog) traces(traces []*schemas.Trace) {
	for _, t := range traces {
		if len(t.Errors) == 0 || t.Errors[0].Type == schemas.ErrorStale || t.Errors[0].Type == schemas.ErrorCancelled {
			continue
		}
		e := t.Errors[0]
		line := append(l.rt.LogOf(t.Env, t.Eval, t.GroupID, t.RolloutIndex), "attempt", t.Attempt, "type", e.Type, "error", e.Message)
		if untold, due := l.due(t.Env); due {
			l.rt.Log.Info("a rollout failed", append(line, "others", untold)...)
		} else {
			l.rt.Log.Debug("a rollout failed", line...)
		}
		if e.Traceback != "" {
			l.rt.Log.Debug("where a rollout failed", append(l.rt.LogOf(t.Env, t.Eval, t.GroupID, t.RolloutIndex), "traceback", e.Traceback)...)
		}
	}
}

// due says whether a failure is logged for all to see, and how many before it were not.
func (l *failureLog) due(env string) (untold int, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.envs[env]
	if f == nil {
		f = &failures{}
		l.envs[env] = f
	}
	if now := l.now(); now.Sub(f.told) >= failureEvery {
		untold = f.untold
		f.told, f.untold = now, 0
		return untold, true
	}
	f.untold++
	return 0, false
}
