package settings

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A source reads what the comments of the code say.
type source struct {
	t        *testing.T
	packages map[string]*parsed
}

// parsed is one package.
type parsed struct {
	types  map[string]*ast.TypeSpec
	docs   map[string]string   // of types
	consts map[string]string   // texts, by name
	typed  map[string][]string // names of constants, by their type
}

const module = "github.com/prl-project/prl/"

// parsed reads the package of a path; nil for one that is not ours.
func (src *source) parsed(path string) *parsed {
	src.t.Helper()
	dir, ours := strings.CutPrefix(path, module)
	if !ours {
		return nil
	}
	if p := src.packages[path]; p != nil {
		return p
	}
	p := &parsed{map[string]*ast.TypeSpec{}, map[string]string{}, map[string]string{}, map[string][]string{}}
	src.packages[path] = p
	entries, err := os.ReadDir(filepath.Join("../..", dir))
	if err != nil {
		src.t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("../..", dir, e.Name()), nil, parser.ParseComments)
		if err != nil {
			src.t.Fatal(err)
		}
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok {
				p.take(g)
			}
		}
	}
	return p
}

func (p *parsed) take(g *ast.GenDecl) {
	for _, spec := range g.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			p.types[s.Name.Name] = s
			p.docs[s.Name.Name] = g.Doc.Text() + s.Doc.Text()
		case *ast.ValueSpec:
			if g.Tok != token.CONST || len(s.Values) != 1 {
				continue
			}
			lit, ok := s.Values[0].(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				continue
			}
			text, err := strconv.Unquote(lit.Value)
			if err != nil {
				continue
			}
			p.consts[s.Names[0].Name] = text
			if of, ok := s.Type.(*ast.Ident); ok {
				p.typed[of.Name] = append(p.typed[of.Name], text)
			}
		}
	}
}

// typeDoc is what the comment of a struct says beyond its name.
func (src *source) typeDoc(t reflect.Type) string {
	if t == nil || src.parsed(t.PkgPath()) == nil {
		return ""
	}
	doc := src.parsed(t.PkgPath()).docs[t.Name()]
	doc, _, _ = strings.Cut(doc, "\n\t") // examples
	if strings.HasPrefix(doc, "Config holds the options") {
		_, doc, _ = strings.Cut(doc, ".")
	}
	doc = opening.ReplaceAllString(src.words(t, "", doc), "")
	if doc != "" {
		doc = strings.ToUpper(doc[:1]) + doc[1:]
	}
	if doc = strings.TrimSpace(doc); len(strings.Fields(doc)) < 4 {
		return ""
	}
	return doc
}

// opening is how the comment of a section begins.
var opening = regexp.MustCompile("^`?(An? )?[A-Za-z]+`? (is|are|says|is what is in) (the|a) (section|options?|settings)( of (this )?(the )?environment)?( \\[[^]]*\\])*[.:,]? ?")

// fieldDoc is what the comment of a field says, in the words of the configuration. A field without one has that of the field
// before it, if that speaks of it.
func (src *source) fieldDoc(in reflect.Type, f reflect.StructField) string {
	src.t.Helper()
	if in == nil || src.parsed(in.PkgPath()) == nil {
		return ""
	}
	spec := src.parsed(in.PkgPath()).types[in.Name()]
	if spec == nil {
		return ""
	}
	last := ""
	for _, field := range spec.Type.(*ast.StructType).Fields.List {
		doc := field.Doc.Text()
		if doc == "" {
			doc = field.Comment.Text()
		}
		if doc == "" && len(field.Names) > 0 && slices.Contains(strings.FieldsFunc(last, notLetter), field.Names[0].Name) {
			doc = last
		}
		for _, name := range field.Names {
			if name.Name == f.Name {
				return src.meaning(in, f, doc)
			}
		}
		last = doc
	}
	return ""
}

func notLetter(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9')
}

func (src *source) meaning(in reflect.Type, f reflect.StructField, doc string) string {
	doc = src.words(in, f.Name, doc)
	key, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
	if rest, ok := strings.CutPrefix(doc, "`"+key+"`: "); ok {
		return rest
	}
	if rest, ok := strings.CutPrefix(doc, "`"+key+"` of "); ok {
		return strings.ToUpper(f.Name[:1]) + f.Name[1:] + " of " + rest
	}
	for _, verb := range []string{" is ", " are "} {
		if rest, ok := strings.CutPrefix(doc, "`"+key+"`"+verb); ok {
			doc = rest
			break
		}
	}
	if doc == "" {
		return ""
	}
	if doc[0] >= 'a' && doc[0] <= 'z' {
		doc = strings.ToUpper(doc[:1]) + doc[1:]
	}
	return doc
}

var ident = regexp.MustCompile(`\[?\b[A-Z][A-Za-z0-9]*\b\]?`)

// words puts the comment of a field on one line, with keys for fields and values for constants. A word alone, as Model is, is
// only taken for a field where it is the field spoken of, or within a sentence.
func (src *source) words(in reflect.Type, field, doc string) string {
	p := src.parsed(in.PkgPath())
	doc = strings.Join(strings.Fields(doc), " ")
	var b strings.Builder
	last := 0
	for _, at := range ident.FindAllStringIndex(doc, -1) {
		name := strings.Trim(doc[at[0]:at[1]], "[]")
		b.WriteString(doc[last:at[0]])
		last = at[1]
		f, ok := in.FieldByName(name)
		key, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
		begins := at[0] == 0 || strings.HasSuffix(doc[:at[0]], ". ")
		word := !strings.Contains(key, "_") && (begins || slices.Contains([]string{"TLS", "SASL", "URL", "Kafka"}, name))
		text, constant := p.consts[name]
		switch {
		case ok && key != "" && key != "-" && (name == field || !word):
			b.WriteString("`" + key + "`")
		case constant:
			b.WriteString(strconv.Quote(text))
		default:
			b.WriteString(doc[at[0]:at[1]])
		}
	}
	return b.String() + doc[last:]
}

// values are all that a field of texts may hold, where its type has constants or its comment names some.
func (src *source) values(in, typ reflect.Type, f reflect.StructField) (values []string) {
	if typ.Kind() != reflect.String {
		return nil
	}
	quoted := func(list []string) (out []string) {
		for _, text := range list {
			if text != "" {
				out = append(out, strconv.Quote(text))
			}
		}
		return out
	}
	if p := src.parsed(typ.PkgPath()); p != nil {
		if list := p.typed[typ.Name()]; len(list) > 1 {
			return quoted(list)
		}
	}
	p := src.parsed(in.PkgPath())
	if p == nil || p.types[in.Name()] == nil {
		return nil
	}
	for _, field := range p.types[in.Name()].Type.(*ast.StructType).Fields.List {
		if len(field.Names) == 0 || field.Names[0].Name != f.Name {
			continue
		}
		for _, name := range ident.FindAllString(field.Doc.Text(), -1) {
			if text, ok := p.consts[name]; ok && !slices.Contains(values, text) {
				values = append(values, text)
			}
		}
	}
	if len(values) < 2 {
		return nil
	}
	return quoted(values)
}
