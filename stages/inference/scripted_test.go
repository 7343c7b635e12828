package inference

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/inference/render"
	"github.com/prl-project/prl/stages/internal/lm"
)

// scripted is a backend that samples the tokens of a text, which depends on the request. It hands them out one by one, and
// asks after each whether to go on.
type scripted struct {
	tokenizer []byte // tokenizer.json; nil for the native one of bytes
	speech    render.Renderer
	say       func(r Request) string
	before    func(ctx context.Context, r Request, i int) error // of token i; nil for nothing
}

func (scripted) Load(context.Context, Policy) error              { return nil }
func (scripted) Unload(int64)                                    {}
func (scripted) Limits(string) (completed, probed int)           { return 4096, 4096 }
func (scripted) Run(ctx context.Context) error                   { <-ctx.Done(); return nil }
func (scripted) Probe(context.Context, Probe) ([]float32, error) { return nil, errStopping }

func (b scripted) Generate(ctx context.Context, r Request) (Completion, error) {
	var c Completion
	c.Versions = []schemas.VersionRun{{}}
	c.Cached = len(r.Tokens) - 1
	for i, token := range append(b.speech.Encode(b.say(r)), b.speech.Stop()[0]) {
		if b.before != nil {
			if err := b.before(ctx, r, i); err != nil {
				return Completion{}, err
			}
		}
		c.Tokens, c.Logprobs = append(c.Tokens, token), append(c.Logprobs, -float32(i)/4)
		if r.TopLogprobs > 0 {
			c.Top = append(c.Top, []TopLogprob{{token, -float32(i) / 4}, {token + 1, -9}}[:min(2, r.TopLogprobs)])
		}
		switch {
		case slices.Contains(r.StopTokens, token):
			c.FinishReason = FinishStop
			return c, nil
		case len(c.Tokens) == r.MaxTokens:
			c.FinishReason = FinishLength
			return c, nil
		case r.OnTokens != nil && !r.OnTokens(c):
			c.FinishReason = FinishStop
			return c, nil
		}
	}
	return c, nil
}

// serveScripted is a server whose policy, with a vocabulary of bytes, says what a function tells it to.
func serveScripted(t testing.TB, b scripted) (*Server, *httptest.Server) {
	t.Helper()
	m, _ := testModel(t, 0)
	tok, err := lm.NewTokenizer("")
	if err != nil {
		t.Fatal(err)
	}
	p := policyOf(t, 0, m, tok)
	p.Config = []byte(`{}`)
	if b.tokenizer != nil {
		p.Tokenizer = b.tokenizer
	}
	if b.speech, err = render.New("", p.Tokenizer); err != nil {
		t.Fatal(err)
	}
	rt := testRuntime(t, t.TempDir())
	cfg, err := testConfig().forRun(rt.Run)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newServer(rt, cfg, nil, b)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, s, store(t, rt, p))
	hs := httptest.NewServer(s.handler())
	t.Cleanup(hs.Close)
	return s, hs
}

// always says the same.
func always(text string) func(Request) string { return func(Request) string { return text } }

// eventsOf reads a stream: its events as they came, without the end, which must be there.
func eventsOf(t testing.TB, url, body string) []json.RawMessage {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if ct := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || !strings.HasPrefix(ct, "text/event-stream") {
		_, data := reply(t, resp)
		t.Fatalf("%d %s %s", resp.StatusCode, ct, data)
	}
	var out []json.RawMessage
	in := bufio.NewScanner(resp.Body)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		if len(in.Bytes()) == 0 {
			continue
		}
		data, ok := bytes.CutPrefix(in.Bytes(), []byte("data: "))
		if !ok {
			t.Fatalf("not an event: %s", in.Bytes())
		}
		out = append(out, slices.Clone(data))
	}
	if n := len(out); in.Err() != nil || n == 0 || string(out[n-1]) != "[DONE]" {
		t.Fatalf("the stream does not end as it should: %v, %d events", in.Err(), n)
	}
	return out[:len(out)-1]
}

// joined puts the choices of a stream of completions together, and checks that each ends once.
func joined(t testing.TB, events []json.RawMessage) map[int]completionChoice {
	t.Helper()
	all := map[int]completionChoice{}
	for _, data := range events {
		for _, c := range decode[textReply[completionChoice]](t, data).Choices {
			sum, begun := all[c.Index]
			if sum.FinishReason != nil || begun && c.PromptTokenIDs != nil {
				t.Errorf("choice %d goes on: %s", c.Index, data)
			}
			if !begun {
				sum.PromptTokenIDs, sum.Logprobs = c.PromptTokenIDs, &completionLogprobs{}
			}
			sum.Index, sum.FinishReason, sum.StopReason = c.Index, c.FinishReason, c.StopReason
			sum.Text += c.Text
			sum.TokenIDs, sum.Versions = append(sum.TokenIDs, c.TokenIDs...), append(sum.Versions, c.Versions...)
			if l := c.Logprobs; l != nil {
				sum.Logprobs.Tokens, sum.Logprobs.TokenLogprobs = append(sum.Logprobs.Tokens, l.Tokens...), append(sum.Logprobs.TokenLogprobs, l.TokenLogprobs...)
				sum.Logprobs.TopLogprobs, sum.Logprobs.TextOffset = append(sum.Logprobs.TopLogprobs, l.TopLogprobs...), append(sum.Logprobs.TextOffset, l.TextOffset...)
			}
			all[c.Index] = sum
		}
	}
	return all
}
