package remote

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/prl-project/prl/stages/inference"
)

// TestPromptAsSeen: what a server says it saw in place of the prompt comes back, since an environment server must know.
func TestPromptAsSeen(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"choices": [{"finish_reason": "stop", "token_ids": [7], "prompt_token_ids": [9, 2], "logprobs": {"token_logprobs": [-1]}}]}`))
	}))
	defer server.Close()
	a, err := openAI{model: "served"}.generate(t.Context(), &client{base: server.URL, http: server.Client()}, inference.Request{Tokens: []int32{1, 2}, MaxTokens: 3, Temperature: 1})
	if err != nil || !slices.Equal(a.prompt, []int32{9, 2}) {
		t.Errorf("prompt %v, %v", a.prompt, err)
	}
}
