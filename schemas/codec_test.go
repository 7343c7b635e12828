package schemas

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
)

func TestEncode_RoundTrip(t *testing.T) {
	for _, name := range names {
		rng := rand.New(rand.NewPCG(7, 11))
		records := []Record{newRecord(name)}
		for range 200 {
			records = append(records, random(rng, name))
		}
		for _, r := range records {
			b, err := Encode(r)
			if err != nil {
				t.Fatalf("%+v: %v", r, err)
			}
			got, err := registry().newest[name].read(b[10:])
			if err != nil {
				t.Fatalf("%+v: %v", r, err)
			}
			if !reflect.DeepEqual(got, r) {
				t.Fatalf("got  %+v\nwant %+v", got, r)
			}
		}
	}
}

// Equal records are equal bytes (I6), whatever the order in which Go walks their maps.
func TestEncode_Deterministic(t *testing.T) {
	r := &EvalResult{Metrics: map[string]float64{}}
	for i := range 50 {
		r.Metrics[strings.Repeat("m", i)] = float64(i)
	}
	want, err := Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if got, err := Encode(r); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("the same record was encoded to other bytes (%v)", err)
		}
	}
}

func TestEncode_RefusesIntOutOfRange(t *testing.T) {
	if b, err := Encode(&Request{Kind: RequestWave, Rollouts: 1 << 40}); err == nil {
		t.Fatalf("encoded 2^40 into an Avro int: %x", b)
	}
}

// Writers are used again, by several goroutines: nothing of a record, or of one that was refused, comes into another, and no
// message into the next.
func TestEncode_ManyAtOnce(t *testing.T) {
	var want [][]byte
	for _, l := range loads() {
		want = append(want, mustEncode(t, l.record))
	}
	var g sync.WaitGroup
	for range 4 {
		g.Go(func() {
			var got [][]byte
			for _, l := range loads() {
				if _, err := Encode(&Task{Task: strings.Repeat("refused", 1000), GroupSize: math.MaxInt32 + 1}); err == nil {
					t.Error("a group size of more than 32 bits was written")
				}
				b, err := Encode(l.record)
				if err != nil {
					t.Error(err)
				}
				got = append(got, b)
			}
			for i := range got {
				if !bytes.Equal(got[i], want[i]) {
					t.Errorf("%s: other bytes", loads()[i].name)
				}
			}
		})
	}
	g.Wait()
}

func TestDecode_LongArrays(t *testing.T) {
	r := &PolicyVersion{Weights: BlobRef{URI: "u", SHA256: "s"}}
	for i := range 3*maxBlock + 1 {
		r.NextOffsets = append(r.NextOffsets, int64(i))
	}
	b, err := Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeAs[*PolicyVersion](b); err != nil || !reflect.DeepEqual(got, r) {
		t.Fatalf("%d offsets came back as %d (%v)", len(r.NextOffsets), len(got.NextOffsets), err)
	}
}

func TestDecode_AppendingToATensorLeavesItsNeighbours(t *testing.T) {
	b, err := Encode(exampleTrace(2, 4))
	if err != nil {
		t.Fatal(err)
	}
	r, err := DecodeAs[*Trace](b)
	if err != nil {
		t.Fatal(err)
	}
	r.Nodes[0].TokenIDs = append(r.Nodes[0].TokenIDs, 9, 9, 9, 9)
	if !reflect.DeepEqual(r.Nodes[1], exampleTrace(2, 4).Nodes[1]) || !bytes.Equal(r.Nodes[0].Mask, []byte{1, 1, 1, 1}) {
		t.Fatal("appending to one tensor changed another")
	}
}

