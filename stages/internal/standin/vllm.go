package standin

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/prl-project/prl/stages/internal/lm"
)

// NewVLLM is a vLLM server, started with VLLM_SERVER_DEV_MODE=1 and --logprobs-mode processed_logprobs.
func NewVLLM(t testing.TB, base *lm.Model) *Server { return newServer(t, base, (*Server).routesVLLM) }

// NewVLLMWithoutDevMode is a vLLM server as it is started by default.
func NewVLLMWithoutDevMode(t testing.TB, base *lm.Model) *Server {
	return newServer(t, base, (*Server).routesPublic)
}

func (s *Server) routesPublic() {
	s.mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	s.mux.HandleFunc("GET /v1/models", s.models)
	s.mux.HandleFunc("POST /inference/v1/generate", s.generateVLLM)
	s.mux.HandleFunc("POST /v1/completions", s.completions)
	s.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusNotFound, object{"error": object{"message": "Not Found", "type": "NotFoundError", "code": 404}})
	})
}

func (s *Server) routesVLLM() {
	s.routesPublic()
	s.mux.HandleFunc("POST /pause", func(w http.ResponseWriter, r *http.Request) {
		if mode := r.URL.Query().Get("mode"); mode != "keep" || r.URL.Query().Get("clear_cache") != "true" {
			reply(w, http.StatusBadRequest, object{"error": "Invalid pause mode: " + mode})
			return
		}
		s.pause()
		reply(w, http.StatusOK, object{"status": "paused"})
	})
	s.mux.HandleFunc("POST /resume", func(w http.ResponseWriter, _ *http.Request) {
		s.resume()
		reply(w, http.StatusOK, object{"status": "resumed"})
	})
	s.mux.HandleFunc("GET /weight_info", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, object{"weight_version": s.labelled()})
	})
	s.mux.HandleFunc("POST /update_weight_version", func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			NewVersion string `json:"new_version"`
		}
		if read(w, r, &q) {
			s.setLabel(q.NewVersion)
			reply(w, http.StatusOK, object{"success": true, "new_version": q.NewVersion})
		}
	})
	s.mux.HandleFunc("POST /collective_rpc", func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Method string
			Kwargs map[string]string
		}
		if !read(w, r, &q) {
			return
		}
		if q.Method != "reload_weights" {
			reply(w, http.StatusInternalServerError, object{"error": object{"message": "no method " + q.Method, "type": "InternalServerError", "code": 500}})
			return
		}
		if err := s.load(q.Kwargs["weights_path"]); err != nil {
			reply(w, http.StatusInternalServerError, object{"error": object{"message": err.Error(), "type": "InternalServerError", "code": 500}})
			return
		}
		s.onLoad()
		reply(w, http.StatusOK, object{"results": []any{nil}})
	})
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusOK, object{"object": "list", "data": []object{{"id": "served", "object": "model", "parent": nil, "max_model_len": s.base.Config().MaxPositionEmbeddings}}})
}

