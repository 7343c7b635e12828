// Package zmtp carries ZeroMQ's messages, lists of frames, over one connection: ZMTP 3.1 with NULL security, as DEALER and
// ROUTER sockets speak it (https://rfc.zeromq.org/spec/37). A socket is what its user makes of connections: one for a DEALER,
// one per client for a ROUTER.
//
// The guarantee: a peer is believed nothing. A message over the limit, a bad frame and a handshake that does not end are errors
// of the connection, memory is taken as bytes come in, and a message that could not be handed to the system is an error of Send.
//
// It stands in for go-zeromq/zmq4 (0.17), in which a header with a large length ends the whole process (it allocates what the
// header says, without a limit), a peer that says nothing holds Dial for ever and an accepting socket with it, and what is sent
// after a connection is lost is dropped without a word.
package zmtp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// Kinds of sockets.
const (
	Dealer = "DEALER"
	Router = "ROUTER"
)

const (
	handshakeTime = 10 * time.Second
	sendTime      = 30 * time.Second // for the peer to take a message
	mostFrames    = 64
)

// ErrFormat says that the peer does not speak ZMTP as it should, or says more than it may.
var ErrFormat = errors.New("zmtp")

// Conn is a connection to a peer. Send may be called by many goroutines at once, Recv by one. An error of either is the end of
// the connection.
type Conn struct {
	rw       net.Conn
	in       *bufio.Reader
	limit    int
	identity string

	mu  sync.Mutex // held for one message
	out []byte
}

// Dial connects to a ROUTER or DEALER at "tcp://host:port" or "ipc://path". limit is the most bytes of a message from it.
func Dial(ctx context.Context, address, kind string, limit int) (*Conn, error) {
	network, at, err := Split(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	rw, err := new(net.Dialer).DialContext(ctx, network, at)
	if err != nil {
		return nil, err
	}
	c, err := Open(ctx, rw, kind, limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	return c, nil
}

// Split gives the network and address, as package net has them, of an address as ZeroMQ writes it.
func Split(address string) (network, at string, err error) {
	scheme, at, ok := strings.Cut(address, "://")
	switch {
	case ok && at != "" && scheme == "tcp":
		return "tcp", at, nil
	case ok && at != "" && scheme == "ipc":
		return "unix", at, nil
	}
	return "", "", fmt.Errorf("address %q: want tcp://host:port or ipc://path", address)
}

// Open makes a connection of rw, which it owns from then on, by the handshake. It takes ten seconds at most.
func Open(ctx context.Context, rw net.Conn, kind string, limit int) (*Conn, error) {
	c := &Conn{rw: rw, in: bufio.NewReader(rw), limit: limit}
	stop := context.AfterFunc(ctx, func() { _ = rw.SetDeadline(time.Unix(1, 0)) }) // closed: it has ended
	err := c.handshake(kind)
	if !stop() {
		err = errors.Join(err, ctx.Err())
	}
	if err == nil {
		err = rw.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("handshake: %w", err), rw.Close())
	}
	return c, nil
}

// Identity is what the peer calls itself; it may be empty.
func (c *Conn) Identity() string { return c.identity }

// Close ends the connection; a Recv that waits returns.
func (c *Conn) Close() error { return c.rw.Close() }

const (
	more    = 1
	long    = 2
	command = 4
)

// Send hands a message to the system.
func (c *Conn) Send(frames ...[]byte) error {
	if len(frames) == 0 {
		return fmt.Errorf("%w: a message without frames", ErrFormat)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = c.out[:0]
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = more
		}
		c.out = appendFrame(c.out, flags, f)
	}
	return c.flush()
}

// flush writes what is in out.
func (c *Conn) flush() error {
	if err := c.rw.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return err
	}
	if _, err := c.rw.Write(c.out); err != nil {
		return errors.Join(err, c.rw.Close()) // half of a message may have gone
	}
	if cap(c.out) > 1<<20 {
		c.out = nil
	}
	return nil
}

func appendFrame(to []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		to = append(to, flags|long)
		to = binary.BigEndian.AppendUint64(to, uint64(len(body)))
	} else {
		to = append(to, flags, byte(len(body)))
	}
	return append(to, body...)
}

// Recv returns the next message. It answers the peer's pings.
func (c *Conn) Recv() ([][]byte, error) {
	var frames [][]byte
	room := c.limit
	for {
		flags, body, err := c.frame(room)
		switch {
		case err != nil:
			return nil, err
		case flags&command != 0:
			if err := c.obey(body); err != nil {
				return nil, err
			}
			continue
		case len(frames) == mostFrames:
			return nil, fmt.Errorf("%w: a message of more than %d frames", ErrFormat, mostFrames)
		}
		frames = append(frames, body)
		room -= len(body)
		if flags&more == 0 {
			return frames, nil
		}
	}
}

// frame reads one that has room bytes at most.
func (c *Conn) frame(room int) (flags byte, body []byte, err error) {
	if flags, err = c.in.ReadByte(); err != nil {
		return 0, nil, err
	}
	if flags&^(more|long|command) != 0 || flags&command != 0 && flags&more != 0 {
		return 0, nil, fmt.Errorf("%w: flags %#x of a frame", ErrFormat, flags)
	}
	size := make([]byte, 8)
	if flags&long == 0 {
		_, err = io.ReadFull(c.in, size[7:])
	} else {
		_, err = io.ReadFull(c.in, size)
	}
	if err != nil {
		return 0, nil, unexpected(err)
	}
	n := binary.BigEndian.Uint64(size)
	if n > uint64(room) {
		return 0, nil, fmt.Errorf("%w: a message of more than %d bytes", ErrFormat, c.limit)
	}
	var read bytes.Buffer
	if _, err := io.CopyN(&read, c.in, int64(n)); err != nil {
		return 0, nil, unexpected(err)
	}
	return flags, read.Bytes(), nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// obey does what a command asks.
func (c *Conn) obey(body []byte) error {
	name, rest, err := short(body)
	switch {
	case err != nil:
		return err
	case name == "ERROR":
		reason, _, err := short(rest)
		return errors.Join(fmt.Errorf("%w: the peer says %q", ErrFormat, reason), err)
	case name == "PING" && len(rest) >= 2: // how long it waits, and what to repeat
		c.mu.Lock()
		defer c.mu.Unlock()
		c.out = appendFrame(c.out[:0], command, append([]byte("\x04PONG"), rest[2:]...))
		return c.flush()
	}
	return nil
}

// short reads a text that has a byte for its length.
func short(b []byte) (text string, rest []byte, err error) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return "", nil, fmt.Errorf("%w: a command that is cut off", ErrFormat)
	}
	n := 1 + int(b[0])
	return string(b[1:n]), b[n:], nil
}
