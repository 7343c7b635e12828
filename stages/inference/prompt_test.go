package inference

import (
	"encoding/json"
	"slices"
	"testing"
)

// TestPromptAsSeen: a reply that names the prompt that the policy saw says so in the completion; others say nothing.
func TestPromptAsSeen(t *testing.T) {
	for data, want := range map[string][]int32{`"prompt_token_ids": [9, 2], `: {9, 2}, ``: nil} {
		var reply generateReply
		if err := json.Unmarshal([]byte(`{`+data+`"choices": [{"finish_reason": "stop", "token_ids": [7], "logprobs": {"content": [{"token": "token_id:7", "logprob": -1}]}}]}`), &reply); err != nil {
			t.Fatal(err)
		}
		c, err := reply.completion(true)
		if err != nil || !slices.Equal(c.Prompt, want) || (c.Prompt == nil) != (want == nil) {
			t.Errorf("prompt %v, %v", c.Prompt, err)
		}
	}
}
