// Package duckdb holds the views of a run and the questions beside them: views.sql, and a file for each question, whose
// comment begins with it.
package duckdb

import "embed"

// Queries are the files of this folder.
//
//go:embed *.sql
var Queries embed.FS
