package board

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
)

// Event files are TFRecords: length (8 bytes, little-endian), masked CRC-32C of these, data, masked CRC-32C of the data
// (tensorflow/core/lib/io/record_writer.h).

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func masked(data []byte) uint32 {
	c := crc32.Checksum(data, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}

// appendRecord appends data as a record.
func appendRecord(b, data []byte) []byte {
	at := len(b)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(data)))
	b = binary.LittleEndian.AppendUint32(b, masked(b[at:at+8]))
	b = append(b, data...)
	return binary.LittleEndian.AppendUint32(b, masked(data))
}

// maxRecord is far above what a record of ours has.
const maxRecord = 64 << 20

var errTorn = errors.New("the record is torn")

// readRecord reads the next record and its size with the framing. It gives io.EOF at the end of the file, and errTorn where
// what comes is no whole record.
func readRecord(r io.Reader) (data []byte, size int64, err error) {
	var head [12]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, 0, tornUnless(err, io.EOF)
	}
	n := binary.LittleEndian.Uint64(head[:])
	if masked(head[:8]) != binary.LittleEndian.Uint32(head[8:]) || n > maxRecord {
		return nil, 0, errTorn
	}
	body := make([]byte, n+4)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, 0, tornUnless(err, nil)
	}
	data = body[:n]
	if masked(data) != binary.LittleEndian.Uint32(body[n:]) {
		return nil, 0, errTorn
	}
	return data, int64(len(head) + len(body)), nil
}

// tornUnless is what it means that a read came to the end of the file; end is the error that is none.
func tornUnless(err, end error) error {
	switch {
	case end != nil && errors.Is(err, end):
		return end
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errTorn
	}
	return err
}
