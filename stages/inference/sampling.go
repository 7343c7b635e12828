package inference

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
)

// samplingParams are the parameters that all endpoints take.
type samplingParams struct {
	Temperature  *float64 `json:"temperature,omitempty"` // default 1
	TopP         *float64 `json:"top_p,omitempty"`       // default 1
	Seed         *int64   `json:"seed,omitempty"`        // default: a random one
	MaxTokens    *int     `json:"max_tokens,omitempty"`  // default: as many as fit
	StopTokenIDs []int32  `json:"stop_token_ids,omitempty"`
	IgnoreEOS    bool     `json:"ignore_eos,omitempty"` // only stop_token_ids end the completion
}

// apply turns the parameters into those of a request; eos are the tokens that end an answer by themselves.
func (p samplingParams) apply(r *Request, eos []int32) error {
	r.Temperature, r.TopP, r.Seed, r.StopTokens = 1, 1, rand.Int64(), slices.Clone(p.StopTokenIDs)
	if p.Temperature != nil {
		r.Temperature = *p.Temperature
	}
	if p.TopP != nil {
		if r.TopP = *p.TopP; r.TopP == 0 {
			return refuse(http.StatusBadRequest, CodeInvalid, "top_p = 0: above 0, at most 1 (temperature 0 takes the most probable token)")
		}
	}
	if p.Seed != nil {
		r.Seed = *p.Seed
	}
	if p.MaxTokens != nil {
		if r.MaxTokens = *p.MaxTokens; r.MaxTokens < 1 {
			return refuse(http.StatusBadRequest, CodeInvalid, "max_tokens = %d: at least 1", r.MaxTokens)
		}
	}
	if !p.IgnoreEOS {
		r.StopTokens = append(r.StopTokens, eos...)
	}
	return nil
}

// unsupported are parameters of vLLM and OpenAI that change the prompt, the distribution or what is returned in ways this
// server does not implement, with the values that ask for nothing. Null and what is empty ask for nothing either.
// Any other unknown parameter is ignored.
var unsupported = map[string][]string{
	"top_k": {"-1", "0"}, "min_p": {"0"}, "typical_p": {"1"}, "presence_penalty": {"0"}, "frequency_penalty": {"0"},
	"repetition_penalty": {"1"}, "length_penalty": {"1"}, "no_repeat_ngram_size": {"0"}, "logit_bias": nil, "min_tokens": {"0"},
	"n": {"1"}, "best_of": {"1"}, "use_beam_search": {"false"}, "stop": nil, "bad_words": nil, "allowed_token_ids": nil,
	"logits_processors": nil, "structured_outputs": nil, "guided_json": nil, "guided_regex": nil, "guided_choice": nil,
	"guided_grammar": nil, "response_format": {`{"type":"text"}`}, "top_logprobs": {"0"}, "prompt_logprobs": nil,
	"logprob_token_ids": nil, "truncate_prompt_tokens": nil, "tools": nil, "functions": nil, "function_call": {`"none"`, `"auto"`},
	"tool_choice": {`"none"`, `"auto"`}, "echo": {"false"}, "suffix": nil, "prompt_embeds": nil, "add_special_tokens": nil,
	"skip_special_tokens": {"true"}, "add_generation_prompt": {"true"}, "continue_final_message": {"false"}, "chat_template": nil,
	"chat_template_kwargs": nil, "documents": nil, "reasoning_effort": nil, "thinking_token_budget": nil,
	"include_reasoning": {"true"}, "modalities": {`["text"]`}, "audio": nil, "watermarking": {"false"},
	"repetition_detection": nil, "vllm_xargs": nil,
}

// checkSupported refuses a JSON object with parameters that are not supported, naming all of them; but takes those that
// the endpoint does implement.
func checkSupported(object []byte, but ...string) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(object, &fields); err != nil {
		return err
	}
	var named []string
	for name, raw := range fields {
		neutral, known := unsupported[name]
		if known && !slices.Contains(but, name) && !asksForNothing(raw, neutral) {
			named = append(named, name)
		}
	}
	if len(named) == 0 {
		return nil
	}
	slices.Sort(named)
	return refuse(http.StatusBadRequest, CodeUnsupported, "not supported by this server: %s", fmt.Sprint(named))
}

func asksForNothing(raw json.RawMessage, neutral []string) bool {
	for _, n := range append([]string{"null", `""`, "[]", "{}"}, neutral...) {
		if equalJSON(raw, []byte(n)) {
			return true
		}
	}
	return false
}

// equalJSON compares two values; numbers by value.
func equalJSON(a, b []byte) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	xs, errX := json.Marshal(x)
	ys, errY := json.Marshal(y)
	return errX == nil && errY == nil && string(xs) == string(ys)
}
