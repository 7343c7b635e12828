package stages

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/stages/eval"
	"github.com/prl-project/prl/stages/ui"
)

// TestRunWithoutPage: a page that cannot listen does not stop the run that it is a part of.
func TestRunWithoutPage(t *testing.T) {
	cfg := DefaultConfig()
	cfg.UI.Listen, cfg.UI.Token = "192.0.2.1:80", pipeline.NewSecret("x") // no machine has this address
	a := &App{Config: cfg, Runtime: pipelinetest.Runtime(t, []string{""}, cfg.Run)}
	var out strings.Builder
	if err := a.openPage(&out); err != nil || !strings.Contains(out.String(), "without a page") {
		t.Errorf("%v: %s", err, &out)
	}
	for _, s := range Flow {
		if s.Name == ui.Name && s.Optional(cfg) {
			t.Error("the page is still part of the run")
		}
	}
}

// A stage that the flow does without may end as it likes: the run goes on. One that it needs ends it.
func TestStagesAside(t *testing.T) {
	flow := Flow
	t.Cleanup(func() { Flow = flow })
	broken := errors.New("it is broken")
	for _, aside := range []bool{true, false} {
		failed := make(chan struct{})
		Flow = []Stage{{Name: ui.Name, Aside: aside, New: func(*App, Stage) (Runner, error) {
			return runner(func(context.Context) error { defer close(failed); return broken }), nil
		}}}
		cfg := DefaultConfig()
		a := &App{Config: cfg, Runtime: pipelinetest.Runtime(t, []string{""}, cfg.Run), measures: &eval.ByHand{}}
		err := a.runStages(t.Context(), func(Stage) bool { return true }, func(context.Context) error { <-failed; return nil })
		if aside && err != nil || !aside && !errors.Is(err, broken) {
			t.Errorf("aside %v: %v", aside, err)
		}
	}
}

type runner func(context.Context) error

func (r runner) Run(ctx context.Context) error { return r(ctx) }
