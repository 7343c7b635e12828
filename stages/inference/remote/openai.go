package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/prl-project/prl/stages/inference"
)

// openAI is the dialect of servers with OpenAI's /v1/completions, as far as these give token ids: vLLM does with
// return_token_ids. Their model is not trained and has no versions.
type openAI struct{ model string }

type openAIRequest struct {
	Model          string  `json:"model"`
	Prompt         []int32 `json:"prompt"`
	MaxTokens      int     `json:"max_tokens"`
	Temperature    float64 `json:"temperature"`
	TopP           float64 `json:"top_p"`
	Seed           int64   `json:"seed"`
	Logprobs       int     `json:"logprobs"`
	StopTokenIDs   []int32 `json:"stop_token_ids,omitempty"`
	IgnoreEOS      bool    `json:"ignore_eos"`
	ReturnTokenIDs bool    `json:"return_token_ids"`
	TokensAsIDs    bool    `json:"return_tokens_as_token_ids"`
	PromptLogprobs *int    `json:"prompt_logprobs,omitempty"`
}

type openAIReply struct {
	Choices []struct {
		FinishReason string  `json:"finish_reason"`
		TokenIDs     []int32 `json:"token_ids"`
		PromptIDs    []int32 `json:"prompt_token_ids"`
		Logprobs     *struct {
			TokenLogprobs []float64            `json:"token_logprobs"`
			Top           []map[string]float64 `json:"top_logprobs"`
		} `json:"logprobs"`
		PromptLogprobs []map[string]struct {
			Logprob float64 `json:"logprob"`
		} `json:"prompt_logprobs"`
	} `json:"choices"`
}

func (o openAI) ask(ctx context.Context, c *client, q openAIRequest) (reply openAIReply, err error) {
	q.Model, q.IgnoreEOS, q.ReturnTokenIDs, q.TokensAsIDs = o.model, true, true, true
	if err := c.call(ctx, http.MethodPost, "/v1/completions", q, &reply); err != nil {
		return reply, err
	}
	if len(reply.Choices) != 1 {
		return reply, unusable{fmt.Errorf("%d choices, one was asked for", len(reply.Choices))}
	}
	if reply.Choices[0].TokenIDs == nil {
		return reply, unusable{errors.New("it gives no token ids (return_token_ids), and text cannot be trusted to become the same tokens again")}
	}
	return reply, nil
}

func (o openAI) generate(ctx context.Context, c *client, r inference.Request) (answer, error) {
	reply, err := o.ask(ctx, c, openAIRequest{
		Prompt: r.Tokens, MaxTokens: r.MaxTokens, Temperature: r.Temperature, TopP: topP(r), Seed: nonnegative(r.Seed),
		Logprobs: max(1, r.TopLogprobs), StopTokenIDs: r.StopTokens,
	})
	if err != nil {
		return answer{}, err
	}
	choice := reply.Choices[0]
	a := answer{prompt: choice.PromptIDs, tokens: choice.TokenIDs, finish: choice.FinishReason}
	if choice.Logprobs == nil {
		return a, nil
	}
	a.logprobs = choice.Logprobs.TokenLogprobs
	if r.TopLogprobs == 0 {
		return a, nil
	}
	for _, list := range choice.Logprobs.Top {
		var top []inference.TopLogprob
		for name, l := range list {
			id, err := strconv.ParseInt(strings.TrimPrefix(name, "token_id:"), 10, 32)
			if err != nil {
				return a, unusable{fmt.Errorf("the token %q is not named by its id (return_tokens_as_token_ids)", name)}
			}
			top = append(top, inference.TopLogprob{Token: int32(id), Logprob: float32Of(l)})
		}
		a.top = append(a.top, mostProbable(top, r.TopLogprobs))
	}
	return a, nil
}

func (o openAI) probe(ctx context.Context, c *client, tokens []int32) ([]float32, []span, error) {
	none := 0
	reply, err := o.ask(ctx, c, openAIRequest{Prompt: tokens, MaxTokens: 1, Temperature: 1, TopP: 1, Logprobs: 1, PromptLogprobs: &none})
	if err != nil {
		return nil, nil, err
	}
	list := reply.Choices[0].PromptLogprobs
	if len(list) != len(tokens) {
		return nil, nil, unusable{fmt.Errorf("%d log-probabilities for a prompt of %d tokens", len(list), len(tokens))}
	}
	logprobs := make([]float32, len(tokens))
	for i := 1; i < len(tokens); i++ {
		l, ok := list[i][strconv.Itoa(int(tokens[i]))]
		if !ok || !sound(l.Logprob) {
			return nil, nil, unusable{fmt.Errorf("log-probability %d, of token %d, is %v", i, tokens[i], l.Logprob)}
		}
		logprobs[i] = float32Of(l.Logprob)
	}
	return logprobs, nil, nil
}

func (o openAI) health(ctx context.Context, c *client) error {
	_, err := o.longest(ctx, c)
	return err
}

func (o openAI) longest(ctx context.Context, c *client) (int, error) {
	return longestOf(ctx, c, o.model)
}

// errFixed is of what is never asked of such a server.
var errFixed = errors.New("its model is not trained")

func (openAI) label(context.Context, *client) (string, error)              { return "", errFixed }
func (openAI) pause(context.Context, *client) error                        { return errFixed }
func (openAI) relabel(context.Context, *client, string) error              { return errFixed }
func (openAI) load(context.Context, *client, string, string, string) error { return errFixed }
func (openAI) resume(context.Context, *client) error                       { return errFixed }
func (openAI) afterTemperature() string                                    { return "start vLLM with --logprobs-mode processed_logprobs" }
