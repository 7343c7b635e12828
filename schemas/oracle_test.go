package schemas

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/hamba/avro/v2"
)

// A second implementation of Avro reads what this package writes, and writes what it reads.
func TestOracle_Hamba(t *testing.T) {
	for _, name := range names {
		schema := parse(t, registry().newest[name].avro.Schema())
		rng := rand.New(rand.NewPCG(17, 19))
		for range 100 {
			want := random(rng, name)
			ours, err := Encode(want)
			if err != nil {
				t.Fatal(err)
			}

			read := newRecord(name)
			if err := avro.Unmarshal(schema, ours[10:], read); err != nil {
				t.Fatalf("%s: hamba cannot read what we wrote: %v\n%+v", name, err, want)
			}
			if again, err := Encode(read); err != nil || !bytes.Equal(again, ours) {
				t.Fatalf("hamba read another record (%v):\n%+v\nwant %+v", err, read, want)
			}

			theirs, err := avro.Marshal(schema, want)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got, err := registry().newest[name].read(theirs)
			if err != nil {
				t.Fatalf("%s: cannot read what hamba wrote: %v\n%+v", name, err, want)
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("read from hamba:\n%+v\nwant %+v", got, want)
			}
		}
	}
}

// The fingerprint that names a schema on the wire is the CRC-64-AVRO of its canonical form.
func TestOracle_Fingerprint(t *testing.T) {
	for _, name := range names {
		want, err := parse(t, registry().newest[name].avro.Schema()).FingerprintUsing(avro.CRC64AvroLE)
		if err != nil {
			t.Fatal(err)
		}
		if got := registry().newest[name].header[2:]; !bytes.Equal(got, want) {
			t.Errorf("%s: fingerprint %x, hamba says %x", name, got, want)
		}
	}
}
