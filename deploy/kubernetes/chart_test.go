package kubernetes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prl-project/prl/deploy/deploytest"
	"github.com/prl-project/prl/pipeline/pipelinetest/need"
)

func TestChartIsValid(t *testing.T) {
	for name, files := range values {
		t.Run(name, func(t *testing.T) {
			if list := render(t, files...); len(workloads(list)) < 7 {
				t.Errorf("%d workloads", len(workloads(list)))
			}
		})
	}
}

// TestChartRefusesWrongValues: what the validators and the schema of the values are there for.
func TestChartRefusesWrongValues(t *testing.T) {
	for name, c := range map[string]struct{ values, says string }{
		"a key that does not exist":      {"trainer: {gpu: 1}", "gpu"},
		"a number that is none":          {"stages: {scorer: {replicas: many}}", "replicas"},
		"a stage that does not exist":    {"stages: {score: {enabled: true}}", "score"},
		"no configuration":               {`config: ""`, "config"},
		"a run that no topic may have":   {`run: "a run"`, "run"},
		"a quantity that is none":        {"storage: {size: large}", "size"},
		"an environment without a drain": {"envs: {catch: {drain: soon}}", "drain"},
		"a wrong policy":                 {"networkPolicy: {monitoring: [{namespaceSelektor: {}}]}", "namespaceSelektor"},
		"a wrong toleration":             {"trainer: {tolerations: [{operator: Is}]}", "operator"},
	} {
		t.Run(name, func(t *testing.T) {
			need.Validators(t, deploytest.ValidatorsDir)
			file := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(file, []byte(c.values), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, wrong := validate(t, file); out != nil || !strings.Contains(wrong, c.says) {
				t.Errorf("%s: refused: %v; %s", c.values, out == nil, wrong)
			}
		})
	}
}

// TestChartSharesFiles: what the chart has of others' are links to them, which `helm package` follows.
func TestChartSharesFiles(t *testing.T) {
	for _, name := range []string{"acls.csv", "alerts.yml", "run.json", "operator.json"} {
		if _, err := os.Readlink(filepath.Join("prl/files", name)); err != nil {
			t.Error(err)
		}
	}
}
