package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/prl-project/prl/stages/inference"
)

// sglang is SGLang's dialect.
type sglang struct{}

type sglangRequest struct {
	InputIDs        []int32        `json:"input_ids"`
	Sampling        sglangSampling `json:"sampling_params"`
	ReturnLogprob   bool           `json:"return_logprob"`
	LogprobStartLen int            `json:"logprob_start_len"` // −1: of sampled tokens only
	TopLogprobsNum  int            `json:"top_logprobs_num,omitempty"`
}

// sglangSampling names what could otherwise come from the server's defaults. Stop tokens are heeded only where the end of
// sequence is.
type sglangSampling struct {
	Temperature  float64 `json:"temperature"`
	TopP         float64 `json:"top_p"`
	TopK         int     `json:"top_k"`
	MinP         float64 `json:"min_p"`
	Seed         int64   `json:"sampling_seed"`
	MaxNewTokens int     `json:"max_new_tokens"`
	StopTokenIDs []int32 `json:"stop_token_ids,omitempty"`
	IgnoreEOS    bool    `json:"ignore_eos"`
}

type sglangReply struct {
	OutputIDs []int32 `json:"output_ids"`
	Meta      struct {
		FinishReason struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"finish_reason"`
		CachedTokens   int               `json:"cached_tokens"`
		WeightVersions []span            `json:"weight_versions"`
		InputLogprobs  []sglangLogprob   `json:"input_token_logprobs"`
		OutputLogprobs []sglangLogprob   `json:"output_token_logprobs"`
		OutputTop      [][]sglangLogprob `json:"output_top_logprobs"`
	} `json:"meta_info"`
}

// sglangLogprob is [log-probability or null, token, text or null].
type sglangLogprob struct {
	logprob *float64
	token   int32
}

// UnmarshalJSON reads the array.
func (l *sglangLogprob) UnmarshalJSON(data []byte) error {
	var parts []json.RawMessage
	if err := json.Unmarshal(data, &parts); err != nil {
		return err
	}
	if len(parts) < 2 {
		return fmt.Errorf("%s is no log-probability with its token", data)
	}
	return errors.Join(json.Unmarshal(parts[0], &l.logprob), json.Unmarshal(parts[1], &l.token))
}

func (sglang) generate(ctx context.Context, c *client, r inference.Request) (answer, error) {
	q := sglangRequest{InputIDs: r.Tokens, ReturnLogprob: true, LogprobStartLen: -1, TopLogprobsNum: r.TopLogprobs, Sampling: sglangSampling{
		Temperature: r.Temperature, TopP: topP(r), TopK: -1, Seed: nonnegative(r.Seed), MaxNewTokens: r.MaxTokens,
		StopTokenIDs: r.StopTokens, IgnoreEOS: len(r.StopTokens) == 0,
	}}
	var reply sglangReply
	if err := c.call(ctx, http.MethodPost, "/generate", q, &reply); err != nil {
		return answer{}, err
	}
	m := reply.Meta
	a := answer{tokens: reply.OutputIDs, finish: m.FinishReason.Type, spans: m.WeightVersions, cached: m.CachedTokens}
	for i, l := range m.OutputLogprobs {
		if l.logprob == nil || i < len(a.tokens) && l.token != a.tokens[i] {
			return a, unusable{fmt.Errorf("log-probability %d is of token %d", i, l.token)}
		}
		a.logprobs = append(a.logprobs, *l.logprob)
	}
	if r.TopLogprobs == 0 {
		return a, nil
	}
	for _, list := range m.OutputTop {
		var top []inference.TopLogprob
		for _, t := range list {
			if t.logprob != nil {
				top = append(top, inference.TopLogprob{Token: t.token, Logprob: float32Of(*t.logprob)})
			}
		}
		a.top = append(a.top, mostProbable(top, r.TopLogprobs))
	}
	return a, nil
}

func (sglang) probe(ctx context.Context, c *client, tokens []int32) ([]float32, []span, error) {
	q := sglangRequest{InputIDs: tokens, ReturnLogprob: true, Sampling: sglangSampling{Temperature: 1, TopP: 1, TopK: -1, MaxNewTokens: 1, IgnoreEOS: true}}
	var reply sglangReply
	if err := c.call(ctx, http.MethodPost, "/generate", q, &reply); err != nil {
		return nil, nil, err
	}
	m := reply.Meta
	if m.FinishReason.Type == "abort" {
		return nil, nil, errAborted
	}
	if len(m.InputLogprobs) != len(tokens) {
		return nil, nil, unusable{fmt.Errorf("%d log-probabilities for a prompt of %d tokens", len(m.InputLogprobs), len(tokens))}
	}
	logprobs := make([]float32, len(tokens))
	for i := 1; i < len(tokens); i++ {
		l := m.InputLogprobs[i]
		if l.logprob == nil || l.token != tokens[i] || !sound(*l.logprob) {
			return nil, nil, unusable{fmt.Errorf("log-probability %d is of token %d, the token is %d", i, l.token, tokens[i])}
		}
		logprobs[i] = float32Of(*l.logprob)
	}
	return logprobs, m.WeightVersions, nil
}

func (sglang) health(ctx context.Context, c *client) error {
	return c.call(ctx, http.MethodGet, "/health", nil, nil)
}

// longest is two tokens less than the context, which SGLang keeps free.
func (sglang) longest(ctx context.Context, c *client) (int, error) {
	n, err := longestOf(ctx, c, "")
	return max(0, n-2), err
}

func (sglang) label(ctx context.Context, c *client) (string, error) {
	var reply struct {
		WeightVersion string `json:"weight_version"`
	}
	err := c.call(ctx, http.MethodGet, "/model_info", nil, &reply)
	return reply.WeightVersion, err
}

// pause puts running requests back into the queue. What they are computed from afterwards is empty: update_weights_from_disk
// flushes the caches, and fails where it cannot.
func (sglang) pause(ctx context.Context, c *client) error {
	return c.call(ctx, http.MethodPost, "/pause_generation", map[string]string{"mode": "retract"}, nil)
}

func (sglang) relabel(ctx context.Context, c *client, label string) error {
	return c.call(ctx, http.MethodPost, "/update_weight_version", map[string]any{"new_version": label, "abort_all_requests": false}, nil)
}

// load has the label set in the one call that replaces the weights.
func (sglang) load(ctx context.Context, c *client, folder, _, label string) error {
	var reply struct {
		Success bool   `json:"success"`
		Message string `json:"message"`
	}
	body := map[string]any{"model_path": folder, "weight_version": label, "flush_cache": true, "abort_all_requests": false}
	if err := c.call(ctx, http.MethodPost, "/update_weights_from_disk", body, &reply); err != nil {
		return err
	}
	if !reply.Success {
		return fmt.Errorf("%s could not load %s: %s", c.base, folder, reply.Message)
	}
	return nil
}

func (sglang) resume(ctx context.Context, c *client) error {
	return c.call(ctx, http.MethodPost, "/continue_generation", struct{}{}, nil)
}

func (sglang) afterTemperature() string {
	return "start SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB"
}
