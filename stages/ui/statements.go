//go:build duckdb

package ui

import "strings"

// statements splits a query at the semicolons that end its statements: not those in quotes or comments.
func statements(query string) (list []string) {
	start, i := 0, 0
	skip := func(end string) {
		if k := strings.Index(query[i:], end); k >= 0 {
			i += k + len(end)
		} else {
			i = len(query)
		}
	}
	for i < len(query) {
		switch c := query[i]; {
		case c == '\'' || c == '"':
			i++
			skip(string(c))
		case strings.HasPrefix(query[i:], "--"):
			skip("\n")
		case strings.HasPrefix(query[i:], "/*"):
			i += 2
			skip("*/")
		case c == ';':
			list = append(list, query[start:i])
			i++
			start = i
		default:
			i++
		}
	}
	list = append(list, query[start:])
	var kept []string
	for _, s := range list {
		if strings.TrimSpace(s) != "" {
			kept = append(kept, s)
		}
	}
	return kept
}
