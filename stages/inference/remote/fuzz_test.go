package remote

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prl-project/prl/stages/inference"
)

// FuzzReply gives both makes arbitrary replies. Nothing breaks, and a completion that is taken has a log-probability and a
// known version for every token.
func FuzzReply(f *testing.F) {
	f.Add([]byte(`{"choices":[{"finish_reason":"length","token_ids":[3,4],"weight_versions":[{"version":"a","start":0,"end":2}],"logprobs":{"content":[{"token_id":3,"logprob":-1,"top_logprobs":[]},{"token_id":4,"logprob":-2}]}}]}`))
	f.Add([]byte(`{"output_ids":[3,4],"meta_info":{"finish_reason":{"type":"length"},"weight_versions":[{"version":"a","start":0,"end":1},{"version":"b","start":1,"end":2}],"output_token_logprobs":[[-1,3,null],[-2,4,null]],"output_top_logprobs":[[],[[-1,2,null]]]}}`))
	f.Add([]byte(`{"choices":[{"finish_reason":"abort","token_ids":[]}],"prompt_logprobs":[null,{"7":{"logprob":-1}}]}`))
	f.Add([]byte(`{"error":{"message":"no"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(body) }))
		defer hs.Close()
		c := &client{base: hs.URL, http: hs.Client()}
		fl := &fleet{labels: map[string]int64{"a": 0, "b": 1}}
		r := inference.Request{Tokens: []int32{1, 7}, MaxTokens: 4, Temperature: 1, TopLogprobs: 1, StopTokens: []int32{4}}
		for _, d := range []dialect{vllm{}, sglang{}} {
			if _, _, err := d.probe(t.Context(), c, r.Tokens); err == nil && len(body) == 0 {
				t.Error("nothing is a probe's reply")
			}
			a, err := d.generate(t.Context(), c, r)
			if err == nil {
				a, err = a.checked(r)
			}
			if err != nil {
				continue
			}
			runs, err := fl.versions(a.spans, len(a.tokens))
			if err != nil {
				continue
			}
			if len(a.tokens) == 0 || len(a.logprobs) != len(a.tokens) || len(a.top) != len(a.tokens) || len(runs) == 0 || runs[0].Offset != 0 {
				t.Errorf("%s was taken: %+v, %v", body, a, runs)
			}
			for i, run := range runs {
				if run.Offset >= len(a.tokens) || i > 0 && run.Offset <= runs[i-1].Offset {
					t.Errorf("%s: versions %v of %d tokens", body, runs, len(a.tokens))
				}
			}
		}
	})
}
