package envserver

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
)

// clients is where `make python` puts the interpreter with OpenAI's client.
const clients = "../../.cache/python"

// TestHostOfOpenAIClient lets a harness on OpenAI's own client play, see testdata/openai_host.py.
func TestHostOfOpenAIClient(t *testing.T) {
	need.Clients(t, clients)
	r := qwen3(t)
	m := hears(&model{answer: func(ctx context.Context, _ int, q inference.Request) (inference.Completion, error) {
		prompt, text := r.Decode(q.Tokens), "ok<|im_end|>"
		switch {
		case strings.Contains(prompt, "helper"):
			i := strings.LastIndex(prompt, "helper")
			text = "I am " + prompt[i:i+8] + "<|im_end|>"
		case strings.Contains(prompt, "<tool_response>\n5\n</tool_response>"):
			text = "it is 5<|im_end|>"
		case strings.Contains(prompt, "2 + 3"):
			text = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 3}}\n</tool_call><|im_end|>"
		}
		return tells(r, text).answer(ctx, 0, q)
	}})
	var told struct {
		Model       string
		MaxModelLen int `json:"max_model_len"`
		Refused     string
		Loop        string
		Streamed    string
		Helpers     []string
		TooLong     string `json:"too_long"`
	}
	trace := playHost(t, hosting(20, func(ctx context.Context, job env.Job) (env.Outcome, error) {
		cmd := exec.CommandContext(ctx, filepath.Join(clients, "bin", "python3"), "testdata/openai_host.py", job.Model.BaseURL, job.Model.Model)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err == nil {
			err = json.Unmarshal(out, &told)
		}
		if err != nil {
			return env.Outcome{}, fmt.Errorf("%w: %s", err, stderr.String())
		}
		return won()
	}), m, nil)
	scored(t, trace)
	exact(t, trace, m.made)
	if told.Model != "policy" || told.MaxModelLen != 10_000 || told.Refused != inference.CodeUnsupported || told.Loop != "it is 5" || told.Streamed != "ok" || told.TooLong != inference.CodeTooLong {
		t.Errorf("%+v", told)
	}
	for i, text := range told.Helpers {
		if text != fmt.Sprintf("I am helper %d", i) {
			t.Errorf("helper %d says %q", i, text)
		}
	}
	if paths := branches(trace.Nodes); len(paths) != 10 || len(m.made) != 11 || !trace.Truncated || trace.StopReason != stopMaxTokens {
		t.Errorf("%d branches of %d calls; truncated %v, %q", len(paths), len(m.made), trace.Truncated, trace.StopReason)
	}
}
