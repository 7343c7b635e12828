package schemas

import (
	"fmt"
	"strconv"
)

// A place is where a record stands within another, such as nodes.3; nowhere for one that stands by itself.
type place struct {
	list  string
	index int
}

func (p place) String() string { return p.list + "." + strconv.Itoa(p.index) }

// path names a field of the record there.
func (p place) path(field string) string {
	if p.list == "" {
		return field
	}
	return p.String() + "." + field
}

// lengths are those of the tensors that a claim check moved to the blob store, by path; nil for none.
type lengths map[string]int64

func lengthsOf(blobs []BlobRef) lengths {
	if len(blobs) == 0 {
		return nil
	}
	l := lengths{}
	for _, b := range blobs {
		l[b.Path] = b.Bytes
	}
	return l
}

// bytes is the length of a tensor, here or in the blob store.
func (l lengths) bytes(at place, field string, data []byte) int64 {
	if len(data) == 0 && l != nil {
		return l[at.path(field)]
	}
	return int64(len(data))
}

// elements is the number of elements of width bytes in a tensor.
func (l lengths) elements(at place, field string, data []byte, width int64) (int64, error) {
	n := l.bytes(at, field, data)
	if n < 0 || n%width != 0 {
		return 0, fmt.Errorf("%s: %d bytes are no multiple of %d", at.path(field), n, width)
	}
	return n / width, nil
}

// A tensor is one field of a group of tensors of equal length.
type tensor struct {
	name     string
	data     []byte
	width    int64
	optional bool // may be empty
}

// equal checks that the tensors have as many elements as the first, which is that many.
func (l lengths) equal(at place, first tensor, others ...tensor) (int64, error) {
	want, err := l.elements(at, first.name, first.data, first.width)
	if err != nil {
		return 0, err
	}
	for i := range others {
		t := &others[i]
		if bytes := l.bytes(at, t.name, t.data); bytes == want*t.width || bytes == 0 && t.optional {
			continue
		}
		n, err := l.elements(at, t.name, t.data, t.width)
		if err == nil {
			err = fmt.Errorf("%s has %d elements, %s has %d", at.path(t.name), n, at.path(first.name), want)
		}
		return 0, err
	}
	return want, nil
}
