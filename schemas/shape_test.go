package schemas

import (
	"strings"
	"testing"
)

// A version with a field that the newest has with another type, or not at all, is no version that could be read.
func TestShape_Refuses(t *testing.T) {
	text, err := Schema("Request")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{`{"name": "step", "type": "long"`, `{"name": "step", "type": "double"`, "Request.step: the newest version has no such field of type double"},
		{`{"name": "step", "type": "long"`, `{"name": "step", "type": ["long", "null"]`, "of type long or null"},
		{`{"name": "step"`, `{"name": "steps"`, "Request.steps"},
		{`"name": "Request"`, `"name": "Question"`, `no record is named "Question"`},
	} {
		changed := strings.Replace(text, c.old, c.new, 1)
		if changed == text {
			t.Fatalf("%s is not in the schema", c.old)
		}
		if _, err := newCodec([]byte(changed)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.new, err, c.want)
		}
	}
}
