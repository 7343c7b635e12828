package verifiers

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prl-project/prl/stages/envserver/bridge/zmtp"
	"github.com/prl-project/prl/stages/envserver/env"
)

const health = 30 * time.Second

// pipe is a connection in memory, for a bubble of synctest; other than those of [net.Pipe] its ends do not wait for each other.
func pipe() (ours, theirs net.Conn) {
	a, b := net.Pipe()
	return buffer(a), buffer(b)
}

type buffered struct {
	net.Conn
	out  chan []byte
	quit chan struct{}
	once sync.Once
}

func buffer(c net.Conn) net.Conn {
	b := &buffered{Conn: c, out: make(chan []byte, 1000), quit: make(chan struct{})}
	go func() {
		for {
			select {
			case p := <-b.out:
				if _, err := c.Write(p); err != nil {
					return
				}
			case <-b.quit:
				return
			}
		}
	}()
	return b
}

func (b *buffered) Write(p []byte) (int, error) {
	select {
	case b.out <- bytes.Clone(p):
		return len(p), nil
	case <-b.quit:
		return 0, net.ErrClosed
	}
}

func (b *buffered) Close() error {
	b.once.Do(func() { close(b.quit) })
	return b.Conn.Close()
}

// meet connects a client with the other end, inside a bubble of synctest. Both end with the test.
func meet(t *testing.T, w *wire, limit int64) (*client, *zmtp.Conn) {
	t.Helper()
	ours, theirs := pipe()
	opened := make(chan *zmtp.Conn, 1)
	go func() {
		c, err := zmtp.Open(t.Context(), theirs, zmtp.Router, 1<<20)
		if err != nil {
			t.Error(err)
		}
		opened <- c
	}()
	conn, err := zmtp.Open(t.Context(), ours, zmtp.Dealer, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(conn, w, limit, health)
	server := <-opened
	t.Cleanup(func() {
		c.close()
		_ = server.Close()
	})
	return c, server
}

var (
	fine   = pack(object{"success": true, "error": nil})
	policy = env.Endpoint{BaseURL: "http://127.0.0.1:1/v1", Model: "policy", Temperature: 1, TopP: 1, MaxTokens: 8}
)

// serve answers health checks and hands over all else.
func serve(server *zmtp.Conn, w *wire, other func(id []byte, frames [][]byte)) {
	for {
		frames, err := server.Recv()
		if err != nil {
			return
		}
		if len(frames) == len(w.health)+1 && string(frames[1]) == string(w.health[0]) {
			_ = server.Send(append([][]byte{frames[0]}, form(w, fine)...)...)
			continue
		}
		other(frames[0], frames[1:])
	}
}

// form is a reply as a wire has it.
func form(w *wire, payload []byte) [][]byte {
	if w == wire040 {
		return [][]byte{[]byte("reply"), payload}
	}
	return [][]byte{payload}
}

// Health checks do not pile up at a server that is busy, and one that answers late lives; one that does not answer is given up.
func TestInvariant_NoRequestWaitsForEver(t *testing.T) {
	for _, w := range wires {
		t.Run(w.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, server := meet(t, w, 1<<20)
				result := make(chan error, 1)
				go func() {
					_, err := c.run(t.Context(), object{"prompt": "x", "task_idx": int64(1)}, policy, tokens{})
					result <- err
				}()
				pings, began := 0, time.Now()
				for time.Since(began) < 3*time.Minute {
					frames, err := server.Recv()
					if err != nil {
						t.Fatal(err)
					}
					if len(frames) != len(w.health)+1 || string(frames[1]) != string(w.health[0]) {
						continue
					}
					pings++
					time.Sleep(health - time.Second) // late
					if err := server.Send(append([][]byte{frames[0]}, form(w, fine)...)...); err != nil {
						t.Fatal(err)
					}
				}
				if pings > 6 {
					t.Errorf("%d pings in three minutes", pings)
				}
				go func() {
					for { // hears, and says nothing any more
						if _, err := server.Recv(); err != nil {
							return
						}
					}
				}()
				if err := <-result; !errors.Is(err, errHangs) || !strings.Contains(err.Error(), "30s (health_s)") {
					t.Errorf("error %v", err)
				}
				if _, err := c.run(t.Context(), object{"prompt": "x", "task_idx": int64(1)}, policy, tokens{}); !errors.Is(err, errHangs) {
					t.Errorf("later: %v", err)
				}
			})
		})
	}
}

// A rollout whose caller has gone is cancelled in the words of its wire, and what still comes of it is dropped.
func TestCancel(t *testing.T) {
	for _, test := range []struct {
		w    *wire
		want func(run, id string, frames [][]byte) bool
	}{
		{wire040, func(run, _ string, frames [][]byte) bool {
			v, err := unpack(frames[1])
			return err == nil && string(frames[0]) == "cancel" && textOf(v.(object), "request_id") == run
		}},
		{wireV0, func(run, id string, frames [][]byte) bool {
			return id == run && len(frames) == 1 && len(frames[0]) == 0
		}},
	} {
		t.Run(test.w.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, server := meet(t, test.w, 1<<20)
				ctx, cancel := context.WithCancel(t.Context())
				run, cancelled := "", false
				go serve(server, test.w, func(id []byte, frames [][]byte) {
					if run == "" {
						run = string(id)
						cancel()
						return
					}
					cancelled = test.want(run, string(id), frames)
					late := pack(object{"success": false, "error": "Cancelled: rollout aborted"})
					_ = server.Send(append([][]byte{[]byte(run)}, form(test.w, late)...)...)
				})
				_, err := c.run(ctx, object{"prompt": "x"}, policy, tokens{})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("error %v", err)
				}
				synctest.Wait()
				if !cancelled {
					t.Error("it was not cancelled")
				}
				if err := c.ping(health); err != nil {
					t.Errorf("afterwards: %v", err)
				}
			})
		})
	}
}

