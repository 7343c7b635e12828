//go:build duckdb

package ui

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/duckdb/duckdb-go/v2"
)

func init() { engine = askDuckDB }

// bounds keep a query from anything but the run's files, and from all of the machine's memory. They are set behind the views,
// and cannot be changed behind the last of them.
const bounds = `SET allowed_directories = ['%[1]s/']; SET enable_external_access = false; SET autoinstall_known_extensions = false;
SET memory_limit = '1GB'; SET threads = 2; SET lock_configuration = true;`

// askDuckDB runs one SELECT in a database of its own. Questions may set variables before.
func askDuckDB(ctx context.Context, run, views, query string) (Table, error) {
	db, err := sql.Open("duckdb", "")
	if err != nil {
		return Table{}, err
	}
	defer db.Close()
	conn, err := db.Conn(ctx) // variables belong to a connection
	if err != nil {
		return Table{}, err
	}
	defer conn.Close()
	quoted := strings.ReplaceAll(run, "'", "''")
	for _, s := range []string{"SET VARIABLE run = '" + quoted + "'", views, fmt.Sprintf(bounds, quoted)} {
		if _, err := conn.ExecContext(ctx, s); err != nil {
			return Table{}, fmt.Errorf("prepare DuckDB: %w", err)
		}
	}
	question, err := onlyReads(ctx, conn, query)
	if err != nil {
		return Table{}, err
	}
	begun := time.Now()
	rows, err := conn.QueryContext(ctx, question)
	if err != nil {
		return Table{}, err
	}
	defer rows.Close()
	t, err := tableOf(rows)
	t.Seconds = time.Since(begun).Seconds()
	return t, err
}

// onlyReads refuses whatever is not a SELECT, or a setting of a variable before it: a COPY could write into the run's files.
// It sets the variables and gives the last statement, which is all that may run: DuckDB may see others in the whole query
// than those that were looked at.
func onlyReads(ctx context.Context, conn *sql.Conn, query string) (last string, err error) {
	return last, conn.Raw(func(c any) error {
		own, ok := c.(*duckdb.Conn)
		if !ok {
			return errors.New("the driver is not DuckDB's")
		}
		for _, statement := range statements(query) {
			s, err := own.Prepare(statement) // which refuses two; PrepareContext would run the first
			if err != nil {
				return err
			}
			kind, err := s.(*duckdb.Stmt).StatementType()
			if err := errors.Join(err, s.Close()); err != nil {
				return err
			}
			switch kind {
			case duckdb.STATEMENT_TYPE_SELECT:
			case duckdb.STATEMENT_TYPE_SET:
				if !strings.HasPrefix(strings.ToUpper(strings.Join(strings.Fields(statement), " ")), "SET VARIABLE ") {
					return errors.New("of settings only SET VARIABLE is allowed")
				}
			default:
				return errors.New("the page only reads: want a SELECT")
			}
			last = statement
			if kind == duckdb.STATEMENT_TYPE_SET { // what comes behind may want the variable
				if _, err := own.ExecContext(ctx, statement, []driver.NamedValue{}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// tableOf reads the answer, as far as a page shows it.
func tableOf(rows *sql.Rows) (t Table, err error) {
	columns, err := rows.ColumnTypes()
	if err != nil {
		return t, err
	}
	for _, c := range columns {
		t.Columns, t.Types = append(t.Columns, c.Name()), append(t.Types, c.DatabaseTypeName())
	}
	for rows.Next() {
		if len(t.Rows) == maxRows {
			t.More = true
			break
		}
		values, into := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return t, err
		}
		texts, null := make([]string, len(values)), make([]bool, len(values))
		for i, v := range values {
			texts[i], null[i] = textOf(v), v == nil
		}
		t.Rows, t.Null = append(t.Rows, texts), append(t.Null, null)
	}
	return t, rows.Err()
}

func textOf(v any) string {
	const most = 2000
	var s string
	switch v := v.(type) {
	case nil:
	case []byte:
		s = fmt.Sprintf("%x", v[:min(len(v), most)])
	case float32, float64:
		s = fmt.Sprintf("%.6g", v)
	case time.Time:
		s = v.UTC().Format("2006-01-02 15:04:05")
	default:
		s = fmt.Sprint(v)
	}
	return clipText(s, most)
}
