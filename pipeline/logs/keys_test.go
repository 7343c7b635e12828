package logs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestOneWordForEachThing reads every call of a logger in the repository: its message is a constant, its keys are words in snake
// case, and none says by another word what a row of Keys says.
func TestOneWordForEachThing(t *testing.T) {
	known := map[string]bool{}
	for _, k := range Keys {
		if known[k.Key] || Instead[k.Key] != "" {
			t.Errorf("%q has two rows", k.Key)
		}
		known[k.Key] = true
	}
	for _, to := range Instead {
		if !known[to] {
			t.Errorf("%q is said in place of another word, and has no row", to)
		}
	}
	word := regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	files, calls := token.NewFileSet(), 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != "../.." && (strings.HasPrefix(name, ".") || name == "runs" || name == "testdata") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return nil // it does not compile
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			keys, message, ok := logged(call)
			if !ok {
				return true
			}
			calls++
			at := files.Position(call.Pos())
			if lit, isText := message.(*ast.BasicLit); message != nil && !constant(message) && (!isText || lit.Kind != token.STRING) {
				t.Errorf("%s: the message of a line is no constant: what varies belongs to its keys", at)
			}
			for _, k := range keys {
				lit, ok := k.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					continue // a constant of the table
				}
				key, err := strconv.Unquote(lit.Value)
				switch instead := Instead[key]; {
				case err != nil || !word.MatchString(key):
					t.Errorf("%s: key %s is no word in snake case", at, lit.Value)
				case instead != "":
					t.Errorf("%s: key %q: say %q (pipeline/logs/keys.go)", at, key, instead)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if calls < 50 {
		t.Errorf("only %d calls of loggers were found", calls)
	}
}

// logged is what a call of a logger gives it, by the names of slog.
func logged(call *ast.CallExpr) (keys []ast.Expr, message ast.Expr, ok bool) {
	f, isMethod := call.Fun.(*ast.SelectorExpr)
	if !isMethod || call.Ellipsis.IsValid() {
		return nil, nil, false
	}
	args := call.Args
	switch f.Sel.Name {
	case "Debug", "Info", "Warn", "Error":
		if len(args) == 0 || len(args) == 1 && !isLog(f.X) {
			return nil, nil, false
		}
		message, args = args[0], args[1:]
	case "With":
	default:
		return nil, nil, false
	}
	if !isLog(f.X) {
		return nil, nil, false
	}
	for i := 0; i < len(args); i += 2 {
		keys = append(keys, args[i])
	}
	return keys, message, true
}

// isLog reports whether an expression is a logger, by what it is called.
func isLog(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "log" || x.Name == "slog" || x.Name == "logger"
	case *ast.SelectorExpr:
		return x.Sel.Name == "log" || x.Sel.Name == "Log" || x.Sel.Name == "logger"
	case *ast.CallExpr:
		f, ok := x.Fun.(*ast.SelectorExpr)
		return ok && (f.Sel.Name == "Default" && isLog(f.X) || f.Sel.Name == "With" && isLog(f.X))
	}
	return false
}

// constant reports whether a message is a name, such as one of a table.
func constant(x ast.Expr) bool {
	switch x.(type) {
	case *ast.Ident, *ast.SelectorExpr:
		return true
	}
	return false
}

// TestREADME holds the table of the keys to the code.
func TestREADME(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	table := "| key | what it says |\n|---|---|\n"
	for _, k := range Keys {
		table += "| `" + k.Key + "` | " + k.Says + " |\n"
	}
	if !strings.Contains(string(text), table) {
		t.Errorf("README.md has another table of keys; this is it:\n%s", table)
	}
}
