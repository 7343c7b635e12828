package tracing

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestREADME holds the tables of attributes and spans to the constants.
func TestREADME(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "| attribute | what it is |\n")
	table, _, _ := strings.Cut(rest, "\n\n")
	shown := map[string]bool{}
	for row := range strings.Lines(table) {
		names, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(names, -1) {
			shown[m[1]] = true
		}
	}
	for _, key := range constants(t, "attributes.go") {
		if !shown[key] {
			t.Errorf("README.md has no row of the attribute %s", key)
		}
		delete(shown, key)
	}
	if len(shown) > 0 {
		t.Errorf("README.md has rows of what is no attribute: %v", slices.Sorted(maps.Keys(shown)))
	}
	for _, name := range constants(t, "names.go") {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("README.md does not speak of the span %q", name)
		}
	}
}

// constants are the texts of a file's constants.
func constants(t *testing.T, file string) (texts []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		ast.Inspect(g, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				texts = append(texts, text)
			}
			return true
		})
	}
	if len(texts) == 0 {
		t.Fatalf("%s has no constants", file)
	}
	return texts
}
