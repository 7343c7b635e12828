package env

import (
	"context"
	"strings"
	"testing"
)

// sloppy has a tool with properties enough to be wrong in several.
type sloppy struct{ *scripted }

type sloppyArgs struct {
	A int      `json:"a"`
	B string   `json:"b"`
	C []int    `json:"c"`
	D nested   `json:"d"`
	E string   `json:"e,omitempty" enum:"x,y"`
	F []nested `json:"f,omitempty"`
}

type nested struct {
	X int `json:"x"`
	Y int `json:"y"`
}

func (sloppy) Do(context.Context, sloppyArgs) (string, error) { return "done", nil }

// Of several mistakes the same is told every time, since the policy sees the words.
func TestWrongArgumentsAreToldInTheSameWords(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{`{"a":1,"b":"","c":[1],"d":{"x":1,"y":2}}`, "done"},
		{`{"z":1,"y":1,"x":1,"a":"1"}`, `unexpected additional properties ["x" "y" "z"]`},
		{`{"b":1,"c":1}`, `required: missing properties: ["a" "d"]`},
		{`{"a":"1","b":1,"c":"","d":1}`, "/properties/a"},
		{`{"a":1,"b":"","c":["x","y"],"d":1}`, "/properties/c"},
		{`{"a":1,"b":"","c":[],"d":{"x":"1","y":"2","z":3}}`, `property "d": unexpected additional properties ["z"]`},
		{`{"a":1,"b":"","c":[],"d":{"x":"1","y":"2"}}`, `property "d": validating /properties/x: `},
		{`{"a":1,"b":"","c":[],"d":{"x":1,"y":2},"f":[{"x":"1","y":"2"}]}`, `property "f" does not fit its schema {`},
		{`{"a":1,"b":"","c":[],"d":{"x":1,"y":2},"e":"z"}`, "enum"},
	} {
		first := ""
		for i := range 50 {
			m, err := Call(t.Context(), sloppy{script()}, ToolCall{ID: "c", Name: "Do", Arguments: test.args})
			if err != nil || !strings.Contains(m.Content, test.want) {
				t.Fatalf("%s: %q, %v, want %q", test.args, m.Content, err, test.want)
			}
			if i == 0 {
				first = m.Content
			}
			if m.Content != first {
				t.Fatalf("%s: %q, and then %q", test.args, first, m.Content)
			}
		}
	}
}
