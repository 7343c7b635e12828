package envserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/inference/render"
)

// A desk answers the model calls of one rollout that a host plays, for many goroutines at once: as the task says, within its
// limits, and noting all that was sampled.
//
// A limit on the policy is answered with 400 and context_length_exceeded, which hosts know as the end, or as a reason to go on
// with a shorter history; the rollout is truncated unless a call that was begun after that is answered. A failure of the model
// ends the rollout, whatever its host makes of it, and so does a request that is refused for what the host asks, unless one that
// was begun after it is answered.
type desk struct {
	*rollout
	name string             // of the model
	api  *inference.API     // that calls come through
	ctx  context.Context    // of all calls; ends with the policy's time, or the rollout
	stop context.CancelFunc // ends ctx
	fail context.CancelCauseFunc
	slot chan struct{} // taken by each request

	mu      sync.Mutex
	graph   hostGraph
	calls   int      // that were begun
	over    bool     // no more is answered
	refused error    // of the last request, where the host is to blame
	since   int      // calls that were begun when a request was last refused, or came to a limit
	failed  *failure // of the model, the policy's time before its first answer, or this code
	clock   hostClock
}

// maxHostRequests is how many requests of a rollout are looked at at once.
const maxHostRequests = 64

// codeOver is the code of a reply to calls of a rollout that is over.
const codeOver = "rollout_over"

func newDesk(ctx context.Context, r *rollout, deadline time.Time, fail context.CancelCauseFunc) *desk {
	d := &desk{rollout: r, name: r.model, fail: fail, slot: make(chan struct{}, maxHostRequests), graph: hostGraph{talk: &r.talk}}
	if r.task.Policy != "" {
		d.name = r.task.Policy
	}
	if d.name == "" {
		d.name = "policy"
	}
	d.ctx, d.stop = context.WithDeadlineCause(ctx, deadline, errDeadline)
	d.clock.begun = time.Now()
	return d
}

// Renderer implements inference.Speaker.
func (d *desk) Renderer(context.Context) (render.Renderer, error) { return d.renderer, nil }

// Models implements inference.Speaker.
func (d *desk) Models(context.Context) ([]inference.ModelCard, error) {
	return []inference.ModelCard{{
		ID: d.name, Object: "model", Created: d.clock.begun.Unix(), OwnedBy: "prl", MaxModelLen: d.task.MaxRolloutTokens, Renderer: d.renderer.ID(),
	}}, nil
}

// Hear implements inference.Speaker.
func (d *desk) Hear(_ context.Context, a inference.Ask) (inference.Exchange, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over || d.failed != nil {
		return inference.Exchange{}, errOver
	}
	if err := d.checkAsk(a); err != nil {
		return inference.Exchange{}, err
	}
	if d.ctx.Err() != nil {
		return inference.Exchange{}, d.limit(stopDeadline, errDeadline.Error())
	}
	if d.calls >= d.info.MaxTurns {
		return inference.Exchange{}, d.limit(stopMaxTurns, fmt.Sprintf("the rollout has had its %d model calls", d.calls))
	}
	call, err := d.graph.begin(a)
	if err != nil {
		return inference.Exchange{}, &inference.Error{Status: http.StatusBadRequest, Code: inference.CodeInvalid, Message: err.Error()}
	}
	room := d.task.MaxRolloutTokens - len(call.tokens)
	if room < 1 {
		return inference.Exchange{}, d.limit(stopMaxTokens, tooMany(d.task.MaxRolloutTokens, len(call.tokens)))
	}
	number := d.calls
	d.calls++
	stops := a.Request.StopTokens
	if d.info.OneCall && len(a.Tools) > 0 {
		stops = slices.Concat(stops, d.renderer.CallStop())
	}
	request := d.request(call.tokens, room, number, stops)
	own := false // the host wants less than the task gives
	if n := a.Request.MaxTokens; n > 0 && n < request.MaxTokens {
		request.MaxTokens, own = n, true
	}
	id := 0
	return inference.Exchange{
		Request:  request,
		Generate: d.generate,
		CallID: func() string {
			id++
			return fmt.Sprintf("call_%d_%d", number, id-1)
		},
		Said: func(c inference.Completion, m *render.Message) { d.said(number, call, c, m, own) },
	}, nil
}

