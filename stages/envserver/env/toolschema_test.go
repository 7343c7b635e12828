package env

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// A schema with which a check would not end is refused; one that describes a tree is not, and the check of a deep tree ends.
func TestToolSchemas(t *testing.T) {
	doubled := `"d0":{"type":"object"}`
	for i := range 40 {
		doubled += fmt.Sprintf(`,"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}`, i+1, i, i)
	}
	for schema, want := range map[string]string{
		`{"$ref":"#"}`: "without end",
		`{"type":"object","allOf":[{"$ref":"#"}]}`: "without end",
		`{"type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"$ref":"#/$defs/y"},"y":{"$ref":"#/$defs/x"}}}`: "without end",
		`{"type":"object","anyOf":[{"not":{"if":{"dependentSchemas":{"a":{"$ref":"#/anyOf/0"}}}}}]}`:                            "without end",
		`{"type":"object","$ref":"#/$defs/d40","$defs":{` + doubled + `}}`:                                                      "more than 1000",
		`{"type":"object","$ref":"#here","$defs":{"x":{"$anchor":"here"}}}`:                                                     "part of the same schema",
		`{"type":"object","$ref":"https://example.com/schema"}`:                                                                 "resolve schema",
		`{"type":"object","$ref":"#/$defs/none"}`:                                                                               "resolve schema",
		`{"type":"object","properties":{"a":{"$ref":"#"},"allOf":{"type":"string"},"$ref":{"type":"string"}}}`:                  "",
		`{"type":"object","properties":{"a":{"anyOf":[{"$ref":"#/$defs/a~1b"},{"type":"null"}]}},"$defs":{"a/b":{"$ref":"#"}}}`: "",
	} {
		s := &source{tools: []Tool{{Name: "go", Schema: json.RawMessage(schema)}}}
		nested := func(n int) string { return strings.Repeat(`{"a":`, n) + "{}" + strings.Repeat("}", n) }
		if _, err := Tools(s); want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%.80s: %v, want %s", schema, err, want)
			}
			continue
		}
		if m, err := Call(t.Context(), s, ToolCall{ID: "c", Name: "go", Arguments: nested(maxDepth - 1)}); err != nil || m.Content != "done" {
			t.Errorf("%s: %.200v, %v", schema, m, err)
		}
		if m, err := Call(t.Context(), s, ToolCall{ID: "c", Name: "go", Arguments: nested(10 * maxDepth)}); err != nil || !strings.Contains(m.Content, "nested more than 64") {
			t.Errorf("%s: %.200v, %v", schema, m, err)
		}
	}
}
