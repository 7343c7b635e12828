package stages

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/ui"
)

var update = flag.Bool("update", false, "write the README's derived parts anew")

// TestREADME holds the parts of READMEs that repeat something else to what they repeat: the table of stages, a question in
// SQL, the example environment. `make generate` writes them anew.
func TestREADME(t *testing.T) {
	example, _, _ := strings.Cut(read(t, "envserver/env/example_test.go"), "// A complete environment")
	const question = "reward_by_step"
	for _, part := range []struct{ path, name, text string }{
		{"../README.md", "stages", stageTable()},
		{"../README.md", "sql " + question, "```sql\n" + withoutComments(read(t, "../deploy/duckdb/"+question+".sql")) + "```"},
		{"envserver/README.md", "environment", "```go\n" + strings.Replace(strings.TrimSpace(example), "package env_test", "package sums", 1) + "\n```"},
	} {
		readme := read(t, part.path)
		want := replace(t, readme, part.name, part.text)
		if want == readme {
			continue
		}
		if !*update {
			t.Fatalf("%s is behind what it repeats (%s): make generate", part.path, part.name)
		}
		if err := os.WriteFile(part.path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// replace puts text between the marks <!-- name --> and <!-- /word -->, where word is the first of name.
func replace(t *testing.T, s, name, text string) string {
	t.Helper()
	word, _, _ := strings.Cut(name, " ")
	before, rest, ok := strings.Cut(s, "<!-- "+name+" -->\n")
	_, after, closed := strings.Cut(rest, "<!-- /"+word+" -->")
	if !ok || !closed {
		t.Fatalf("a README has no marks for %q", name)
	}
	return before + "<!-- " + name + " -->\n" + text + "\n<!-- /" + word + " -->" + after
}

func stageTable() string {
	var b strings.Builder
	b.WriteString("| stage | does | reads | writes | divided by |\n|---|---|---|---|---|")
	for _, s := range Flow {
		reads := strings.Join(s.Reads, ", ")
		if s.Name == "sink" || s.Name == ui.Name {
			reads = "every topic"
		}
		if len(s.Tables) > 0 && s.Name != ui.Name {
			reads = strings.TrimPrefix(reads+"; whole: "+strings.Join(s.Tables, ", "), "; ")
		}
		writes := strings.Join(s.Writes, ", ")
		if s.Name == "sink" {
			writes = "Parquet"
		}
		fmt.Fprintf(&b, "\n| %s | %s | %s | %s | %s |", s.Name, s.Does, reads, writes, s.Key)
	}
	return strings.NewReplacer("<env>", "‹env›").Replace(b.String())
}

// withoutComments leaves out the lines of a query that only explain it.
func withoutComments(sql string) string {
	var b strings.Builder
	for line := range strings.Lines(sql) {
		if !strings.HasPrefix(line, "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}
