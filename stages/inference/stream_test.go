package inference

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prl-project/prl/stages/internal/lm"
)

func TestStreamFails(t *testing.T) {
	broken := refuse(http.StatusInternalServerError, CodeInternal, "the model broke")
	at := 0
	_, hs := serveScripted(t, scripted{say: always("abcdef"), before: func(ctx context.Context, r Request, i int) error {
		if i != at {
			return nil
		}
		if r.Seed != 5 {
			<-ctx.Done() // it is given up with the other
			return ctx.Err()
		}
		return broken
	}})
	body := `{"prompt":"x","seed":5,"stream":true}`
	status, data := post(t, hs.URL+pathCompletions, body)
	if got := decode[errorReply](t, data).Error; status != 500 || got.Code != CodeInternal || got.Message != "the model broke" {
		t.Errorf("before the first token: %d %s", status, data)
	}
	at = 3
	events := eventsOf(t, hs.URL+pathCompletions, body)
	if got := decode[errorReply](t, events[len(events)-1]).Error; len(events) != 4 || got.Message != "the model broke" || got.Type != "server_error" {
		t.Errorf("in the middle: %s", events)
	}
	// One choice of several that fails ends them all.
	events = eventsOf(t, hs.URL+pathCompletions, `{"prompt":"x","seed":5,"stream":true,"n":3}`)
	if got := decode[errorReply](t, events[len(events)-1]).Error; got.Message != "the model broke" {
		t.Errorf("one of three: %s", events)
	}
}

