package schemas

import (
	"strings"
	"testing"
)

// A kept version is found by any text of its schema, whatever that says beside the schema itself.
func TestFindVersion(t *testing.T) {
	for _, kept := range frozen(t) {
		text := strings.Replace(kept.avro.Schema(), `"doc": "`, `"doc": "In other words: `, 1)
		v, err := FindVersion(text)
		if err != nil || v.codec.avro.Rabin != kept.avro.Rabin || v.codec.name != kept.name {
			t.Errorf("%s: %+v, %v", kept.name, v, err)
		}
	}
	want := &Task{Env: "catch", GroupSize: 2, TaskIndex: 5, Seed: 9}
	b, err := AppendBinary([]byte("head"), want)
	if err != nil {
		t.Fatal(err)
	}
	text, err := Schema("Task")
	if err != nil {
		t.Fatal(err)
	}
	v, err := FindVersion(text)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := v.Decode(b[4:]); err != nil || got.(*Task).Seed != 9 {
		t.Errorf("got %+v (%v), want %+v", got, err, want)
	}
	if _, err := v.Decode(b); err == nil {
		t.Error("decoded what is none")
	}
}

func TestFindVersion_Foreign(t *testing.T) {
	text, err := Schema("Task")
	if err != nil {
		t.Fatal(err)
	}
	for schema, want := range map[string]string{
		"":         "not an Avro schema",
		`"string"`: "is not one this version of prl knows",
		strings.Replace(text, `"fields": [`, `"fields": [{"name": "added", "type": "long", "default": 0},`, 1): "prl.Task: schema",
	} {
		if v, err := FindVersion(schema); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %+v, error %v", schema, v, err)
		}
	}
}

func TestFullName(t *testing.T) {
	if got := FullName(&Trace{}); got != "prl.Trace" {
		t.Errorf("%q", got)
	}
}
