package stages

import (
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
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
