// Package schemas holds the records of prl's topics: every byte on a topic is one of them, in Avro single-object
// encoding, and every version of a schema that was ever released can still be decoded.
//
// The *.avsc files are the source; the Go types and how they are written and read follow from them by go generate, and a test
// fails when they have drifted. Two other implementations of Avro agree with every byte in the tests; here goavro only checks
// schemas and names them. Tensors are little-endian packed bytes (Int32s, Float32s, Uint8s), never Avro arrays: they are
// copied once when a record is written, and not at all when it is read; nor are the long texts beside them (TestCost).
package schemas

import (
	"embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/linkedin/goavro/v2"
)

//go:generate go run ./gen

//go:embed *.avsc versions/*.avsc
var files embed.FS

// Record is one of the generated types.
type Record interface {
	SchemaName() string
	// Validate reports what is wrong with a record that decoded: lengths that disagree, indices out of range (I5).
	Validate() error
	write(*writer)
	read(*reader)
}

// A codec is one version of one record's schema.
type codec struct {
	name   string
	avro   *goavro.Codec // the schema
	shape  shape
	header []byte // of the single-object encoding
}

var registry = sync.OnceValue(func() (r struct {
	byFingerprint map[uint64]*codec
	newest        map[string]*codec
}) {
	r.byFingerprint, r.newest = map[uint64]*codec{}, map[string]*codec{}
	for _, pattern := range []string{"versions/*.avsc", "*.avsc"} {
		names, err := fs.Glob(files, pattern)
		if err != nil {
			panic(err)
		}
		for _, name := range names {
			raw, err := files.ReadFile(name)
			if err != nil {
				panic(err)
			}
			c, err := newCodec(raw)
			if err != nil {
				panic(fmt.Sprintf("embedded schema %s: %v", name, err))
			}
			r.byFingerprint[c.avro.Rabin] = c
			r.newest[c.name] = c // the newest comes last
		}
	}
	return r
})

func newCodec(schema []byte) (*codec, error) {
	var named struct{ Name string }
	if err := json.Unmarshal(schema, &named); err != nil {
		return nil, err
	}
	if newRecord(named.Name) == nil {
		return nil, fmt.Errorf("no record is named %q", named.Name)
	}
	avro, err := goavro.NewCodec(string(schema))
	if err != nil {
		return nil, err
	}
	fields, err := shapeOf(schema)
	if err != nil {
		return nil, err
	}
	header := binary.LittleEndian.AppendUint64([]byte{0xC3, 0x01}, avro.Rabin)
	return &codec{named.Name, avro, fields, header}, nil
}

// Encode gives the single-object encoding of r in the newest version of its schema. Equal records give equal bytes.
func Encode(r Record) ([]byte, error) {
	return encode(registry().newest[r.SchemaName()].header, r)
}

// AppendBinary appends the Avro binary encoding of r in the newest version of its schema, which names no schema, to a copy
// of head.
func AppendBinary(head []byte, r Record) ([]byte, error) { return encode(head, r) }

func encode(head []byte, r Record) ([]byte, error) {
	w := writers.Get().(*writer)
	defer w.release()
	r.write(w)
	if w.err != nil {
		return nil, fmt.Errorf("encode %s: %w", r.SchemaName(), w.err)
	}
	return w.message(head), nil
}

// Decode reads a single-object encoding of any version of any record and validates it. Tensors and bytes of the record
// share b's memory, and so do long texts beside tensors: nobody may write to b afterwards.
func Decode(b []byte) (Record, error) {
	if len(b) < 10 || b[0] != 0xC3 || b[1] != 0x01 {
		return nil, fmt.Errorf("not an Avro single-object encoding (%d bytes)", len(b))
	}
	fingerprint := binary.LittleEndian.Uint64(b[2:])
	c, ok := registry().byFingerprint[fingerprint]
	if !ok {
		return nil, errUnknown(fingerprint)
	}
	return Version{c}.Decode(b[10:])
}

// ErrUnknownSchema is an encoding with a schema that is not embedded: a newer version of prl, or somebody else, wrote it.
var ErrUnknownSchema = errors.New("not one this version of prl knows")

func errUnknown(fingerprint uint64) error {
	return fmt.Errorf("schema %016x is %w", fingerprint, ErrUnknownSchema)
}

// A Version is one version of one record's schema.
type Version struct{ codec *codec }

// FindVersion finds the version whose canonical form a schema has, given as JSON. A schema of any other form is an error
// that names its fingerprint, even if Avro could resolve it: only of the kept ones it is known that they read right.
func FindVersion(schema string) (Version, error) {
	kept := registry().byFingerprint
	avro, err := goavro.NewCodec(schema)
	if err != nil {
		return Version{}, fmt.Errorf("not an Avro schema: %w", err)
	}
	c, ok := kept[avro.Rabin]
	if !ok {
		name := avro.TypeName()
		return Version{}, fmt.Errorf("%s: %w", name.String(), errUnknown(avro.Rabin))
	}
	return Version{c}, nil
}

// Decode reads an Avro binary encoding that was written with this version and validates the record. It shares b's
// memory as Decode does.
func (v Version) Decode(b []byte) (Record, error) {
	r, err := v.codec.read(b)
	if err != nil {
		return nil, err
	}
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("invalid %s: %w", v.codec.name, err)
	}
	return r, nil
}

// read decodes what follows the header.
func (c *codec) read(b []byte) (Record, error) {
	d := reader{shape: &c.shape, b: b}
	r := newRecord(c.name)
	r.read(&d)
	if d.err != nil {
		return nil, fmt.Errorf("decode %s: %w", c.name, d.err)
	}
	if rest := len(b) - d.at; rest > 0 {
		return nil, fmt.Errorf("decode %s: %d bytes too many", c.name, rest)
	}
	return r, nil
}

// DecodeAs decodes a record that must be of type T.
func DecodeAs[T Record](b []byte) (T, error) {
	var none T
	r, err := Decode(b)
	if err != nil {
		return none, err
	}
	t, ok := r.(T)
	if !ok {
		return none, fmt.Errorf("decode: got a %s, want a %s", r.SchemaName(), none.SchemaName())
	}
	return t, nil
}

// New makes an empty record of the name its schema gives it; nil where there is none of that name.
func New(name string) Record { return newRecord(name) }

// Schema is the newest Avro schema of the named record, as JSON.
func Schema(name string) (string, error) {
	c, ok := registry().newest[name]
	if !ok {
		return "", fmt.Errorf("no record is named %q", name)
	}
	return c.avro.Schema(), nil
}

// FullName is the name of a record with the namespace of its schema.
func FullName(r Record) string {
	name := registry().newest[r.SchemaName()].avro.TypeName()
	return name.String()
}

// Tensors calls visit with the path and a pointer to the bytes of every tensor of r.
func Tensors(r Record, visit func(path string, data *[]byte)) {
	if t, ok := r.(interface {
		tensors(string, func(string, *[]byte))
	}); ok {
		t.tensors("", visit)
	}
}
