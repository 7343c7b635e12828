package sink

import (
	"bytes"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// FuzzRow writes any bytes as a record of any topic: it is a row of the table, readable or with its bytes and the reason.
func FuzzRow(f *testing.F) {
	trace, err := schemas.Encode(&schemas.Trace{Env: "catch", GroupSize: 1, Nodes: []schemas.Node{{Parent: -1, Content: "\xff"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(byte(2), "0", trace)
	f.Add(byte(12), "traces/0/1", []byte("garbage"))
	f.Add(byte(0), "\xff/-1/x", []byte{})
	f.Fuzz(func(t *testing.T, topic byte, key string, value []byte) {
		name := pipeline.Topics[int(topic)%len(pipeline.Topics)].Name
		if name == "tasks." {
			name = pipeline.TopicTasks("catch")
		}
		table, ok := tableOf(name)
		if !ok {
			t.Fatalf("no table for %s", name)
		}
		var file bytes.Buffer
		if _, err := table.write(&file, name, 0, []Row{{Offset: 5, Key: []byte(key), Value: value}}, nil); err != nil {
			t.Fatal(err)
		}
		p, err := parquet.OpenFile(bytes.NewReader(file.Bytes()), int64(file.Len()))
		if err != nil {
			t.Fatal(err)
		}
		if p.NumRows() != 1 {
			t.Fatalf("%d rows", p.NumRows())
		}
	})
}
