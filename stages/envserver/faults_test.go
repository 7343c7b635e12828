package envserver

import (
	"log/slog"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// TestWatch: an environment is judged by its newest rollouts, those that fail and those that wait for the model too long; what the run
// gave up, and what was taken along by a neighbour, says nothing of it.
func TestWatch(t *testing.T) {
	failed := func(kind, message string) *schemas.Trace {
		return &schemas.Trace{Errors: []schemas.TraceError{{Type: kind, Message: message}}, Timing: schemas.Timing{GenerationMs: 10}}
	}
	late := &schemas.Trace{StopReason: stopDeadline, Truncated: true, Timing: schemas.Timing{GenerationMs: 900, EnvironmentMs: 100}}
	slow := &schemas.Trace{StopReason: stopDeadline, Truncated: true, Timing: schemas.Timing{GenerationMs: 100, EnvironmentMs: 900}}
	for name, c := range map[string]struct {
		trace *schemas.Trace
		want  string
	}{
		"scored":                   {&schemas.Trace{StopReason: "done"}, ""},
		"the environment fails":    {failed(errorEnvironment, "no board"), "EnvFails"},
		"the server fails":         {failed(errorInternal, "panic"), "EnvFails"},
		"no time before an answer": {failed(errorModel, errDeadline.Error()), "ModelSlow"},
		"cut while it waits":       {late, "ModelSlow"},
		"cut in the environment":   {slow, ""},
		"the model refuses":        {failed(errorModel, "500"), ""},
		"stale":                    {failed(schemas.ErrorStale, "old"), ""},
		"cancelled":                {failed(schemas.ErrorCancelled, "decided"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			rt := &pipeline.Runtime{Log: slog.New(slog.DiscardHandler)}
			rt.OpenFaults()
			w := newWatch(rt)
			has := func() (got string) {
				for _, r := range rt.Faults.Active() {
					got += r.Fault.Name
				}
				return got
			}
			play := func(env string, trace *schemas.Trace, n int) {
				v := *trace
				v.Env = env
				for range n {
					w.traces([]*schemas.Trace{&v})
				}
			}
			good := &schemas.Trace{StopReason: "done"}
			play("other", good, watchedRollouts)
			play("one", c.trace, enoughRollouts-1)
			if got := has(); got != "" {
				t.Errorf("%s after too few rollouts", got)
			}
			play("one", c.trace, watchedRollouts)
			if got := has(); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			play("one", good, watchedRollouts)
			if got := has(); got != "" {
				t.Errorf("%s after %d good ones", got, watchedRollouts)
			}
		})
	}
}