// Of the texts only long ones beside tensors share the message's memory. What may be kept without its record does not: a
// short text, which may be a name, and the texts of records that can be kept without their tensors.
func TestDecode_WhichTextsShareMemory(t *testing.T) {
	long, short := strings.Repeat("long", longText/4), strings.Repeat("s", longText-1)
	want := exampleTrace(1, 2)
	want.Task, want.Info, want.Errors = long, long, []TraceError{{Type: "model", Message: long, Traceback: long}}
	want.Nodes[0].Agent, want.Nodes[0].RefModel, want.Nodes[0].ToolCalls = short, short, []ToolCall{{ID: long, Name: long, Arguments: long}}
	want.Nodes[0].Content, want.Nodes[0].Reasoning = long, long
	b := mustEncode(t, want)
	got := mustDecode(t, b).(*Trace)
	if !reflect.DeepEqual(got, want) {
		t.Fatal("it changed on the way")
	}
	clear(b)
	if n := &got.Nodes[0]; n.Content != strings.Repeat("\x00", len(long)) || n.Reasoning != n.Content {
		t.Error("a long text beside tensors was copied")
	}
	got.Nodes[0].Content, got.Nodes[0].Reasoning = long, long
	got.Nodes[0].TokenIDs, got.Nodes[0].Mask, got.Nodes[0].Logprobs = want.Nodes[0].TokenIDs, want.Nodes[0].Mask, want.Nodes[0].Logprobs
	if !reflect.DeepEqual(got, want) {
		t.Error("another text shares the memory of the message")
	}
}

func TestDecode_Errors(t *testing.T) {
	good, err := Encode(exampleTrace(1, 2))
	if err != nil {
		t.Fatal(err)
	}
	invalid, err := Encode(&Task{})
	if err != nil {
		t.Fatal(err)
	}
	unknown := append([]byte{0xC3, 0x01}, bytes.Repeat([]byte{7}, 8)...)
	for _, c := range []struct {
		name  string
		bytes []byte
		want  string
	}{
		{"empty", nil, "single-object"},
		{"other magic", append([]byte{0}, good[1:]...), "single-object"},
		{"unknown schema", unknown, "0707070707070707"},
		{"cut short", good[:len(good)-3], "decode Trace"},
		{"too long", append(bytes.Clone(good), 0), "1 bytes too many"},
		{"invalid", invalid, "invalid Task"},
	} {
		if _, err := Decode(c.bytes); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", c.name, err, c.want)
		}
	}
	if _, err := DecodeAs[*Task](good); err == nil || !strings.Contains(err.Error(), "got a Trace, want a Task") {
		t.Errorf("trace decoded as task: %v", err)
	}
}

// A length that a message claims costs no memory before its items are there.
func TestDecode_HostileLengths(t *testing.T) {
	for _, name := range names {
		for _, claim := range []int64{1 << 20, 1 << 31, 1<<62 + 1, -1 << 31} {
			var body []byte
			for range 40 { // whatever field comes first, some read lands in the claim
				body = binary.AppendVarint(body, claim)
			}
			for zeros := range 40 {
				b := append(header(name), append(make([]byte, zeros), body...)...)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				if _, err := Decode(b); err == nil {
					t.Fatalf("%s: a claim of %d items was believed", name, claim)
				}
				runtime.ReadMemStats(&after)
				if used := after.TotalAlloc - before.TotalAlloc; used > 4<<20 {
					t.Fatalf("%s: claim of %d items after %d zeros: %d bytes allocated for a message of %d", name, claim, zeros, used, len(b))
				}
			}
		}
	}
}

func header(name string) []byte { return bytes.Clone(registry().newest[name].header) }

// Decode takes any bytes without a panic; what it accepts it writes again to a message that reads the same.
func FuzzDecode(f *testing.F) {
	rng := rand.New(rand.NewPCG(3, 5))
	for _, name := range names {
		f.Add(header(name))
		for range 4 {
			b, err := Encode(random(rng, name))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	b, err := Encode(exampleTrace(3, 5))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Decode(b)
		if err != nil {
			return
		}
		if c := registry().byFingerprint[binary.LittleEndian.Uint64(b[2:])]; c != nil {
			if _, rest, err := c.avro.NativeFromBinary(b[10:]); err != nil || len(rest) > 0 {
				t.Fatalf("goavro refuses the %s: %v", r.SchemaName(), err)
			}
		}
		again, err := Encode(r)
		if err != nil {
			t.Fatalf("decoded %s cannot be encoded: %v", r.SchemaName(), err)
		}
		second, err := Decode(again)
		if err != nil {
			t.Fatalf("encoded %s cannot be decoded: %v", r.SchemaName(), err)
		}
		// By bytes: NaN is not equal to itself.
		if third, err := Encode(second); err != nil || !bytes.Equal(third, again) {
			t.Fatalf("%s changed on the way (%v)", r.SchemaName(), err)
		}
	})
}
