package inference

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/internal/lm"
)

// post sends a body and returns the status and the reply.
func post(t testing.TB, url, body string) (int, []byte) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return reply(t, resp)
}

func reply(t testing.TB, resp *http.Response) (int, []byte) {
	t.Helper()
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, data
}

func decode[T any](t testing.TB, data []byte) (v T) {
	t.Helper()
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	return v
}

func TestGenerateEndpoint(t *testing.T) {
	_, hs := serve(t, nil)
	m, tok := testModel(t, 0)
	status, data := post(t, hs.URL+pathGenerate, `{"model":"test","token_ids":[5,10,11],"cache_salt":"x","pin_version":0,
		"sampling_params":{"temperature":0.7,"top_p":1,"seed":9,"max_tokens":5,"logprobs":1,"stop_token_ids":[],"skip_special_tokens":false,"top_k":-1,"min_p":0.0}}`)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, data)
	}
	want := alone(t, Request{Tokens: []int32{5, 10, 11}, MaxTokens: 5, Temperature: 0.7, Seed: 9, StopTokens: []int32{tok.EOS()}}, 64, []*lm.Model{m}, []int64{0}, []int{0})
	got := decode[generateReply](t, data)
	c, err := got.completion(false)
	if err != nil {
		t.Fatal(err)
	}
	sameBits(t, "over HTTP", c, want)
	if got.RequestID == "" || !bytes.Contains(data, fmt.Appendf(nil, `{"token":"token_id:%d","logprob":`, want.Tokens[0])) ||
		!bytes.Contains(data, []byte(`"policy_versions":[{"offset":0,"version":0}]`)) {
		t.Errorf("the reply is %s", data)
	}
	_, data = post(t, hs.URL+pathGenerate, `{"token_ids":[5],"sampling_params":{"max_tokens":1}}`)
	if got := decode[generateReply](t, data); got.Choices[0].Logprobs != nil {
		t.Errorf("log-probabilities that nobody asked for: %s", data)
	}
}

