package inference

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prl-project/prl/stages/internal/lm"
)

// probeOf asks for the tokens that a completion sampled.
func probeOf(r Request, c Completion) Probe {
	p := Probe{Tokens: slices.Concat(r.Tokens, c.Tokens), Temperature: r.Temperature, Policy: r.Policy, PinVersion: r.PinVersion}
	p.Mask = append(make([]byte, len(r.Tokens)), slices.Repeat([]byte{1}, len(c.Tokens))...)
	return p
}

// TestInvariant_ProbedAsSampled samples from several policies at once and probes what they said, in process and over HTTP:
// the log-probabilities are the same, bit for bit.
func TestInvariant_ProbedAsSampled(t *testing.T) {
	same, tok := testModel(t, 5)
	other, _ := wider(t)
	s, hs := serveFrozen(t, map[string]FrozenConfig{"teacher": folder(t, same, tok), "large": folder(t, other, tok)}, func(c *Config) { c.StepTokens = 40 })
	publish(t, s, store(t, s.rt, testPolicy(t, 1)))
	cl := NewClient(hs.URL)
	defer cl.Close()
	var wg sync.WaitGroup
	for i := range 48 {
		r := Request{Tokens: []int32{5, int32(i % 40), 11}, MaxTokens: 1 + i, Temperature: []float64{0.5, 1, 1.7}[i%3], Seed: int64(i)}
		switch i % 4 {
		case 0:
			r.Policy = "teacher"
		case 1:
			r.Policy = "large"
		default:
			r.PinVersion = pin(int64(i % 2))
		}
		asked := Model(s)
		if i%5 == 0 {
			asked = cl
		}
		wg.Go(func() {
			c, err := s.Generate(t.Context(), r)
			if err != nil {
				t.Error(err)
				return
			}
			p := probeOf(r, c)
			got, err := asked.Probe(t.Context(), p)
			if err != nil {
				t.Error(err)
				return
			}
			want := append(make([]float32, len(r.Tokens)), c.Logprobs...)
			if len(got) != len(want) {
				t.Errorf("%d log-probabilities, want %d", len(got), len(want))
				return
			}
			for k := range want {
				if math.Float32bits(got[k]) != math.Float32bits(want[k]) {
					t.Errorf("request %d, token %d: %v, sampled with %v", i, k, got[k], want[k])
				}
			}
		})
	}
	wg.Wait()
	if got := value(t, s.metrics.requests.WithLabelValues("probed")); got != 48 {
		t.Errorf("%v probes are counted", got)
	}
}

// A mask asks for some tokens only, and a sequence may fill all positions.
func TestProbeMask(t *testing.T) {
	s, _ := serve(t, nil)
	m, _ := testModel(t, 0)
	p := Probe{Tokens: make([]int32, 96), Mask: make([]byte, 96), Temperature: 1, PinVersion: pin(0)}
	for i := range p.Tokens {
		p.Tokens[i] = int32(i * 7 % 40)
	}
	for _, last := range []int{0, 50, 95} {
		for i := 1; i <= last; i += 7 {
			p.Mask[i] = 1
		}
		got, err := s.Probe(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		want, _, err := lm.NewLearner(m).Score(&lm.Batch{Tokens: p.Tokens, SeqLens: []int32{96}, Mask: p.Mask})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("up to %d:\n got %v\nwant %v", last, got, want)
		}
	}
}

