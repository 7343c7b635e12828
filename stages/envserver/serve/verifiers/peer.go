package verifiers

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	wire "github.com/prl-project/prl/stages/envserver/bridge/verifiers"
	"github.com/prl-project/prl/stages/envserver/bridge/zmtp"
)

// A peer is a client's connection, with its rollouts.
type peer struct {
	*Server
	conn *zmtp.Conn
	all  sync.WaitGroup

	mu      sync.Mutex
	running map[string]context.CancelCauseFunc // by the request's id
}

// Why a rollout is given up.
var (
	errCancelled error = original("Cancelled: rollout aborted")
	errLeft            = errors.New("the client has left")
)

// original is an error in the words of the original server.
type original string

func (o original) Error() string { return string(o) }

// serve answers a client until it leaves or ctx ends. Its rollouts end with it.
func (s *Server) serve(ctx context.Context, conn *zmtp.Conn) {
	ctx, leave := context.WithCancelCause(ctx)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // Recv returns
	p := &peer{Server: s, conn: conn, running: map[string]context.CancelCauseFunc{}}
	for {
		frames, err := conn.Recv()
		if err != nil {
			break
		}
		switch len(frames) {
		case 3:
			p.request(ctx, string(frames[0]), string(frames[1]), frames[2])
		case 2:
			p.requestV0(ctx, string(frames[0]), frames[1])
		default: // the original drops it, too
			s.log.Warn("a message of another form is dropped", "frames", len(frames))
		}
	}
	leave(errLeft)
	p.all.Wait()
	stop()
	_ = conn.Close()
}

// begin runs a request on its own until it has an answer, or is cancelled.
func (p *peer) begin(ctx context.Context, id string, run func(ctx context.Context) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.running[id] != nil:
		return invalid("request %s runs already", id)
	case len(p.running) >= mostWaiting:
		return invalid("%d requests of this client run already", mostWaiting)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	p.running[id] = cancel
	p.all.Go(func() {
		defer cancel(nil)
		if err := run(ctx); err != nil && !errors.Is(context.Cause(ctx), errLeft) {
			p.log.Warn("an answer could not be sent", "error", err)
			_ = p.conn.Close()
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.running, id)
	})
	return nil
}

// cancel gives a request up, if it runs.
func (p *peer) cancel(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	cancel := p.running[id]
	if cancel != nil {
		cancel(errCancelled)
	}
	return cancel != nil
}

func (p *peer) send(id, kind string, v object) error {
	frames := [][]byte{[]byte(id)}
	if kind != "" {
		frames = append(frames, []byte(kind))
	}
	return p.conn.Send(append(frames, wire.Pack(v))...)
}

// kindOf is the frame before an answer's payload, which wire 0.2.1 does not have.
func (p *peer) kindOf() string {
	if p.cfg.Wire == Wire021 {
		return ""
	}
	return "reply"
}

func success() object { return object{"success": true, "error": nil} }

func refusal(err error) object {
	var bad errInvalid
	text := err.Error()
	if errors.As(err, &bad) {
		text = "ValidationError: " + text
	}
	return object{"success": false, "error": text}
}

// request answers one with a method.
func (p *peer) request(ctx context.Context, id, method string, payload []byte) {
	answer, err := p.route(ctx, id, method, payload)
	if err != nil {
		answer = refusal(err)
	}
	if answer != nil {
		if err := p.send(id, p.kindOf(), answer); err != nil {
			_ = p.conn.Close()
		}
	}
}

// route answers a request, or begins what will.
func (p *peer) route(ctx context.Context, id, method string, payload []byte) (object, error) {
	request, err := decoded(payload)
	if err != nil {
		return nil, err
	}
	switch p.cfg.Wire + " " + method {
	case Wire040 + " health", Wire021 + " health":
		return success(), nil
	case Wire040 + " cancel":
		target, ok := request["request_id"].(string)
		if !ok {
			return nil, invalid("request_id: Field required")
		}
		v := success()
		v["cancelled"] = p.cancel(target)
		return v, nil
	case Wire040 + " run":
		return nil, p.run040(ctx, id, request)
	case Wire021 + " info":
		v := success()
		v["num_tasks"], v["requires_group_scoring"] = p.info.Train, p.compares()
		return v, nil
	case Wire021 + " run_rollout", Wire021 + " run_group":
		return nil, p.run021(ctx, id, method, request)
	}
	hint := ""
	switch method {
	case "info", "run_rollout", "run_group":
		hint = " (this server speaks the wire of 0.4.0; ?wire=0.2.1 in its address makes it speak that)"
	}
	return nil, fmt.Errorf("unknown method '%s'%s", method, hint)
}

// newRollout is a rollout that has not begun.
func newRollout(t task, p player) *rollout {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return &rollout{id: hex.EncodeToString(id[:]), task: t, player: p}
}

func (p *peer) run040(ctx context.Context, id string, request object) error {
	data, ok := request["task_data"].(object)
	if !ok {
		return invalid("task_data: Field required")
	}
	var idx *int64
	if n, err := whole(data["idx"]); err == nil {
		idx = n
	}
	t, err := p.taskOf(data, idx)
	if err != nil {
		return invalid("task_data: %v", err)
	}
	who, err := p.playerOf(request)
	if err != nil {
		return err
	}
	p.warn(who)
	return p.begin(ctx, id, func(ctx context.Context) error {
		r := newRollout(t, who)
		deltas := &stream{server: p.Server, state: map[string][]byte{}, send: func(delta object) error { return p.send(id, "delta", delta) }}
		r.changed = deltas.flush
		free, err := p.place(ctx)
		if err == nil {
			err = p.play(ctx, r)
			free()
		}
		if deltas.err != nil {
			return deltas.err
		}
		if err != nil {
			return p.send(id, "reply", refusal(err))
		}
		return p.send(id, "reply", p.reply(r))
	})
}

func (p *peer) run021(ctx context.Context, id, method string, request object) error {
	index, err := whole(request["task_idx"])
	if err != nil {
		return invalid("task_idx: %v", err)
	}
	t, err := p.taskOf(object{"idx": *index}, index)
	if err != nil {
		return invalid("task_idx: %v", err)
	}
	who, err := p.playerOf(request)
	if err != nil {
		return err
	}
	n := int64(1)
	if method == "run_group" {
		given, err := whole(request["n"])
		if err != nil || *given < 1 || *given > mostGroup {
			return invalid("n: want 1 to %d", mostGroup)
		}
		n = *given
	}
	p.warn(who)
	return p.begin(ctx, id, func(ctx context.Context) error {
		var rollouts []*rollout
		for range n {
			rollouts = append(rollouts, newRollout(t, who))
		}
		if err := p.group(ctx, rollouts, method == "run_group"); err != nil {
			return p.send(id, "", refusal(err))
		}
		v := success()
		traces := []any{}
		for _, r := range rollouts {
			traces = append(traces, p.whole(r))
		}
		if v["traces"] = traces; method == "run_rollout" {
			delete(v, "traces")
			v["trace"] = traces[0]
		}
		return p.send(id, "", v)
	})
}

// mostGroup is how many rollouts one request asks for.
const mostGroup = 4096

// warn tells of what the client asked for in vain.
func (p *peer) warn(who player) {
	if len(who.access.refused) > 0 {
		p.log.Warn("a client names variables that may not be sent to its model: they count as not set", "variables", who.access.refused, "url", who.base,
			"hint", "--models URL=VARIABLE allows one")
	}
}
