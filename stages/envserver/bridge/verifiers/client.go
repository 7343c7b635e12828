package verifiers

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prl-project/prl/stages/envserver/bridge/zmtp"
	"github.com/prl-project/prl/stages/envserver/env"
)

// client is one connection to a server, with the rollouts that are under way on it. It is safe for concurrent use. It ends when
// the connection does, when a health check is not answered, or when it is closed; whoever waits then hears why.
type client struct {
	conn  *zmtp.Conn
	wire  *wire
	limit int64 // bytes that a server may say of one rollout
	all   sync.WaitGroup
	ended chan struct{}
	why   error // once ended

	mu      sync.Mutex
	waiting map[string]*call
}

// call is a request on its way. Only the goroutine that reads the connection adds to its record.
type call struct {
	record record
	bytes  int64
	values int
	done   chan error // of one
}

// errHangs says that a server is there and does not answer.
var errHangs = errors.New("the server hangs, or speaks another wire")

// newClient takes over a connection. Every health the server is asked whether it lives, and must answer in that time.
func newClient(conn *zmtp.Conn, w *wire, limit int64, health time.Duration) *client {
	c := &client{conn: conn, wire: w, limit: limit, ended: make(chan struct{}), waiting: map[string]*call{}}
	c.all.Go(c.read)
	c.all.Go(func() { c.watch(health) })
	return c
}

// newID makes the id of a request: 32 digits, as the servers' own clients do.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// run plays a rollout. When ctx ends it is cancelled at the server, where the wire can do that.
func (c *client) run(ctx context.Context, task object, model env.Endpoint, with tokens) (env.Outcome, error) {
	frames, err := c.wire.run(task, model, with)
	if err != nil {
		return env.Outcome{}, err
	}
	r := c.wire.record()
	id := newID()
	if err := c.ask(ctx, id, frames, r); err != nil {
		if ctx.Err() != nil && c.wire.cancel != nil {
			id, frames := c.wire.cancel(id)
			_ = c.send(id, frames) // a connection that is lost has cancelled it
		}
		return env.Outcome{}, err
	}
	return r.outcome()
}

// ask sends a request and waits until its record is whole.
func (c *client) ask(ctx context.Context, id string, frames [][]byte, r record) error {
	k := &call{record: r, done: make(chan error, 1)}
	c.mu.Lock()
	if c.waiting == nil {
		c.mu.Unlock()
		return c.why
	}
	c.waiting[id] = k
	c.mu.Unlock()
	if err := c.send(id, frames); err != nil {
		c.end(fmt.Errorf("the connection is lost: send: %w", err))
	}
	select {
	case err := <-k.done:
		return err
	case <-ctx.Done():
	case <-c.ended:
	}
	c.mu.Lock()
	delete(c.waiting, id)
	c.mu.Unlock()
	select {
	case err := <-k.done: // the last it said
		return err
	case <-c.ended:
		return c.why
	default:
		return fmt.Errorf("wait for the server: %w", context.Cause(ctx))
	}
}

func (c *client) send(id string, frames [][]byte) error {
	return c.conn.Send(append([][]byte{[]byte(id)}, frames...)...)
}

// read hands what comes to who waits for it. What nobody waits for any more is dropped.
func (c *client) read() {
	for {
		frames, err := c.conn.Recv()
		if err != nil {
			c.end(fmt.Errorf("the connection is lost: %w", err))
			return
		}
		c.mu.Lock()
		k := c.waiting[string(frames[0])]
		c.mu.Unlock()
		if k == nil {
			continue
		}
		if over, err := c.add(k, frames[1:]); over {
			c.mu.Lock()
			delete(c.waiting, string(frames[0]))
			c.mu.Unlock()
			k.done <- err
		}
	}
}

// add adds a message to the record of a call; over says that it is the last, or of no use.
func (c *client) add(k *call, frames [][]byte) (over bool, err error) {
	payload, final, err := c.wire.heard(frames)
	if err != nil {
		return true, err
	}
	if k.bytes += int64(len(payload)); k.bytes > c.limit {
		return true, fmt.Errorf("the server says more than %d MiB of a rollout (reply_mb)", c.limit>>20)
	}
	v, err := unpackMore(payload, &k.values)
	if err != nil {
		return true, fmt.Errorf("an answer that nobody can read: %w", err)
	}
	said, ok := v.(object)
	if !ok {
		return true, fmt.Errorf("an answer that is a %T, not a map", v)
	}
	if err := k.record.add(said, final); err != nil {
		return true, err
	}
	return final, nil
}

// watch asks for health, once at a time: a server that is busy answers late, and all that has queued up.
func (c *client) watch(health time.Duration) {
	for {
		if err := c.ping(health); err != nil {
			c.end(err)
			return
		}
		select {
		case <-time.After(health / 3):
		case <-c.ended:
			return
		}
	}
}

func (c *client) ping(within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var p pong
	err := c.ask(ctx, newID(), c.wire.health, &p)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: no answer to a health check in %v (health_s), in the form of wire %s", errHangs, within, c.wire.name)
	}
	return err
}

// pong is the record of a health check.
type pong struct{}

func (pong) add(said object, _ bool) error { return refused(said) }

func (pong) outcome() (env.Outcome, error) { return env.Outcome{}, nil }

// facts is the record of what wire 0.2.1 says of its tasks.
type facts struct {
	pong
	said object
}

func (f *facts) add(said object, _ bool) error {
	f.said = said
	return refused(said)
}

// end ends the connection, the first time it is called.
func (c *client) end(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting != nil {
		c.why, c.waiting = why, nil
		close(c.ended)
		_ = c.conn.Close() // it is of no use any more
	}
}

func (c *client) close() {
	c.end(errClosed)
	c.all.Wait()
}

// dial connects to a server that may not be there yet, until ctx ends.
func dial(ctx context.Context, address string, limit int64) (*zmtp.Conn, error) {
	pause := 50 * time.Millisecond
	for {
		conn, err := zmtp.Dial(ctx, address, zmtp.Dealer, int(limit))
		if err == nil || errors.Is(err, zmtp.ErrFormat) {
			return conn, err
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, 2*time.Second)
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to %s: %w: %w", address, context.Cause(ctx), err)
		}
	}
}

// probe finds out which wire a server speaks: it is asked for its health in every form, and drops those that it does not know
// without a word. It reads the connection, so nobody else may yet.
func probe(ctx context.Context, conn *zmtp.Conn) (*wire, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	asked := map[string]*wire{}
	for _, w := range []*wire{wire040, wireV0} { // that of 0.2.1 asks as 0.4.0 does
		id := newID()
		asked[id] = w
		if err := conn.Send(append([][]byte{[]byte(id)}, w.health...)...); err != nil {
			return nil, fmt.Errorf("ask for health: %w", err)
		}
	}
	for {
		frames, err := conn.Recv()
		if err != nil {
			var names []string
			for _, w := range wires {
				names = append(names, w.name)
			}
			return nil, fmt.Errorf("no answer to a health check in the form of any wire (%s): %w", strings.Join(names, ", "),
				errors.Join(err, context.Cause(ctx)))
		}
		w := asked[string(frames[0])]
		if w == wire040 && len(frames) == 2 {
			w = wire021
		}
		if w != nil {
			return w, nil
		}
	}
}