func TestProbeRefuses(t *testing.T) {
	s, hs := serve(t, nil)
	cl := NewClient(hs.URL)
	defer cl.Close()
	good := func(change func(*Probe)) Probe {
		p := Probe{Tokens: []int32{5, 6, 7}, Mask: []byte{0, 1, 1}, Temperature: 1, PinVersion: pin(0)}
		change(&p)
		return p
	}
	for what, c := range map[string]struct {
		p    Probe
		code string
	}{
		"no tokens":      {good(func(p *Probe) { p.Tokens, p.Mask = nil, nil }), CodeInvalid},
		"a short mask":   {good(func(p *Probe) { p.Mask = p.Mask[1:] }), CodeInvalid},
		"a first token":  {good(func(p *Probe) { p.Mask[0] = 1 }), CodeInvalid},
		"a mask of 2":    {good(func(p *Probe) { p.Mask[1] = 2 }), CodeInvalid},
		"temperature 0":  {good(func(p *Probe) { p.Temperature = 0 }), CodeInvalid},
		"no pin":         {good(func(p *Probe) { p.PinVersion = nil }), CodeInvalid},
		"a negative pin": {good(func(p *Probe) { p.PinVersion = pin(-1) }), CodeInvalid},
		"pin and policy": {good(func(p *Probe) { p.Policy = "teacher" }), ""},
		"unknown policy": {good(func(p *Probe) { p.Policy, p.PinVersion = "teacher", nil }), CodeNoModel},
		"unknown token":  {good(func(p *Probe) { p.Tokens[1] = 10_000 }), CodeInvalid},
		"too many tokens": {good(func(p *Probe) {
			p.Tokens, p.Mask = make([]int32, 97), slices.Repeat([]byte{0, 1}, 49)[:97]
			p.Mask[96] = 1
		}), CodeTooLong},
		"a future version": {good(func(p *Probe) { p.PinVersion = pin(7) }), "cancelled"},
	} {
		for name, m := range map[string]Model{"in process": s, "over HTTP": cl} {
			ctx := t.Context()
			if c.code == "cancelled" {
				var cancel context.CancelFunc
				ctx, cancel = context.WithCancel(ctx)
				cancel()
			}
			_, err := m.Probe(ctx, c.p)
			var e *Error
			switch {
			case c.code == "cancelled":
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%s %s: got %v", what, name, err)
				}
			case !errors.As(err, &e) || c.code != "" && e.Code != c.code || Retryable(err):
				t.Errorf("%s %s: got %v, want %s", what, name, err, c.code)
			}
		}
	}
	for body, want := range map[string]string{
		`{"token_ids":[5,6],"sampling_params":{"prompt_logprobs":1}}`:                  "prompt_logprobs = 1",
		`{"token_ids":[5,6],"sampling_params":{"prompt_logprobs":0,"max_tokens":2}}`:   "max_tokens = 2",
		`{"token_ids":[5,6],"sampling_params":{"prompt_logprobs":0,"temperature":0}}`:  "temperature = 0",
		`{"token_ids":[5,6],"sampling_params":{"prompt_logprobs":0,"top_k":5}}`:        "top_k",
		`{"model":"x","token_ids":[5,6],"sampling_params":{"prompt_logprobs":0}}`:      `"x" is not served`,
		`{"token_ids":[5,6],"pin_version":-1,"sampling_params":{"prompt_logprobs":0}}`: "pin_version = -1",
	} {
		status, data := post(t, hs.URL+pathGenerate, body)
		if got := decode[errorReply](t, data).Error; status < 400 || status >= 500 || !strings.Contains(got.Message, want) {
			t.Errorf("%s: %d %s", body, status, data)
		}
	}
}

// TestProbeReply reads the reply as another client would.
func TestProbeReply(t *testing.T) {
	s, hs := serve(t, nil)
	status, data := post(t, hs.URL+pathGenerate, `{"token_ids":[5,8,9],"sampling_params":{"prompt_logprobs":0,"max_tokens":1,"temperature":0.5}}`)
	want, err := s.Probe(t.Context(), Probe{Tokens: []int32{5, 8, 9}, Mask: []byte{0, 1, 1}, Temperature: 0.5, PinVersion: pin(0)})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		fmt.Sprintf(`"prompt_logprobs":[null,{"8":{"logprob":%v,"decoded_token":"a"}},{"9":{"logprob":%v,`, want[1], want[2]),
		`"prompt_temperature":0.5,"policy_version":0`, `"token_ids":[],"finish_reason":"length"`,
	} {
		if status != http.StatusOK || !strings.Contains(string(data), part) {
			t.Errorf("%d %s lacks %s", status, data, part)
		}
	}
}

// TestProbeForeignReplies gives the client replies that cannot be what it asked for.
func TestProbeForeignReplies(t *testing.T) {
	live := Probe{Tokens: []int32{5, 6}, Mask: []byte{0, 1}, Temperature: 1, PinVersion: pin(3)}
	frozen := Probe{Tokens: []int32{5, 6}, Mask: []byte{0, 1}, Temperature: 1, Policy: "m"}
	cooler := frozen
	cooler.Temperature = 0.5
	for _, c := range []struct {
		p    Probe
		body string
		want string // in the error, which would be the same again; empty for none
	}{
		{frozen, `{"prompt_logprobs":[null,{"6":{"logprob":-0.5,"rank":2,"decoded_token":"x"},"9":{"logprob":-0.1}}]}`, ""},
		{cooler, `{"prompt_logprobs":[null,{"6":{"logprob":-0.5}}]}`, "at temperature 1 only"},
		{cooler, `{"prompt_logprobs":[null,{"6":{"logprob":-0.5}}],"prompt_temperature":0.7}`, "temperature 0.7"},
		{cooler, `{"prompt_logprobs":[null,{"6":{"logprob":-0.5}}],"prompt_temperature":0.5}`, ""},
		{frozen, `{"prompt_logprobs":null}`, "0 log-probabilities"},
		{frozen, `{"prompt_logprobs":[null]}`, "1 log-probabilities"},
		{frozen, `{"prompt_logprobs":[null,{"7":{"logprob":-0.5}}]}`, "no log-probability of token 1"},
		{frozen, `{"prompt_logprobs":[null,{"6":{"logprob":0.5}}]}`, "is 0.5"},
		{frozen, `{"prompt_logprobs":[null,{"6":{"logprob":-9999.0}}]}`, "is -9999"},
		{live, `{"prompt_logprobs":[null,{"6":{"logprob":-0.5}}]}`, "which policy version"},
		{live, `{"prompt_logprobs":[null,{"6":{"logprob":-0.5}}],"policy_version":4}`, "version 4 was asked, not 3"},
		{live, `{"prompt_logprobs":[null,{"6":{"logprob":-0.5}}],"policy_version":3}`, ""},
	} {
		var sent string
		fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			data := must(readBody(w, r))
			sent = string(data)
			fmt.Fprint(w, c.body)
		}))
		got, err := NewClient(fake.URL).Probe(t.Context(), c.p)
		fake.Close()
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || Retryable(err)) {
			t.Errorf("%s: got %v, want %q", c.body, err, c.want)
		}
		if err == nil && !slices.Equal(got, []float32{0, -0.5}) {
			t.Errorf("%s: got %v", c.body, got)
		}
		if !strings.Contains(sent, `"prompt_logprobs":0`) || !strings.Contains(sent, `"max_tokens":1`) {
			t.Errorf("sent %s", sent)
		}
	}
}