func (s *Server) generateVLLM(w http.ResponseWriter, r *http.Request) {
	var q struct {
		TokenIDs []int32 `json:"token_ids"`
		Sampling struct {
			Temperature    float64
			MaxTokens      int `json:"max_tokens"`
			Seed           int64
			StopTokenIDs   []int32 `json:"stop_token_ids"`
			IgnoreEOS      bool    `json:"ignore_eos"`
			Logprobs       int
			PromptLogprobs *int `json:"prompt_logprobs"`
		} `json:"sampling_params"`
	}
	if !read(w, r, &q) {
		return
	}
	p := q.Sampling
	if !p.IgnoreEOS {
		p.StopTokenIDs = append(p.StopTokenIDs, int32(s.base.Config().EOSTokenID))
	}
	c, err := s.Generate(r.Context(), Request{Prompt: q.TokenIDs, MaxTokens: p.MaxTokens, Temperature: p.Temperature, Seed: p.Seed, Stop: p.StopTokenIDs, Top: p.Logprobs})
	if err != nil {
		reply(w, http.StatusBadRequest, object{"error": object{"message": err.Error(), "type": "BadRequestError", "code": 400}})
		return
	}
	var content []object
	for i, token := range c.Tokens {
		// The sampled token is first, and counts as one of those that were asked for.
		top := []object{{"token_id": token, "logprob": c.Logprobs[i], "rank": 1}}
		for _, t := range c.Top[i] {
			if t.Token != token && len(top) < p.Logprobs {
				top = append(top, object{"token_id": t.Token, "logprob": t.LogProb, "rank": 1})
			}
		}
		content = append(content, object{"token_id": token, "logprob": c.Logprobs[i], "rank": 1, "top_logprobs": top})
	}
	out := object{
		"request_id": "generate-tokens-1", "model": "served", "output_mode": "tokens", "prompt_logprobs": nil,
		"usage": object{"prompt_tokens": len(q.TokenIDs), "completion_tokens": len(c.Tokens), "total_tokens": len(q.TokenIDs) + len(c.Tokens), "prompt_tokens_details": nil},
		"choices": []object{{"index": 0, "finish_reason": c.Finish, "stop_reason": nil, "token_ids": c.Tokens, "weight_versions": c.Spans,
			"logprobs": object{"content": content}}},
	}
	if p.PromptLogprobs != nil {
		list, label, err := s.promptLogprobs(q.TokenIDs)
		if err != nil {
			reply(w, http.StatusBadRequest, object{"error": object{"message": err.Error(), "type": "BadRequestError", "code": 400}})
			return
		}
		out["prompt_logprobs"] = list
		out["choices"].([]object)[0]["weight_versions"] = []Span{{label, 0, 1}}
	}
	reply(w, http.StatusOK, out)
}

// promptLogprobs is vLLM's list: null, then one object for each token.
func (s *Server) promptLogprobs(tokens []int32) ([]any, string, error) {
	logprobs, label, err := s.prompt(tokens)
	if err != nil {
		return nil, "", err
	}
	list := []any{nil}
	for i, token := range tokens[1:] {
		list = append(list, object{strconv.Itoa(int(token)): object{"logprob": logprobs[i+1], "rank": 1, "decoded_token": "x"}})
	}
	return list, label, nil
}

// completions is /v1/completions with return_token_ids and return_tokens_as_token_ids.
func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model          string
		Prompt         []int32
		MaxTokens      int `json:"max_tokens"`
		Temperature    float64
		Seed           int64
		Logprobs       int
		StopTokenIDs   []int32 `json:"stop_token_ids"`
		PromptLogprobs *int    `json:"prompt_logprobs"`
	}
	if !read(w, r, &q) {
		return
	}
	if q.Model != "served" {
		reply(w, http.StatusNotFound, object{"error": object{"message": "The model `" + q.Model + "` does not exist.", "type": "NotFoundError", "code": 404}})
		return
	}
	c, err := s.Generate(r.Context(), Request{Prompt: q.Prompt, MaxTokens: q.MaxTokens, Temperature: q.Temperature, Seed: q.Seed, Stop: q.StopTokenIDs, Top: q.Logprobs})
	if err != nil {
		reply(w, http.StatusBadRequest, object{"error": object{"message": err.Error(), "type": "BadRequestError", "code": 400}})
		return
	}
	var top []object
	for i := range c.Tokens {
		list := object{}
		for _, t := range c.Top[i] {
			list["token_id:"+strconv.Itoa(int(t.Token))] = t.LogProb
		}
		top = append(top, list)
	}
	choice := object{"index": 0, "text": "", "finish_reason": c.Finish, "token_ids": c.Tokens, "prompt_logprobs": nil,
		"logprobs": object{"token_logprobs": c.Logprobs, "top_logprobs": top}}
	if q.PromptLogprobs != nil {
		if choice["prompt_logprobs"], _, err = s.promptLogprobs(q.Prompt); err != nil {
			reply(w, http.StatusBadRequest, object{"error": object{"message": err.Error(), "type": "BadRequestError", "code": 400}})
			return
		}
	}
	reply(w, http.StatusOK, object{"id": "cmpl-1", "object": "text_completion", "model": "served", "choices": []object{choice}})
}
