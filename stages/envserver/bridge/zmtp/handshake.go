package zmtp

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"time"
)

// greeting is sent by both sides first: signature, version 3.1, mechanism, and the rest is zero.
func greeting() []byte {
	g := make([]byte, 64)
	g[0], g[9] = 0xFF, 0x7F
	g[10], g[11] = 3, 1
	copy(g[12:], "NULL")
	return g
}

// handshake exchanges greetings, then READY commands with the kinds of both sockets.
func (c *Conn) handshake(kind string) error {
	if err := c.rw.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return err
	}
	ready := property([]byte("\x05READY"), "Socket-Type", kind)
	if kind == Dealer {
		ready = property(ready, "Identity", "") // the ROUTER makes one up
	}
	if _, err := c.rw.Write(greeting()); err != nil {
		return err
	}
	theirs := make([]byte, 64)
	if _, err := io.ReadFull(c.in, theirs); err != nil {
		return err
	}
	switch mechanism := strings.TrimRight(string(theirs[12:32]), "\x00"); {
	case theirs[0] != 0xFF || theirs[9]&1 != 1:
		return fmt.Errorf("%w: no ZeroMQ socket answers there", ErrFormat)
	case theirs[10] < 3:
		return fmt.Errorf("%w: version %d, want 3", ErrFormat, theirs[10])
	case mechanism != "NULL":
		return fmt.Errorf("%w: security mechanism %q, want NULL", ErrFormat, mechanism)
	}
	if _, err := c.rw.Write(appendFrame(nil, command, ready)); err != nil {
		return err
	}
	flags, body, err := c.frame(4096)
	if err != nil {
		return err
	}
	name, rest, err := short(body)
	switch {
	case err != nil:
		return err
	case flags&command == 0 || name != "READY":
		return fmt.Errorf("%w: %q where READY was due", ErrFormat, name)
	}
	theirKind := ""
	for len(rest) > 0 {
		if name, rest, err = short(rest); err != nil {
			return err
		}
		if len(rest) < 4 || uint64(len(rest)-4) < uint64(binary.BigEndian.Uint32(rest)) {
			return fmt.Errorf("%w: READY is cut off", ErrFormat)
		}
		n := 4 + int(binary.BigEndian.Uint32(rest))
		switch value := string(rest[4:n]); strings.ToLower(name) {
		case "socket-type":
			theirKind = value
		case "identity":
			c.identity = value
		}
		rest = rest[n:]
	}
	if theirKind != Router && theirKind != Dealer {
		return fmt.Errorf("%w: the peer is of kind %q, want %s or %s", ErrFormat, theirKind, Router, Dealer)
	}
	return nil
}

func property(to []byte, name, value string) []byte {
	to = append(to, byte(len(name)))
	to = append(to, name...)
	to = binary.BigEndian.AppendUint32(to, uint32(len(value)))
	return append(to, value...)
}