// Whatever a server answers, it costs the rollout that it answers, which ends at once.
func TestInvariant_GarbageCostsItsOwnRollout(t *testing.T) {
	deep := append(make([]byte, 0, 1000), strings.Repeat("\x91", 999)...)
	for _, test := range []struct {
		name   string
		frames [][]byte
		want   string
	}{
		{"no payload", nil, "another wire"},
		{"another wire", [][]byte{fine}, "another wire"},
		{"too many frames", [][]byte{[]byte("reply"), fine, fine}, "another wire"},
		{"an unknown kind", [][]byte{[]byte("news"), fine}, "another wire"},
		{"no msgpack", [][]byte{[]byte("reply"), {0xc1}}, "nobody can read"},
		{"half of it", [][]byte{[]byte("reply"), fine[:len(fine)-1]}, "nobody can read"},
		{"more than one", [][]byte{[]byte("reply"), append(fine[:len(fine):len(fine)], fine...)}, "something follows"},
		{"too deep", [][]byte{[]byte("reply"), deep}, "deep"},
		{"more than there is", [][]byte{[]byte("reply"), {0xdd, 0xff, 0xff, 0xff, 0xff, 0}}, "nobody can read"},
		{"a list", [][]byte{[]byte("reply"), {0x90}}, "not a map"},
		{"a key that is a list", [][]byte{[]byte("reply"), {0x81, 0x90, 0xc0}}, "a key of type"},
		{"too long", [][]byte{[]byte("reply"), pack(object{"success": true, "x": strings.Repeat("x", 1<<20-100)})}, "reply_mb"},
		{"neither", [][]byte{[]byte("reply"), pack(object{"x": 1})}, "neither success nor an error"},
		{"an error", [][]byte{[]byte("reply"), pack(object{"success": false, "error": "no such thing"})}, "no such thing"},
		{"no head", [][]byte{[]byte("reply"), fine}, "no head"},
		{"a delta of nothing", [][]byte{[]byte("delta"), pack(object{"trace": "t", "nodes": []any{}})}, "not begun"},
		{"nodes that are none", [][]byte{[]byte("delta"), pack(object{"trace": "t", "open": object{}, "nodes": 1})}, "nodes of a delta"},
		{"links from nowhere", [][]byte{[]byte("delta"), pack(object{"trace": "t", "open": object{}, "links": object{"3": []any{}}})}, "links node 3 of 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, server := meet(t, wire040, 1<<19)
				go serve(server, wire040, func(id []byte, _ [][]byte) {
					_ = server.Send([]byte("nobody"), []byte("reply"), fine) // and what nobody has asked for
					_ = server.Send(append([][]byte{id}, test.frames...)...)
				})
				_, err := c.run(t.Context(), object{"prompt": "x"}, policy, tokens{})
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("error %v, want one with %q", err, test.want)
				}
				if err := c.ping(health); err != nil {
					t.Errorf("afterwards: %v", err)
				}
			})
		})
	}
}

// What a server says of a rollout in many messages is bounded as what it says in one: values take more memory than bytes.
func TestInvariant_ManyMessagesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, server := meet(t, wire040, 64<<20)
		eighth := pack(object{"trace": "t", "open": object{}, "nodes": make([]any, mostValues/8)})
		go serve(server, wire040, func(id []byte, _ [][]byte) {
			for range 8 {
				_ = server.Send(id, []byte("delta"), eighth)
			}
		})
		if _, err := c.run(t.Context(), object{"prompt": "x"}, policy, tokens{}); err == nil || !strings.Contains(err.Error(), "more than 4194304 values") {
			t.Errorf("error %v", err)
		}
	})
}

// When the connection is lost all that wait hear so.
func TestLostConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, server := meet(t, wire040, 1<<20)
		go serve(server, wire040, func(id []byte, _ [][]byte) { _ = server.Close() })
		if _, err := c.run(t.Context(), object{"prompt": "x"}, policy, tokens{}); err == nil || !strings.Contains(err.Error(), "connection is lost") {
			t.Errorf("error %v", err)
		}
	})
}

// probing asks in all forms; servers drop what they do not know.
func TestProbe(t *testing.T) {
	for _, w := range wires {
		t.Run(w.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := pipe()
				go func() {
					server, err := zmtp.Open(t.Context(), theirs, zmtp.Router, 1<<20)
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(15 * time.Second) // it is only starting
					serve(server, w, func([]byte, [][]byte) {})
					_ = server.Close()
				}()
				conn, err := zmtp.Open(t.Context(), ours, zmtp.Dealer, 1<<20)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := probe(t.Context(), conn); got != w || err != nil {
					t.Errorf("wire %v, %v", got, err)
				}
				_ = conn.Close()
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := pipe()
		go func() {
			server, err := zmtp.Open(t.Context(), theirs, zmtp.Router, 1<<20)
			if err != nil {
				t.Error(err)
				return
			}
			for err == nil {
				_, err = server.Recv()
			}
			_ = server.Close()
		}()
		conn, err := zmtp.Open(t.Context(), ours, zmtp.Dealer, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := probe(ctx, conn); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "any wire (0.4.0, 0.2.1, v0)") {
			t.Errorf("nobody answers: %v", err)
		}
	})
}
