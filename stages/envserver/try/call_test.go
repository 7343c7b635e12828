package try

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
)

func TestArguments(t *testing.T) {
	s := readSchema(env.Tool{Schema: json.RawMessage(`{"properties":{"n":{"type":"integer"},"x":{"type":["null","number"]},"on":{"type":"boolean"},
		"word":{"type":"string"},"list":{"type":"array"},"any":{}},"required":["word","n"]}`)})
	one := readSchema(env.Tool{Schema: json.RawMessage(`{"properties":{"word":{"type":"string"}}}`)})
	for _, c := range []struct {
		schema      schema
		typed, want string
	}{
		{s, "", `{}`},
		{s, ` {"n": 1} `, `{"n": 1}`},
		{s, `{"n`, `{"n`},
		{s, `n=3 x=1.5 on=true word=5`, `{"n": 3, "x": 1.5, "on": true, "word": "5"}`},
		{s, `word="a \"b\" <c>" n=-1`, `{"word": "a \"b\" <c>", "n": -1}`},
		{s, `word='a "b"'  any='7'`, `{"word": "a \"b\"", "any": "7"}`},
		{s, `list=[1, "a b"] any={"x": [2]} n=4`, `{"list": [1, "a b"], "any": {"x": [2]}, "n": 4}`},
		{s, `n=three`, `{"n": "three"}`},
		{s, `n=1 n=2 other=4 word=`, `{"n": 1, "n": 2, "other": 4, "word": ""}`},
		{s, `word=a=b`, `{"word": "a=b"}`},
		{s, `hello`, `error: "hello" is no argument`},
		{s, `n=1 2`, `error: "2" is no argument`},
		{s, `word='a`, `error: argument word: the quotes are not closed`},
		{s, `list=[1`, `error: argument list: [1: not closed`},
		{one, `crane`, `{"word": "crane"}`},
		{one, `so be it`, `{"word": "so be it"}`},
		{one, `word=crane`, `{"word": "crane"}`},
		{one, `1+1=2`, `{"word": "1+1=2"}`},
		{one, `"x y"`, `{"word": "x y"}`},
	} {
		got, err := c.schema.arguments(c.typed)
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != c.want && !(err != nil && strings.HasPrefix(got, c.want)) {
			t.Errorf("%s: %s, want %s", c.typed, got, c.want)
		}
	}
}

func TestFindTool(t *testing.T) {
	tools := []env.Tool{{Name: "Get"}, {Name: "get"}, {Name: "Put"}}
	for name, want := range map[string]string{"get": "get", "Get": "Get", "GET": "", "put": "Put", "post": ""} {
		if got, ok := findTool(tools, name); got.Name != want || ok != (want != "") {
			t.Errorf("%s finds %q", name, got.Name)
		}
	}
}

func TestPlain(t *testing.T) {
	for text, want := range map[string]string{"a\tü ✓": "a\tü ✓", "\x1b[2J": `\x1b[2J`, "a\rb\xff": `a\rb` + "\ufffd"} {
		if got := plain(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}