// TestClientGoneFreesTheStream: one that leaves in the middle of a stream leaves nothing behind in the server.
func TestClientGoneFreesTheStream(t *testing.T) {
	waits, gone := make(chan struct{}), make(chan error, 1)
	s, hs := serveScripted(t, scripted{say: always("abcdef"), before: func(ctx context.Context, _ Request, i int) error {
		if i < 3 {
			return nil
		}
		close(waits)
		<-ctx.Done()
		gone <- ctx.Err()
		return ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, hs.URL+pathCompletions, strings.NewReader(`{"prompt":"x","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(resp.Body)
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, `"text":"a"`) {
		t.Fatalf("%q %v", line, err)
	}
	<-waits
	cancel()
	resp.Body.Close()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	(&stage{Server: s, t: t}).await(0)
}

// TestReaderThatStopsIsLetGo: one that keeps the connection but reads no more is cut off after writeTimeout, and is the only
// one who waits.
func TestReaderThatStopsIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := serveGated(t, func(*Config) {})
		tok, err := lm.NewTokenizer("")
		if err != nil {
			t.Fatal(err)
		}
		s.backend = scripted{speech: rendererOf(t, tok), say: always(strings.Repeat("a", 50))}
		network := make(pipes)
		hs := httpServer(s.root(), s.cfg)
		go hs.Serve(network) //nolint:errcheck // it is closed below
		ours, theirs := net.Pipe()
		network <- theirs
		const body = `{"prompt":[5],"max_tokens":50,"stream":true}`
		if _, err := io.WriteString(ours, "POST "+pathCompletions+" HTTP/1.1\r\nHost: x\r\nContent-Length: 44\r\n\r\n"+body); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		synctest.Wait() // it hangs in the first write
		s.mu.Lock()
		if s.requests != 1 {
			t.Errorf("%d requests are in the server", s.requests)
		}
		s.mu.Unlock()
		if _, err := s.Generate(t.Context(), Request{Tokens: []int32{5}}); err != nil {
			t.Errorf("somebody else: %v", err)
		}
		for {
			s.mu.Lock()
			left := s.requests
			s.mu.Unlock()
			if left == 0 {
				break
			}
			time.Sleep(time.Second)
		}
		if took := time.Since(begin); took > writeTimeout+2*time.Second {
			t.Errorf("it took %v", took)
		}
		ours.Close()
		close(network)
		hs.Close()
	})
}

// TestWatchedCompletionIsTheSame: one who watches tokens come sees beginnings of what Generate returns, and others get what
// they get without him, however long he takes.
func TestWatchedCompletionIsTheSame(t *testing.T) {
	cfg := testConfig()
	n := newNative(cfg)
	m, tok := testModel(t, 0)
	if err := n.Load(t.Context(), policyOf(t, 0, m, tok)); err != nil {
		t.Fatal(err)
	}
	runBackend(t, n)
	r := Request{Tokens: []int32{5, 10, 11}, MaxTokens: 40, Temperature: 1, Seed: 8, TopLogprobs: 3}
	others := r
	others.Seed, others.TopLogprobs = 9, 0
	want := func(r Request) Completion {
		return alone(t, r, cfg.MaxModelLen, []*lm.Model{m}, []int64{0}, []int{0})
	}
	seen := 0
	var shown []Completion
	r.OnTokens = func(c Completion) bool {
		if len(c.Tokens) <= seen || c.FinishReason != "" {
			t.Errorf("shown %d tokens after %d, %q", len(c.Tokens), seen, c.FinishReason)
		}
		seen = len(c.Tokens)
		shown = append(shown, c)
		other, err := n.Generate(t.Context(), others) // takes longer than the rest of the watched one
		if err != nil {
			t.Error(err)
		}
		sameBits(t, "another's", other, want(others))
		return true
	}
	var got Completion
	for len(shown) == 0 { // one that is sampled at once may be over before it is shown
		var err error
		if got, err = n.Generate(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		sameBits(t, "watched", got, want(r))
	}
	if len(got.Top) != len(got.Tokens) {
		t.Fatalf("%d top", len(got.Top))
	}
	for _, c := range shown {
		k := len(c.Tokens)
		part := got
		part.Tokens, part.Logprobs, part.FinishReason = got.Tokens[:k], got.Logprobs[:k], ""
		sameBits(t, "shown", c, part)
	}
	for i, top := range got.Top {
		found := false
		for k, x := range top {
			found = found || x.Token == got.Tokens[i] && x.Logprob == got.Logprobs[i]
			if k > 0 && x.Logprob > top[k-1].Logprob {
				t.Errorf("top of token %d: %v", i, top)
			}
		}
		if !found && got.Logprobs[i] > top[len(top)-1].Logprob {
			t.Errorf("token %d has %g and is not among %v", i, got.Logprobs[i], top)
		}
	}
}

// TestGrowingCompletionHasNoReason, also where it has just ended.
func TestGrowingCompletionHasNoReason(t *testing.T) {
	s := newSequence(t.Context(), Request{Tokens: []int32{1}, MaxTokens: 2, OnTokens: func(Completion) bool { return true }}, &served{})
	s.add(1, -1, nil)
	s.add(2, -1, nil)
	if c := s.soFar(); len(c.Tokens) != 2 || c.FinishReason != "" || cap(c.Tokens) != 2 {
		t.Errorf("%+v", c)
	}
	if r := <-s.done; r.completion.FinishReason != FinishLength {
		t.Errorf("%+v", r)
	}
}

// TestEnough: a completion that its watcher has enough of is over, and its slot is another's.
func TestEnough(t *testing.T) {
	cfg := testConfig()
	cfg.Slots, cfg.MaxModelLen = 1, 64
	n := newNative(cfg)
	m, tok := testModel(t, 0)
	if err := n.Load(t.Context(), policyOf(t, 0, m, tok)); err != nil {
		t.Fatal(err)
	}
	r := Request{Tokens: []int32{5, 10, 11}, Temperature: 1, Seed: 8}
	<-n.wake // of the Load
	seen, done := make(chan int), make(chan Completion)
	r.OnTokens = func(c Completion) bool {
		seen <- len(c.Tokens)
		return len(c.Tokens) < 2
	}
	go func() {
		c, err := n.Generate(t.Context(), r)
		if err != nil {
			t.Error(err)
		}
		done <- c
	}()
	<-n.wake
	for want := 1; want <= 2; want++ {
		step(t, n)
		if got := <-seen; got != want {
			t.Errorf("shown %d tokens, want %d", got, want)
		}
	}
	if c := <-done; len(c.Tokens) != 2 || c.FinishReason != FinishStop || len(c.Logprobs) != 2 {
		t.Errorf("got %+v", c)
	}
	next, err := n.enqueue(t.Context(), Request{Tokens: []int32{2}, MaxTokens: 1, Temperature: 1})
	if err != nil {
		t.Fatal(err)
	}
	step(t, n)
	if len(next.done) != 1 {
		t.Error("the slot was not given to the one that waits")
	}
}
