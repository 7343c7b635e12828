// Package prometheus_test holds the alert rules and the dashboards to the metrics there are, to the faults that stages tell of,
// and to promtool.
package prometheus_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/deploy/prometheus"
	"github.com/prl-project/prl/pipeline/faults"
	"github.com/prl-project/prl/pipeline/pipelinetest/need"
)

// TestRules runs the unit tests of the alerts: each fires when it should, and none in a run that begins, restarts, measures or
// ends.
func TestRules(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"check", "rules", "alerts.yml"}, {"check", "config", "prometheus.yml"}, {"test", "rules", "alerts_test.yml"},
	} {
		promtool(t, args...)
	}
}

// TestFaults holds alerts and runbook to the table of faults: the same names, and the same words.
func TestFaults(t *testing.T) {
	rules, runbook := read(t, "alerts.yml"), read(t, "README.md")
	tests := read(t, "alerts_test.yml")
	said := map[string]bool{}
	for _, rule := range strings.Split(rules, "- alert: ")[1:] {
		name, rule, _ := strings.Cut(rule, "\n")
		said[name] = true
		f, ok := faults.Named(name)
		if !ok {
			t.Errorf("the alert %s is no fault of pipeline/faults", name)
			continue
		}
		if summary := annotation(rule, "summary"); !strings.HasSuffix(summary, f.Says) {
			t.Errorf("%s: the summary is %q, and does not end with %q", name, summary, f.Says)
		}
		if description := annotation(rule, "description"); !strings.HasSuffix(description, f.Do) {
			t.Errorf("%s: the description is %q, and does not end with %q", name, description, f.Do)
		}
		if !strings.Contains(rule, "runbook: deploy/prometheus/README.md#"+strings.ToLower(name)+"\n") {
			t.Errorf("%s: no line runbook: that leads to its heading", name)
		}
		if !strings.Contains(tests, `alertname="`+name+`"`) {
			t.Errorf("%s: no test of it in alerts_test.yml", name)
		}
	}
	for _, f := range faults.All {
		text, ok := prometheus.Runbook(f.Name)
		if !ok || !strings.Contains(text, "**Look:**") || !strings.Contains(text, "**Do:**") || strings.Contains(text, "\n#") {
			t.Errorf("the page shows of the runbook for %s: %v, %q", f.Name, ok, text)
		}
		if !said[f.Name] {
			t.Errorf("no alert %s", f.Name)
		}
		_, section, ok := strings.Cut(runbook, "\n### "+f.Name+"\n")
		section, _, _ = strings.Cut(section, "\n#")
		if !ok || !strings.Contains(section, "**Look:**") || !strings.Contains(section, "**Do:**") {
			t.Errorf("README.md has no heading %s with how to look and what to do", f.Name)
		}
	}
}

// annotation is the text of one of a rule's annotations.
func annotation(rule, name string) string {
	_, text, _ := strings.Cut(rule, "      "+name+": ")
	text, _, _ = strings.Cut(text, "\n")
	return strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(text, "'"), "'"), "''", "'")
}

// TestNamesExist holds what rules, dashboards and autoscalers ask for to the metrics there are.
func TestNamesExist(t *testing.T) {
	there := metrics(t)
	asked := regexp.MustCompile(`\bprl_(?:` + strings.Join(slices.Collect(maps.Keys(stagesOf(there))), "|") + `)_[a-z0-9_]+`)
	files := []string{"alerts.yml", "alerts_test.yml", "README.md"}
	for _, pattern := range []string{"../grafana/*.json", "../kubernetes/*/*.yaml", "../kubernetes/*/*/*.yaml", "../compose/*.yml", "../compose/*.yaml"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		for _, name := range asked.FindAllString(read(t, file), -1) {
			if !there[name] {
				t.Errorf("%s asks for %s, which is no metric", file, name)
			}
		}
	}
}

// metrics are the names of the table in README.md, which a test of package stages holds to the code.
func metrics(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(prl_[a-z0-9_]+)` \\| (\\w+) ").FindAllStringSubmatch(read(t, "README.md"), -1) {
		names[row[1]] = true
		if row[2] == "histogram" {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				names[row[1]+part] = true
			}
		}
	}
	if len(names) < 50 {
		t.Fatalf("README.md has a table of %d metrics", len(names))
	}
	return names
}

// stagesOf are the second words of names.
func stagesOf(names map[string]bool) map[string]bool {
	stages := map[string]bool{}
	for name := range names {
		stages[strings.Split(name, "_")[1]] = true
	}
	return stages
}

// A dashboard is what is looked at of one.
type dashboard struct {
	UID, Title, Description string
	Panels                  []panel
	Annotations             struct{ List []struct{ Expr string } }
	Templating              struct{ List []struct{ Name, Type string } }
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Datasource               struct{ UID string }
	Targets                  []struct {
		Expr       string
		Datasource struct{ UID string }
	}
}

// TestDashboards holds the dashboards to what Grafana takes, and their queries to promtool: each parses, and asks the data source
// and the runs that are chosen.
func TestDashboards(t *testing.T) {
	var queries []string
	for _, file := range []string{"run.json", "operator.json"} {
		var d dashboard
		text := read(t, "../grafana/"+file)
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if n, chosen := strings.Count(text, `"type": "prometheus"`), strings.Count(text, `"uid": "${datasource}"`); n != chosen {
			t.Errorf("%s names a data source %d times, and the one that is chosen %d times", file, n, chosen)
		}
		var variables []string
		for _, v := range d.Templating.List {
			variables = append(variables, v.Name)
		}
		if d.UID == "" || d.Title == "" || d.Description == "" || !slices.Equal(variables, []string{"datasource", "run", "instance"}) {
			t.Errorf("%s: %q, %q, variables %v", file, d.UID, d.Title, variables)
		}
		taken, ids := map[[2]int]string{}, map[int]bool{}
		for _, p := range d.Panels {
			if p.Title == "" || ids[p.ID] {
				t.Errorf("%s: panel %d (%q) has no title, or an id that another has", file, p.ID, p.Title)
			}
			ids[p.ID] = true
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
						t.Fatalf("%s: %q lies on %q, or beyond the edge", file, p.Title, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
			if p.Type == "row" {
				continue
			}
			if p.Description == "" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
				t.Errorf("%s: %q has no description, no query, or a data source of its own", file, p.Title)
			}
			for _, q := range p.Targets {
				if q.Datasource.UID != "${datasource}" || !strings.Contains(q.Expr, `"$run"`) && !strings.Contains(q.Expr, `"$instance"`) {
					t.Errorf("%s: %q asks %q of %q: whatever is chosen", file, p.Title, q.Expr, q.Datasource.UID)
				}
				queries = append(queries, q.Expr)
			}
		}
		for _, a := range d.Annotations.List {
			queries = append(queries, a.Expr)
		}
	}
	parse(t, queries)
}

// parse wants PromQL that parses.
func parse(t *testing.T, queries []string) {
	t.Helper()
	var rules strings.Builder
	rules.WriteString("groups:\n- name: queries\n  rules:\n")
	for i, q := range queries {
		text, err := json.Marshal(strings.NewReplacer("$__rate_interval", "1m").Replace(q))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&rules, "  - record: query:%d\n    expr: %s\n", i, text)
	}
	file := filepath.Join(t.TempDir(), "queries.yml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := promtool(t, "check", "rules", file); !strings.Contains(out, fmt.Sprintf("%d rules found", len(queries))) {
		t.Errorf("%d queries:\n%s", len(queries), out)
	}
}

func promtool(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(need.Validators(t, "../../.cache/validators"), "promtool"), args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