func TestProbesEndWithTheServer(t *testing.T) {
	n := newNative(testConfig())
	if err := n.Load(t.Context(), testPolicy(t, 0)); err != nil {
		t.Fatal(err)
	}
	q, err := n.enqueueProbe(t.Context(), Probe{Tokens: []int32{1, 2}, Mask: []byte{0, 1}, Temperature: 1, PinVersion: pin(0)})
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	left, err := n.enqueueProbe(gone, q.probe)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if batch := n.takeProbes(); len(batch) != 1 || batch[0] != q || n.probes.first() != nil || len(left.done) != 0 {
		t.Errorf("%d probes are answered, %v still waits", len(batch), n.probes.first())
	}
	n.probes.push(q)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := n.Run(stopped); err != nil {
		t.Fatal(err)
	}
	if r := <-q.done; r.err != error(errStopping) {
		t.Errorf("got %v", r.err)
	}
}

// Probes of one model are answered together, up to StepTokens tokens, and the oldest first.
func TestProbesAreAnsweredTogether(t *testing.T) {
	cfg := testConfig()
	cfg.StepTokens = 10
	n := newNative(cfg)
	for v := range int64(2) {
		if err := n.Load(t.Context(), testPolicy(t, v)); err != nil {
			t.Fatal(err)
		}
	}
	enqueue := func(tokens int, version int64) *probing {
		p := Probe{Tokens: make([]int32, tokens), Mask: make([]byte, tokens), Temperature: 1, PinVersion: pin(version)}
		p.Mask[tokens-1] = 1
		q, err := n.enqueueProbe(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	big, other, small, more, last := enqueue(20, 0), enqueue(4, 1), enqueue(6, 0), enqueue(5, 0), enqueue(4, 0)
	for i, want := range [][]*probing{{big}, {other}, {small, last}, {more}, nil} {
		if got := n.takeProbes(); !slices.Equal(got, want) {
			t.Errorf("batch %d has %d probes, want %d", i, len(got), len(want))
		}
	}
}

// What stands behind the last token that is asked about is not sent: it may not fit.
func TestProbeSendsWhatItAsks(t *testing.T) {
	var sent generateRequest
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = decode[generateRequest](t, must(readBody(w, r)))
		fmt.Fprint(w, `{"prompt_logprobs":[null,{"6":{"logprob":-0.5}},{"7":{"logprob":-0.1}}]}`)
	}))
	defer fake.Close()
	cl := NewClient(fake.URL)
	defer cl.Close()
	p := Probe{Tokens: []int32{5, 6, 7, 8, 9}, Mask: []byte{0, 1, 1, 0, 0}, Temperature: 1, Policy: "m"}
	got, err := cl.Probe(t.Context(), p)
	if err != nil || !slices.Equal(got, []float32{0, -0.5, -0.1, 0, 0}) || !slices.Equal(sent.TokenIDs, p.Tokens[:3]) {
		t.Errorf("sent %v, got %v %v", sent.TokenIDs, got, err)
	}
	sent, p.Mask = generateRequest{}, make([]byte, 5)
	if got, err = cl.Probe(t.Context(), p); err != nil || !slices.Equal(got, make([]float32, 5)) || sent.TokenIDs != nil {
		t.Errorf("nothing is asked: sent %v, got %v %v", sent.TokenIDs, got, err)
	}
}

// A model that gives no numbers gives none the next time, either.
func TestProbeOfABrokenModel(t *testing.T) {
	m, tok := testModel(t, 5)
	for _, p := range m.Params() {
		if p.Name == "model.norm.weight" {
			p.Data[0] = float32(math.NaN())
		}
	}
	s, hs := serveFrozen(t, map[string]FrozenConfig{"broken": folder(t, m, tok)}, nil)
	cl := NewClient(hs.URL)
	defer cl.Close()
	for _, asked := range []Model{s, cl} {
		_, err := asked.Probe(t.Context(), Probe{Tokens: []int32{5, 6}, Mask: []byte{0, 1}, Temperature: 1, Policy: "broken"})
		if err == nil || !strings.Contains(err.Error(), "not finite") || Retryable(err) {
			t.Errorf("%T: got %v", asked, err)
		}
	}
}
