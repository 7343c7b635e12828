//go:build duckdb

package ui

import (
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prl-project/prl/deploy/duckdb"
	"github.com/prl-project/prl/stages/ui/uitest"
)

// TestAsk answers questions over the run's files, and nothing that could do more than read them.
func TestAsk(t *testing.T) {
	p := newRun(t, false)
	for step := range int64(3) {
		uitest.Write(t, p.dir, at, uitest.Step(step+1)...)
	}
	p.serve(nil)
	ask := func(query string, headers ...string) (int, Table, string) {
		t.Helper()
		body, err := json.Marshal(map[string]string{"query": query})
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/api/sql", strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		for i := 0; i+1 < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		var table Table
		if r.StatusCode == http.StatusOK {
			if err := json.Unmarshal(text, &table); err != nil {
				t.Fatal(err)
			}
		}
		return r.StatusCode, table, string(text)
	}
	names, err := fs.Glob(duckdb.Queries, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(duckdb.Queries, name)
		if err != nil {
			t.Fatal(err)
		}
		if q := questionOf(name, string(text)); name != viewsFile && name != "branch.sql" { // that one wants another run
			if status, table, said := ask(q.SQL); status != http.StatusOK || len(table.Columns) == 0 || q.Title == name {
				t.Errorf("%s: %d %s", name, status, said)
			}
		}
	}
	if status, table, said := ask("SET VARIABLE n = 2; SELECT env, count(*) * getvariable('n') AS n, NULL AS nothing FROM rollouts GROUP BY 1 ORDER BY 1; "); status != 200 || len(table.Rows) != 2 || table.Rows[0][0] != "catch" || !table.Null[0][2] {
		t.Errorf("%d %s", status, said)
	}
	if status, table, _ := ask("SELECT * FROM range(5000)"); status != 200 || len(table.Rows) != maxRows || !table.More {
		t.Errorf("%d, %d rows", status, len(table.Rows))
	}
	secret := filepath.Join(t.TempDir(), "secret.csv")
	if err := os.WriteFile(secret, []byte("a\n1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	inRun := filepath.Join(p.dir, "traces", "evil.parquet")
	for _, query := range []string{
		"COPY (SELECT 1) TO '" + inRun + "'", "SELECT 1; COPY (SELECT 1) TO '" + inRun + "'", "SELECT $$'$$; COPY (SELECT 1) TO '" + inRun + "' --'",
		"SELECT $$'$$; COPY (SELECT 1) TO '" + inRun + "'; SELECT 2 --'", "SELECT 1 /* /* */ ; COPY (SELECT 1) TO '" + inRun + "' */", "CREATE TABLE x AS SELECT 1", "ATTACH '" + inRun + "'", "INSTALL httpfs", "SET enable_external_access = true",
		"PRAGMA enable_external_access", "EXPLAIN ANALYZE COPY (SELECT 1) TO '" + inRun + "'", "SELECT * FROM read_csv('" + secret + "')", "SELECT * FROM read_text('/etc/passwd')", "SELECT * FROM glob('/etc/*')",
		"SELECT getenv('HOME')", "SET VARIABLE run = '/etc'; SELECT * FROM traces", "", "SELECT nothing FROM nowhere",
	} {
		if status, _, said := ask(query); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", query, status, clipText(said, 300))
		}
	}
	// Each of its parts is a SELECT; DuckDB sees a COPY in the whole.
	ask("SELECT E'\\'' --'; SELECT '\n; COPY (SELECT 1) TO $$" + inRun + "$$; --'")
	if _, err := os.Stat(inRun); err == nil {
		t.Error("a query wrote into the run's files")
	}
	if status, _, _ := ask("SELECT 1", "Sec-Fetch-Site", "cross-site"); status != http.StatusForbidden {
		t.Errorf("a page of elsewhere: %d", status)
	}
	if status, _, _ := ask("SELECT 1", "Content-Type", "text/plain"); status != http.StatusBadRequest {
		t.Errorf("a form of elsewhere: %d", status)
	}
}
