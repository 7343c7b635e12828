package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/prl-project/prl/deploy/duckdb"
)

const (
	askTime  = 30 * time.Second
	maxQuery = 64 << 10
	maxRows  = 1000
)

// A Question is a query that lies in deploy/duckdb.
type Question struct {
	Name  string `json:"name"`
	Title string `json:"title"` // the question
	About string `json:"about"` // what its comment says further
	SQL   string `json:"sql"`
}

// A Table is the answer to a query.
type Table struct {
	Columns []string   `json:"columns"`
	Types   []string   `json:"types"`
	Rows    [][]string `json:"rows"`
	Null    [][]bool   `json:"null"`
	More    bool       `json:"more"` // there are more rows than are shown
	Seconds float64    `json:"seconds"`
}

// engine answers queries over the files of a run; nil without DuckDB.
var engine func(ctx context.Context, run, views, query string) (Table, error)

// asking holds the query that is being answered: one at a time, as the stages of a run may be in the same process.
var asking = make(chan struct{}, 1)

const viewsFile = "views.sql"

func (u *UI) getQuestions(*http.Request) (any, error) {
	names, err := fs.Glob(duckdb.Queries, "*.sql")
	if err != nil {
		return nil, err
	}
	list := []Question{}
	for _, name := range names {
		text, err := fs.ReadFile(duckdb.Queries, name)
		if err != nil {
			return nil, err
		}
		if name != viewsFile {
			list = append(list, questionOf(strings.TrimSuffix(name, ".sql"), string(text)))
		}
	}
	run := filepath.Dir(u.options.Parquet)
	return map[string]any{
		"questions": list, "engine": engine != nil,
		"command": fmt.Sprintf(`duckdb -cmd "SET VARIABLE run = '%s'" -cmd ".read deploy/duckdb/views.sql"`, run),
	}, nil
}

// questionOf takes the comment of a query apart: its first sentence is the question.
func questionOf(name, text string) Question {
	q := Question{Name: name}
	var about []string
	for line := range strings.Lines(text) {
		if comment, ok := strings.CutPrefix(line, "--"); ok && q.SQL == "" {
			about = append(about, strings.TrimSpace(comment))
		} else {
			q.SQL += line
		}
	}
	all := strings.Join(about, " ")
	if i := strings.IndexByte(all, '?'); i >= 0 {
		q.Title, q.About = all[:i+1], strings.TrimSpace(all[i+1:])
	} else {
		q.Title, q.About = name, all
	}
	q.SQL = strings.TrimSpace(q.SQL)
	return q
}

// ask answers a query that a reader wrote.
func (u *UI) ask(r *http.Request, body []byte) (any, error) {
	if engine == nil {
		return nil, problem{http.StatusNotImplemented, fmt.Errorf("this binary has no DuckDB: build it with `go build -tags duckdb ./cmd/prl-stage`, or ask with the command that the page shows")}
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return nil, problem{http.StatusForbidden, fmt.Errorf("a page of elsewhere may not ask")}
	}
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); kind != "application/json" {
		return nil, badRequest("want application/json")
	}
	var q struct{ Query string }
	if len(body) > maxQuery {
		return nil, badRequest("the query is longer than %d bytes", maxQuery)
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, badRequest(`want {"query": "SELECT …"}: %w`, err)
	}
	views, err := fs.ReadFile(duckdb.Queries, viewsFile)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	select {
	case asking <- struct{}{}:
		defer func() { <-asking }()
	case <-ctx.Done():
		return nil, problem{http.StatusServiceUnavailable, fmt.Errorf("other queries are being answered: ask again")}
	}
	table, err := engine(ctx, filepath.Dir(u.options.Parquet), string(views), q.Query)
	if ctx.Err() != nil && r.Context().Err() == nil {
		return nil, badRequest("the query took longer than %v", askTime)
	}
	if err != nil {
		return nil, problem{http.StatusBadRequest, err}
	}
	if table.Rows == nil {
		table.Rows = [][]string{}
	}
	return table, nil
}
