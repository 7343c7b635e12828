package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/prl-project/prl/stages/inference"
)

// vllm is vLLM's dialect.
type vllm struct{}

type vllmRequest struct {
	TokenIDs []int32      `json:"token_ids"`
	Sampling vllmSampling `json:"sampling_params"`
}

// vllmSampling names what could otherwise come from the server's defaults.
type vllmSampling struct {
	Temperature    float64 `json:"temperature"`
	TopP           float64 `json:"top_p"`
	TopK           int     `json:"top_k"`
	Seed           int64   `json:"seed"`
	MaxTokens      int     `json:"max_tokens"`
	StopTokenIDs   []int32 `json:"stop_token_ids,omitempty"`
	IgnoreEOS      bool    `json:"ignore_eos"`
	Detokenize     bool    `json:"detokenize"`
	Logprobs       int     `json:"logprobs"`
	PromptLogprobs *int    `json:"prompt_logprobs,omitempty"`
}

type vllmReply struct {
	Choices []struct {
		FinishReason   string  `json:"finish_reason"`
		TokenIDs       []int32 `json:"token_ids"`
		WeightVersions []span  `json:"weight_versions"`
		Logprobs       *struct {
			Content []struct {
				vllmLogprob
				Top []vllmLogprob `json:"top_logprobs"`
			} `json:"content"`
		} `json:"logprobs"`
	} `json:"choices"`
	Usage struct {
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	PromptLogprobs []map[string]struct {
		Logprob float64 `json:"logprob"`
	} `json:"prompt_logprobs"`
}

type vllmLogprob struct {
	TokenID int32   `json:"token_id"`
	Logprob float64 `json:"logprob"`
}

// vllmMaxTemperature is what vLLM takes at most.
const vllmMaxTemperature = 2

func (vllm) generate(ctx context.Context, c *client, r inference.Request) (answer, error) {
	if r.Temperature > vllmMaxTemperature {
		return answer{}, &inference.Error{Status: http.StatusBadRequest, Code: inference.CodeInvalid, Message: fmt.Sprintf("temperature = %g: vLLM takes at most %d", r.Temperature, vllmMaxTemperature)}
	}
	q := vllmRequest{TokenIDs: r.Tokens, Sampling: vllmSampling{
		Temperature: r.Temperature, TopP: topP(r), Seed: nonnegative(r.Seed), MaxTokens: r.MaxTokens,
		StopTokenIDs: r.StopTokens, IgnoreEOS: true, Logprobs: 1,
	}}
	if r.TopLogprobs > 0 {
		q.Sampling.Logprobs = min(r.TopLogprobs+1, inference.MaxTopLogprobs) // the sampled token is one of them in any case
	}
	var reply vllmReply
	if err := c.call(ctx, http.MethodPost, "/inference/v1/generate", q, &reply); err != nil {
		return answer{}, err
	}
	if len(reply.Choices) != 1 {
		return answer{}, unusable{fmt.Errorf("%d choices, one was asked for", len(reply.Choices))}
	}
	choice := reply.Choices[0]
	a := answer{tokens: choice.TokenIDs, finish: choice.FinishReason, spans: choice.WeightVersions, cached: reply.Usage.Details.Cached}
	if choice.Logprobs == nil {
		return a, nil
	}
	for i, l := range choice.Logprobs.Content {
		if i < len(a.tokens) && l.TokenID != a.tokens[i] {
			return a, unusable{fmt.Errorf("log-probability %d is of token %d, the token is %d", i, l.TokenID, a.tokens[i])}
		}
		a.logprobs = append(a.logprobs, l.Logprob)
		if r.TopLogprobs > 0 {
			var top []inference.TopLogprob
			for _, t := range l.Top {
				top = append(top, inference.TopLogprob{Token: t.TokenID, Logprob: float32Of(t.Logprob)})
			}
			a.top = append(a.top, mostProbable(top, r.TopLogprobs))
		}
	}
	return a, nil
}

// topP is 1 where a request has none.
func topP(r inference.Request) float64 {
	if r.TopP == 0 {
		return 1
	}
	return r.TopP
}

func (vllm) probe(ctx context.Context, c *client, tokens []int32) ([]float32, []span, error) {
	none := 0
	q := vllmRequest{TokenIDs: tokens, Sampling: vllmSampling{Temperature: 1, TopP: 1, MaxTokens: 1, IgnoreEOS: true, PromptLogprobs: &none}}
	var reply vllmReply
	if err := c.call(ctx, http.MethodPost, "/inference/v1/generate", q, &reply); err != nil {
		return nil, nil, err
	}
	if len(reply.Choices) != 1 || len(reply.PromptLogprobs) != len(tokens) {
		return nil, nil, unusable{fmt.Errorf("%d choices and %d log-probabilities for a prompt of %d tokens", len(reply.Choices), len(reply.PromptLogprobs), len(tokens))}
	}
	logprobs := make([]float32, len(tokens))
	for i := 1; i < len(tokens); i++ {
		l, ok := reply.PromptLogprobs[i][strconv.Itoa(int(tokens[i]))]
		if !ok || !sound(l.Logprob) {
			return nil, nil, unusable{fmt.Errorf("log-probability %d, of token %d, is %v", i, tokens[i], l.Logprob)}
		}
		logprobs[i] = float32Of(l.Logprob)
	}
	return logprobs, reply.Choices[0].WeightVersions, nil
}

func (vllm) health(ctx context.Context, c *client) error {
	return c.call(ctx, http.MethodGet, "/health", nil, nil)
}

func (vllm) longest(ctx context.Context, c *client) (int, error) { return longestOf(ctx, c, "") }

func (vllm) label(ctx context.Context, c *client) (string, error) {
	var reply struct {
		WeightVersion string `json:"weight_version"`
	}
	err := c.call(ctx, http.MethodGet, "/weight_info", nil, &reply)
	return reply.WeightVersion, developing(err)
}

// developing names what a vLLM server must be started with to have the endpoint that was not found.
func developing(err error) error {
	var status *statusError
	if errors.As(err, &status) && status.status == http.StatusNotFound {
		return misstarted{fmt.Errorf("%w: start vLLM, 0.32.0 or later, with VLLM_SERVER_DEV_MODE=1", err)}
	}
	return err
}

// pause keeps what runs. It is complete when no step is on its way and what was sampled has been given its label. Caches are
// cleared with it, by which running requests lose what was computed of them.
func (vllm) pause(ctx context.Context, c *client) error {
	return developing(c.call(ctx, http.MethodPost, "/pause?mode=keep&clear_cache=true", nil, nil))
}

func (vllm) relabel(ctx context.Context, c *client, label string) error {
	return developing(c.call(ctx, http.MethodPost, "/update_weight_version", map[string]string{"new_version": label}, nil))
}

func (v vllm) load(ctx context.Context, c *client, folder, loading, label string) error {
	call := map[string]any{"method": "reload_weights", "kwargs": map[string]string{"weights_path": folder}}
	if err := c.call(ctx, http.MethodPost, "/collective_rpc", call, nil); err != nil {
		return developing(err)
	}
	switch is, err := v.label(ctx, c); {
	case err != nil:
		return err
	case is != loading:
		return fmt.Errorf("%w: %q instead of %q", errLabel, is, loading)
	}
	return v.relabel(ctx, c, label)
}

func (vllm) resume(ctx context.Context, c *client) error {
	return developing(c.call(ctx, http.MethodPost, "/resume", nil, nil))
}

func (vllm) afterTemperature() string { return "start vLLM with --logprobs-mode processed_logprobs" }
