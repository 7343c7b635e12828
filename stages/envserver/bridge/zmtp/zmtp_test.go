package zmtp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const limit = 1 << 20

// pair connects a DEALER with a ROUTER.
func pair(t *testing.T) (dealer, router *Conn) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	opened := make(chan *Conn, 1)
	go func() {
		rw, err := listener.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		c, err := Open(t.Context(), rw, Router, limit)
		if err != nil {
			t.Error(err)
		}
		opened <- c
	}()
	dealer, err = Dial(t.Context(), "ipc://"+listener.Addr().String(), Dealer, limit)
	if err != nil {
		t.Fatal(err)
	}
	router = <-opened
	t.Cleanup(func() { _, _ = dealer.Close(), router.Close() })
	return dealer, router
}

func TestMessages(t *testing.T) {
	dealer, router := pair(t)
	for _, frames := range [][][]byte{
		{[]byte("one")}, {{}, []byte("two"), {}}, {make([]byte, 255), make([]byte, 256)}, {bytes.Repeat([]byte("x"), limit)},
	} {
		go func() {
			if err := dealer.Send(frames...); err != nil {
				t.Error(err)
			}
		}()
		got, err := router.Recv()
		if err != nil || len(got) != len(frames) {
			t.Fatalf("%d frames of %d: %v", len(got), len(frames), err)
		}
		for i := range frames {
			if !bytes.Equal(got[i], frames[i]) {
				t.Errorf("frame %d has %d bytes of %d", i, len(got[i]), len(frames[i]))
			}
		}
	}
}

// A message that is not sent is an error, also after the peer has gone: nothing is lost without a word.
func TestInvariant_SendSays(t *testing.T) {
	dealer, router := pair(t)
	if err := router.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := dealer.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("error %v", err)
	}
	if err := dealer.Send([]byte("x")); err == nil {
		t.Error("sent")
	}
}

// sockets are the two ends of a connection.
func sockets(t *testing.T) (ours, theirs *net.UnixConn) {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if ours, err = net.DialUnix("unix", nil, listener.Addr().(*net.UnixAddr)); err != nil {
		t.Fatal(err)
	}
	if theirs, err = listener.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	return ours, theirs
}

// raw speaks with the bytes that a test gives; what it is sent, it swallows.
func raw(t *testing.T, bytes []byte) (*Conn, error) {
	t.Helper()
	ours, theirs := sockets(t)
	go func() { _, _ = io.Copy(io.Discard, theirs) }()
	go func() {
		_, _ = theirs.Write(bytes)
		_ = theirs.CloseWrite()
	}()
	c, err := Open(t.Context(), ours, Dealer, limit)
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

func hello() []byte {
	return appendFrame(greeting(), command, property([]byte("\x05READY"), "Socket-Type", Router))
}

// A peer is believed nothing: what it may not say is an error, at once and without memory for it.
func TestInvariant_Bounded(t *testing.T) {
	huge := binary.BigEndian.AppendUint64([]byte{long}, 1<<46)
	for name, test := range map[string]struct {
		bytes []byte
		want  string
	}{
		"no greeting":        {bytes.Repeat([]byte("HTTP/1.1 400 Bad Request\r\n"), 4), "no ZeroMQ socket"},
		"old":                {append([]byte{0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0x7F, 2}, make([]byte, 53)...), "version 2"},
		"cut off":            {greeting()[:30], "EOF"},
		"huge READY":         {append(greeting(), append([]byte{command | long}, huge[1:]...)...), "more than"},
		"READY is cut off":   {appendFrame(greeting(), command, []byte("\x05READY\x04a")), "cut off"},
		"a long property":    {appendFrame(greeting(), command, append([]byte("\x05READY\x01a"), 0xFF, 0xFF, 0xFF, 0xFF)), "cut off"},
		"no READY":           {appendFrame(greeting(), 0, []byte("\x05READY")), "READY"},
		"another kind":       {appendFrame(greeting(), command, property([]byte("\x05READY"), "Socket-Type", "PUB")), "PUB"},
		"a huge frame":       {append(hello(), huge...), "more than"},
		"huge in the end":    {append(appendFrame(hello(), more, []byte("x")), huge...), "more than"},
		"many frames":        {append(hello(), bytes.Repeat([]byte{more, 0}, mostFrames+1)...), "frames"},
		"unknown flags":      {append(hello(), 0xF0, 0), "flags"},
		"an error":           {appendFrame(hello(), command, []byte("\x05ERROR\x02no")), `"no"`},
		"an empty command":   {appendFrame(hello(), command, nil), "cut off"},
		"a frame is cut off": {append(hello(), 0, 5, 'x'), "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := raw(t, test.bytes)
			if err == nil {
				_, err = c.Recv()
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

// A peer that says nothing costs ten seconds; one whose caller has gone, nothing.
func TestSilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		began := time.Now()
		if _, err := Open(t.Context(), ours, Dealer, limit); err == nil || time.Since(began) != handshakeTime {
			t.Errorf("error %v after %v", err, time.Since(began))
		}
		_ = theirs.Close()
		ours, theirs = net.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := Open(ctx, ours, Dealer, limit); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		_ = theirs.Close()
	})
}

func TestPing(t *testing.T) {
	dealer, router := pair(t)
	if _, err := router.rw.Write(appendFrame(nil, command, []byte("\x04PING\x00\x0actx"))); err != nil {
		t.Fatal(err)
	}
	if err := router.Send([]byte("after")); err != nil {
		t.Fatal(err)
	}
	if got, err := dealer.Recv(); err != nil || string(got[0]) != "after" {
		t.Errorf("%q, %v", got, err)
	}
	if flags, body, err := router.frame(100); err != nil || flags != command || string(body) != "\x04PONGctx" {
		t.Errorf("flags %d, %q, %v", flags, body, err)
	}
}

func FuzzConn(f *testing.F) {
	f.Add(hello())
	f.Add(appendFrame(hello(), more, []byte("x")))
	f.Fuzz(func(t *testing.T, b []byte) {
		// No panic, and an end.
		c, err := raw(t, b)
		for err == nil {
			_, err = c.Recv()
		}
	})
}
