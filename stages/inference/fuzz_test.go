package inference

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
)

// FuzzRequest posts anything to the endpoints: whatever it is, the answer is a completion or says what is wrong with it.
func FuzzRequest(f *testing.F) {
	paths := []string{pathGenerate, pathChat, pathCompletions, "/tokenize", "/detokenize"}
	for _, seed := range []struct {
		path uint
		body string
	}{
		{0, `{"token_ids":[5,10],"sampling_params":{"temperature":0.7,"max_tokens":2,"logprobs":1}}`},
		{0, `{"token_ids":[-1,99999999999],"sampling_params":{"max_tokens":-3,"top_p":2,"seed":1e30}}`},
		{0, `{"token_ids":[],"sampling_params":null,"pin_version":-1}`},
		{0, `{"model":"test","token_ids":[5,10],"sampling_params":{"prompt_logprobs":0,"max_tokens":1,"temperature":0.5}}`},
		{1, `{"messages":[{"role":"user","content":"abc"}],"max_tokens":2}`},
		{1, `{"messages":[{"role":"\u0000","content":[{"type":"image"}]}],"temperature":"hot"}`},
		{1, `{"messages":[{"role":"tool","tool_calls":[{}]}],"tools":[{"type":"function","function":{"name":"f"}}],"n":2}`},
		{1, `{"messages":[{"content":null}],"tool_choice":{},"stream":true,"stream_options":{"include_usage":true}}`},
		{1, `{"messages":[{"role":"user"}],"logprobs":true,"top_logprobs":3,"stop":["a","b"],"stream":true,"max_tokens":3}`},
		{1, `[[[[`},
		{2, `{"prompt":[[5],[6,7]],"n":2,"stream":true,"logprobs":1,"max_tokens":2,"stop":"x"}`},
		{2, `{"prompt":[null,"a"],"stop":[1],"stream_options":7}`},
		{2, `{"prompt":"a","max_tokens":2,"stop_token_ids":[-7],"ignore_eos":true}`},
		{3, `{"prompt":"ab","return_token_strs":true}`},
		{3, `{"messages":[{"role":"user","content":"a"}],"tools":[]}`},
		{4, `{"tokens":[-1,5,1000000]}`},
	} {
		f.Add(seed.path, seed.body)
	}
	_, hs := serve(f, func(c *Config) { c.Hold = pipeline.Duration(time.Millisecond) })
	f.Fuzz(func(t *testing.T, path uint, body string) {
		if status, data := post(t, hs.URL+paths[path%uint(len(paths))], body); status >= 500 && status != http.StatusGatewayTimeout {
			t.Fatalf("%d %s", status, data)
		}
	})
}

// FuzzReply answers the client with anything: it gets tokens with a log-probability each, or those of its own, or an error.
func FuzzReply(f *testing.F) {
	f.Add(200, `{"choices":[{"token_ids":[1,2],"finish_reason":"stop","logprobs":{"content":[{"logprob":-1},{"logprob":-2}]}}]}`)
	f.Add(200, `{"choices":[{"token_ids":[1],"logprobs":{"content":[{"logprob":1e999}]}}],"policy_versions":[{"offset":-5,"version":-1}]}`)
	f.Add(200, `{"prompt_logprobs":[null,{"2":{"logprob":-0.5}}],"policy_version":1,"prompt_temperature":1}`)
	f.Add(200, `{"prompt_logprobs":[{},null,{"2":null}],"policy_version":-1,"prompt_temperature":1e999}`)
	f.Add(200, ``)
	f.Add(500, `{"error":{"message":"x","code":7}}`)
	f.Add(429, `{"error":null}`)
	f.Fuzz(func(t *testing.T, status int, body string) {
		if status < 200 || status > 599 || status == 204 || status == 304 {
			return // they carry no body
		}
		hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}))
		defer hs.Close()
		c := NewClient(hs.URL)
		defer c.Close()
		if logprobs, err := c.Probe(t.Context(), Probe{Tokens: []int32{1, 2}, Mask: []byte{0, 1}, Temperature: 1, PinVersion: pin(1)}); err == nil {
			if len(logprobs) != 2 || logprobs[0] != 0 || logprobs[1] != logprobs[1] || logprobs[1] > 0 {
				t.Fatalf("log-probabilities %v from %s", logprobs, strings.ToValidUTF8(body, "?"))
			}
		}
		done, err := c.Generate(t.Context(), Request{Tokens: []int32{1}, MaxTokens: 4, Temperature: 1})
		if err != nil {
			return
		}
		if len(done.Tokens) != len(done.Logprobs) {
			t.Fatalf("%d tokens with %d log-probabilities from %s", len(done.Tokens), len(done.Logprobs), strings.ToValidUTF8(body, "?"))
		}
		for i, p := range done.Logprobs {
			if p != p || p > 0 {
				t.Fatalf("log-probability %v of token %d from %s", p, i, strings.ToValidUTF8(body, "?"))
			}
		}
		for _, v := range done.Versions {
			if v.Offset < 0 || v.Version < 0 || v.Offset >= max(1, len(done.Tokens)) {
				t.Fatalf("version %+v of %d tokens", v, len(done.Tokens))
			}
		}
	})
}