func TestChatEndpoint(t *testing.T) {
	_, hs := serve(t, nil)
	m, tok := testModel(t, 0)
	status, data := post(t, hs.URL+"/v1/chat/completions", `{"model":"test","messages":[{"role":"system","content":"hi"},{"role":"user","content":[{"type":"text","text":"abc"}]}],
		"temperature":1,"seed":4,"max_completion_tokens":6,"logprobs":true,"user":"somebody","n":1,"tools":[],"response_format":{"type":"text"}}`)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, data)
	}
	prompt := slices.Concat(must(tok.RenderMessage("system", "hi")), must(tok.RenderMessage("user", "abc")), tok.GenerationPrompt())
	want := alone(t, Request{Tokens: prompt, MaxTokens: 6, Temperature: 1, Seed: 4, StopTokens: []int32{tok.EOS()}}, 64, []*lm.Model{m}, []int64{0}, []int{0})
	got := decode[textReply[chatChoice]](t, data)
	c := got.Choices[0]
	if !slices.Equal(got.PromptTokenIDs, prompt) || !slices.Equal(c.TokenIDs, want.Tokens) || *c.FinishReason != want.FinishReason ||
		*c.Message.Content != tok.Decode(want.Tokens) || c.Message.Role != "assistant" || len(c.Versions) != 1 ||
		*got.Usage != (usage{len(prompt), len(want.Tokens), len(prompt) + len(want.Tokens), promptDetails{}}) || got.Object != "chat.completion" {
		t.Errorf("the reply is %s", data)
	}
	for i, l := range c.Logprobs.Content {
		if l.Logprob != want.Logprobs[i] || l.Token != tok.Token(want.Tokens[i]) {
			t.Errorf("log-probability %d is %v", i, l)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestModelsEndpoint(t *testing.T) {
	s, hs := serve(t, nil)
	resp, err := http.Get(hs.URL + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	status, data := reply(t, resp)
	_, tok := testModel(t, 0)
	card := ModelCard{ID: "test", Object: "model", Created: s.began.Unix(), OwnedBy: "prl", MaxModelLen: 64, MaxProbeLen: 96, Renderer: rendererOf(t, tok).ID()}
	if got := decode[modelList](t, data); status != 200 || !slices.Equal(got.Data, []ModelCard{card}) {
		t.Errorf("%d %s", status, data)
	}
	resp, err = http.Get(hs.URL + "/v1/models/test")
	if err != nil {
		t.Fatal(err)
	}
	if status, data = reply(t, resp); status != 200 || decode[ModelCard](t, data) != card {
		t.Errorf("%d %s", status, data)
	}
	if resp, err = http.Get(hs.URL + "/v1/models/"); err != nil {
		t.Fatal(err)
	}
	if status, data = reply(t, resp); status != 404 || !strings.Contains(string(data), "missing") {
		t.Errorf("no name: %d %s", status, data)
	}
}

func TestEndOfSequenceStopsUnlessIgnored(t *testing.T) {
	_, hs := serve(t, nil)
	ends := func(params string) string {
		_, data := post(t, hs.URL+pathGenerate, `{"token_ids":[5,10],"sampling_params":{"seed":1,`+params+`}}`)
		return decode[generateReply](t, data).Choices[0].FinishReason
	}
	// At this temperature all of the 45 tokens are about as likely, and nearly every long completion has the one that ends it.
	stopped := 0
	for range 20 {
		_, data := post(t, hs.URL+pathGenerate, `{"token_ids":[5,10],"sampling_params":{"temperature":100}}`)
		if decode[generateReply](t, data).Choices[0].FinishReason == FinishStop {
			stopped++
		}
	}
	if stopped == 0 {
		t.Error("the end of sequence never ended one")
	}
	if got := ends(`"temperature":100,"ignore_eos":true`); got != FinishLength {
		t.Errorf("it ended by %q although the end of sequence is ignored", got)
	}
}

func TestRefusals(t *testing.T) {
	_, hs := serve(t, nil)
	const generate, chat, completions = pathGenerate, "/v1/chat/completions", "/v1/completions"
	params := func(p string) string { return `{"token_ids":[5],"sampling_params":{` + p + `}}` }
	talk := func(p string) string { return `{"messages":[{"role":"user","content":"a"}],` + p + `}` }
	for _, c := range []struct {
		path, body string
		status     int
		want       string // in the message
	}{
		{generate, params(`"top_k":20`), 400, "[top_k]"},
		{generate, params(`"min_p":0.1,"top_k":3`), 400, "[min_p top_k]"},
		{generate, params(`"presence_penalty":0.5`), 400, "presence_penalty"},
		{generate, params(`"frequency_penalty":-1`), 400, "frequency_penalty"},
		{generate, params(`"repetition_penalty":1.1`), 400, "repetition_penalty"},
		{generate, params(`"logit_bias":{"5":-100}`), 400, "logit_bias"},
		{generate, params(`"min_tokens":4`), 400, "min_tokens"},
		{generate, params(`"n":2`), 400, "[n]"},
		{generate, params(`"stop":["x"]`), 400, "[stop]"},
		{generate, params(`"bad_words":["x"]`), 400, "bad_words"},
		{generate, params(`"allowed_token_ids":[5]`), 400, "allowed_token_ids"},
		{generate, params(`"logprobs":5`), 400, "logprobs = 5"},
		{generate, params(`"temperature":-1`), 400, "temperature = -1"},
		{generate, params(`"temperature":0.001`), 400, "temperature"},
		{generate, params(`"top_p":0`), 400, "top_p = 0"},
		{generate, params(`"top_p":1.5`), 400, "top_p = 1.5"},
		{generate, params(`"max_tokens":0`), 400, "max_tokens = 0"},
		{generate, params(`"max_tokens":"many"`), 400, "JSON"},
		{generate, `{"token_ids":[5],"stream":true}`, 400, "stream"},
		{generate, `{"token_ids":[5],"features":{"mm":1}}`, 400, "features"},
		{generate, `{"token_ids":[5],"model":"gpt-9"}`, 404, "gpt-9"},
		{generate, `{"token_ids":[5],"pin_version":-1}`, 400, "pin_version = -1"},
		{generate, `{"token_ids":[]}`, 400, "no tokens"},
		{generate, `{"token_ids":[5,100000]}`, 400, "vocabulary"},
		{generate, `{"token_ids":[5,-1]}`, 400, "token -1"},
		{generate, `{"token_ids":[5.5]}`, 400, "JSON"},
		{generate, `{"token_ids":[` + strings.Repeat("5,", 70) + `5]}`, 400, "71 tokens"},
		{generate, `{"token_ids":`, 400, "JSON"},
		{generate, ``, 400, "JSON"},
		{generate, `{"token_ids":[5]} {}`, 400, "JSON"},
		{generate, strings.Repeat(" ", maxBodyBytes+1), 413, "16777216"},
		{generate, params(`"tools":[{"type":"function"}]`), 400, "tools"},
		{chat, talk(`"stream_options":{"include_usage":true}`), 400, "stream_options"},
		{chat, talk(`"top_logprobs":3`), 400, "top_logprobs"},
		{chat, talk(`"top_logprobs":21,"logprobs":true`), 400, "top_logprobs = 21"},
		{chat, talk(`"top_logprobs":-1,"logprobs":true`), 400, "top_logprobs = -1"},
		{chat, talk(`"n":0`), 400, "n = 0"},
		{chat, talk(`"n":5000`), 400, "n = 5000"},
		{chat, talk(`"stop":["a",""]`), 400, "stop[1]"},
		{chat, talk(`"stop":["a","` + strings.Repeat("b", 1025) + `"]`), 400, "stop[1] has 1025 bytes"},
		{chat, talk(`"stop":"` + strings.Repeat("b", 1025) + `"`), 400, "stop[0] has 1025 bytes"},
		{generate, params(`"stop_token_ids":[5` + strings.Repeat(",5", 1023) + `]`), 400, "1025 stop tokens"},
		{chat, talk(`"stop":7`), 400, "stop"},
		{chat, talk(`"stop":["a"` + strings.Repeat(`,"a"`, 64) + `]`), 400, "65 texts"},
		{chat, talk(`"tools":[{"type":"function"}]`), 400, "tools[0] has no name"},
		{chat, talk(`"tools":[{"type":"retrieval"}]`), 400, "retrieval"},
		{chat, talk(`"tool_choice":"required"`), 400, "tool_choice = \"required\""},
		{chat, talk(`"tool_choice":{"type":"function","function":{"name":"f"}}`), 400, "tool_choice"},
		{chat, talk(`"functions":[{"name":"f"}]`), 400, "functions"},
		{chat, talk(`"reasoning_effort":"high"`), 400, "reasoning_effort"},
		{chat, talk(`"chat_template_kwargs":{"enable_thinking":false}`), 400, "chat_template_kwargs"},
		{chat, talk(`"skip_special_tokens":false`), 400, "skip_special_tokens"},
		{chat, talk(`"stream":true,"temperature":-1`), 400, "temperature = -1"},
		{chat, talk(`"stream":true,"model":"gpt-9"`), 404, "gpt-9"},
		{chat, talk(`"response_format":{"type":"json_object"}`), 400, "response_format"},
		{chat, talk(`"add_generation_prompt":false`), 400, "add_generation_prompt"},
		{chat, `{"messages":[]}`, 400, "messages"},
		{chat, `{"messages":[{}` + strings.Repeat(",{}", maxValues) + `]}`, 413, "at most 262144"},
		{chat, `{"messages":[{"role":"user","content":"` + strings.Repeat(`{[:\\\"`, maxValues) + `"}]}`, 400, "1310"}, // texts are no values
		{chat, `{"messages":[{"role":"wizard","content":"a"}]}`, 400, "wizard"},
		{chat, `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, 400, "image_url"},
		{chat, `{"messages":[{"role":"assistant","tool_calls":[{"id":"1"}]}]}`, 400, "tool_calls"},
		{chat, `{"messages":[{"role":"user","tool_calls":[{"id":"1","function":{"name":"f"}}]}]}`, 400, "tool_calls"},
		{chat, `[]`, 400, "JSON"},
		{completions, `{}`, 400, "prompt is missing"},
		{completions, `{"prompt":[]}`, 400, "prompt is missing"},
		{completions, `{"prompt":""}`, 400, "no tokens"},
		{completions, `{"prompt":["a",""]}`, 400, "prompt 1 of 2"},
		{completions, `{"prompt":[[]]}`, 400, "prompt 0 of 1"},
		{completions, `{"prompt":["a",5]}`, 400, "prompt: want"},
		{completions, `{"prompt":{"a":5}}`, 400, "prompt: want"},
		{completions, `{"prompt":[5,100000]}`, 400, "vocabulary"},
		{completions, `{"prompt":[5,100000],"stream":true}`, 400, "vocabulary"},
		{completions, `{"prompt":"a","echo":true}`, 400, "echo"},
		{completions, `{"prompt":"a","suffix":"b"}`, 400, "suffix"},
		{completions, `{"prompt":"a","best_of":3}`, 400, "best_of"},
		{completions, `{"prompt":"a","logprobs":21}`, 400, "top_logprobs = 21"},
		{completions, `{"prompt":"a","max_tokens":0}`, 400, "max_tokens = 0"},
		{completions, `{"prompt":"a","top_k":5,"min_p":0.5}`, 400, "[min_p top_k]"},
		{completions, `{"prompt":["a","b","c"],"n":1366}`, 400, "3 prompts"},
		{"/tokenize", `{}`, 400, "either prompt or messages"},
		{"/tokenize", `{"prompt":"a","messages":[]}`, 400, "either prompt or messages"},
		{"/tokenize", `{"prompt":"a","model":"gpt-9"}`, 404, "gpt-9"},
		{"/detokenize", `{"tokens":"a"}`, 400, "JSON"},
		{"/v1/embeddings", `{}`, 404, "/v1/embeddings"},
	} {
		status, data := post(t, hs.URL+c.path, c.body)
		got := decode[errorReply](t, data).Error
		if status != c.status || !strings.Contains(got.Message, c.want) || got.Type != "invalid_request_error" || got.Code == "" {
			t.Errorf("%s %.80s:\n got %d %s\nwant %d with %q", c.path, c.body, status, data, c.status, c.want)
		}
	}
}

func TestToken(t *testing.T) {
	_, hs := serve(t, func(c *Config) { c.Token = pipeline.NewSecret("secret") })
	status, _ := post(t, hs.URL+pathGenerate, `{"token_ids":[5]}`)
	if status != http.StatusUnauthorized {
		t.Errorf("without the token: %d", status)
	}
	cl := NewClient(hs.URL)
	defer cl.Close()
	for token, want := range map[string]bool{"secret": true, "secre": false, "": false} {
		cl.Token = token
		if _, err := cl.Generate(t.Context(), Request{Tokens: []int32{5}, MaxTokens: 1}); (err == nil) != want {
			t.Errorf("token %q: %v", token, err)
		}
	}
}

func TestClientAgainstServer(t *testing.T) {
	s, hs := serve(t, nil)
	cl := NewClient(hs.URL + "/")
	defer cl.Close()
	var wg sync.WaitGroup
	for i := range 50 {
		r := Request{Tokens: []int32{5, int32(i % 30), 11}, MaxTokens: 10, Temperature: 0.3 + float64(i)/10, TopP: 0.9, Seed: int64(i) - 1<<62, StopTokens: []int32{12, 13}}
		if i%2 == 0 {
			r.PinVersion = pin(0)
		}
		wg.Go(func() {
			got, err := cl.Generate(t.Context(), r)
			if err != nil {
				t.Error(err)
				return
			}
			want, err := s.Model().Generate(t.Context(), r)
			if err != nil {
				t.Error(err)
				return
			}
			sameBits(t, "client", got, want)
		})
	}
	wg.Wait()
}

func TestClientErrors(t *testing.T) {
	_, hs := serve(t, nil)
	cl := NewClient(hs.URL)
	defer cl.Close()
	var e *Error
	if _, err := cl.Generate(t.Context(), Request{Tokens: make([]int32, 64)}); !errors.As(err, &e) || e.Code != CodeTooLong || e.Status != 400 || Retryable(err) {
		t.Errorf("too long: %v", err)
	}
	if _, err := cl.Generate(t.Context(), Request{}); !errors.As(err, &e) || e.Code != CodeInvalid {
		t.Errorf("no prompt: %v", err)
	}
	if _, err := cl.Generate(t.Context(), Request{Tokens: []int32{1}, TopLogprobs: 1}); !errors.As(err, &e) || e.Code != CodeUnsupported {
		t.Errorf("top log-probabilities: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := cl.Generate(ctx, Request{Tokens: []int32{1}}); !errors.Is(err, context.Canceled) || Retryable(err) {
		t.Errorf("cancelled: %v", err)
	}
	for _, c := range []struct {
		status int
		body   string
		retry  bool
		want   string
	}{
		{500, "<html>oops</html>", true, "oops"},
		{503, `{"error":{"message":"full","code":"overloaded"}}`, true, "full"},
		{429, "slow down", false, "slow down"},
		{200, "no json", true, "no JSON"},
		{200, `{"choices":[]}`, false, "0 choices"},
		{200, `{"choices":[{"token_ids":[5],"finish_reason":"stop","policy_versions":[{"offset":0,"version":0}]}]}`, false, "log-probability"},
		{200, `{"choices":[{"token_ids":[5],"finish_reason":"stop","logprobs":{"content":[{"token":"token_id:6","logprob":-1}]},"policy_versions":[{"offset":0,"version":0}]}]}`, false, "token_id:6"},
		{200, `{"choices":[{"token_ids":[5],"finish_reason":"stop","logprobs":{"content":[{"token":"token_id:5","logprob":-1}]}}]}`, false, "which policy version"},
		{200, `{"choices":[{"token_ids":[5],"finish_reason":"abort","logprobs":{"content":[{"token":"token_id:5","logprob":-1}]}}]}`, true, "abort"},
	} {
		fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			fmt.Fprint(w, c.body)
		}))
		_, err := NewClient(fake.URL).Generate(t.Context(), Request{Tokens: []int32{1}})
		fake.Close()
		if err == nil || Retryable(err) != c.retry || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d %s: got %v", c.status, c.body, err)
		}
	}
	hs.Close()
	if _, err := cl.Generate(t.Context(), Request{Tokens: []int32{1}}); !Retryable(err) {
		t.Errorf("nobody there: %v", err)
	}
}