// checkAsk refuses what would not be sampled as the task says.
func (d *desk) checkAsk(a inference.Ask) error {
	bad := func(format string, args ...any) error {
		return &inference.Error{Status: http.StatusBadRequest, Code: inference.CodeUnsupported, Message: fmt.Sprintf(format, args...)}
	}
	const otherwise = "%s = %g: this rollout is sampled at %g; ask for that, or for none"
	switch r := a.Request; {
	case r.Model != "" && r.Model != d.name:
		return &inference.Error{Status: http.StatusNotFound, Code: inference.CodeNoModel,
			Message: fmt.Sprintf("model %q is not served here: %s is; a judge or another model has a URL of its own", r.Model, d.name)}
	case a.Temperature != nil && *a.Temperature != d.task.Temperature:
		return bad(otherwise, "temperature", *a.Temperature, d.task.Temperature)
	case a.TopP != nil && *a.TopP != d.task.TopP:
		return bad(otherwise, "top_p", *a.TopP, d.task.TopP)
	case r.TopLogprobs > 0:
		return bad("top_logprobs = %d: in a rollout there are those of the sampled tokens only", r.TopLogprobs)
	}
	return nil
}

// limit notes that the policy has come to one, under the mutex, and is the reply. Before its first call it had no part in that.
func (d *desk) limit(why, text string) error {
	err := &inference.Error{Status: http.StatusBadRequest, Code: inference.CodeTooLong, Message: text}
	if d.since = d.calls; d.calls == 0 {
		d.refused = err
	} else {
		d.cut = why
	}
	return err
}

// refuse notes that a request gets an error in place of an answer, for what it asks. Limits and failures are noted where they
// arise.
func (d *desk) refuse(err error) {
	var known *inference.Error
	if !errors.As(err, &known) || known.Status >= http.StatusInternalServerError || known.Code == codeOver || known.Code == inference.CodeTooLong {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.over {
		d.refused, d.since = err, d.calls
	}
}

// broke ends the rollout, under the mutex.
func (d *desk) broke(f *failure) {
	if d.failed == nil && !d.over {
		d.failed = f
		d.fail(f)
	}
}

// tooMany words a limit in a way that hosts look for.
func tooMany(most, tokens int) string {
	return fmt.Sprintf("this rollout's maximum context length is %d tokens; the prompt has %d", most, tokens)
}

var errOver = &inference.Error{Status: http.StatusGone, Code: codeOver, Message: "the rollout is over"}

// generate asks the policy. The answer comes whole: what was shown of one that had to be tried again might not be what is
// recorded. One that comes when the host has given it up is none, since the host may ask again.
func (d *desk) generate(asker context.Context, r inference.Request) (inference.Completion, error) {
	r.OnTokens = nil
	ctx, cancel := context.WithCancelCause(d.spans.under(asker))
	defer cancel(nil)
	defer context.AfterFunc(d.ctx, func() { cancel(context.Cause(d.ctx)) })()
	d.clock.enter()
	c, err := d.rollout.generate(ctx, r)
	d.clock.leave()
	if err == nil {
		return c, context.Cause(asker)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	spoke := len(d.talk.replies) > 0
	switch {
	case d.over:
		return c, errOver
	case ctx.Err() != nil && d.ctx.Err() == nil:
		return c, err // the host has given it up
	case errors.Is(err, errDeadline) && spoke:
		return c, d.limit(stopDeadline, errDeadline.Error())
	case tooLong(err) && spoke:
		return c, d.limit(stopMaxTokens, err.Error())
	}
	d.broke(&failure{errorModel, err})
	return c, &inference.Error{Status: http.StatusGone, Code: codeOver, Message: "the rollout is over, since its model failed: " + err.Error()}
}

// said notes the answer to a call by its number; own says that the host itself limited it.
func (d *desk) said(number int, call hostCall, c inference.Completion, m *render.Message, own bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over || d.failed != nil {
		return
	}
	d.graph.end(call, c, m, d.task.Temperature)
	if number >= d.since {
		d.refused, d.cut = nil, ""
	}
	if c.FinishReason == inference.FinishLength && !own && !d.info.CutReplies {
		d.cut, d.since = stopMaxTokens, d.calls
	}
	if d.talk.lowest != nil && d.sampled != nil {
		d.sampled(*d.talk.lowest)
	}
}

// close ends all calls; nothing is noted any more.
func (d *desk) close() {
	d.mu.Lock()
	d.over = true
	d.mu.Unlock()
	d.stop()
}
