package standin

import (
	"net/http"
	"testing"

	"github.com/prl-project/prl/stages/internal/lm"
)

// NewSGLang is an SGLang server.
func NewSGLang(t testing.TB, base *lm.Model) *Server {
	return newServer(t, base, (*Server).routesSGLang)
}

func (s *Server) routesSGLang() {
	ok := func(w http.ResponseWriter, what string) {
		reply(w, http.StatusOK, object{"message": what, "status": "ok"})
	}
	s.mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	s.mux.HandleFunc("GET /v1/models", s.models)
	s.mux.HandleFunc("GET /model_info", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, object{"model_path": "base", "is_generation": true, "weight_version": s.labelled()})
	})
	s.mux.HandleFunc("POST /pause_generation", func(w http.ResponseWriter, r *http.Request) {
		var q struct{ Mode string }
		if !read(w, r, &q) {
			return
		}
		if q.Mode != "retract" {
			reply(w, http.StatusUnprocessableEntity, object{"detail": "mode " + q.Mode})
			return
		}
		s.pause()
		ok(w, "Generation paused successfully.")
	})
	s.mux.HandleFunc("POST /continue_generation", func(w http.ResponseWriter, _ *http.Request) {
		s.resume()
		ok(w, "Generation continued successfully.")
	})
	s.mux.HandleFunc("POST /update_weight_version", func(w http.ResponseWriter, r *http.Request) {
		q := struct {
			NewVersion string `json:"new_version"`
			Abort      bool   `json:"abort_all_requests"`
		}{Abort: true}
		if !read(w, r, &q) {
			return
		}
		if q.Abort {
			s.abortAll()
		}
		s.setLabel(q.NewVersion)
		reply(w, http.StatusOK, object{"success": true, "new_version": q.NewVersion})
	})
	s.mux.HandleFunc("POST /update_weights_from_disk", func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			ModelPath     string `json:"model_path"`
			WeightVersion string `json:"weight_version"`
			FlushCache    bool   `json:"flush_cache"`
		}
		if !read(w, r, &q) {
			return
		}
		if !q.FlushCache {
			reply(w, http.StatusBadRequest, object{"success": false, "message": "the stand-in's caches are of the old weights: flush_cache"})
			return
		}
		if err := s.load(q.ModelPath); err != nil {
			reply(w, http.StatusBadRequest, object{"success": false, "message": "Failed to update weights: " + err.Error(), "num_paused_requests": 0})
			return
		}
		s.setLabel(q.WeightVersion)
		s.onLoad()
		reply(w, http.StatusOK, object{"success": true, "message": "Succeeded to update model weights.", "num_paused_requests": 0})
	})
	s.mux.HandleFunc("POST /generate", s.generateSGLang)
	s.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusNotFound, object{"detail": "Not Found"})
	})
}

// abortAll ends running requests.
func (e *Engine) abortAll() {
	e.set(func() {
		close(e.abort)
		e.abort = make(chan struct{})
	})
}

func (s *Server) generateSGLang(w http.ResponseWriter, r *http.Request) {
	var q struct {
		InputIDs        []int32 `json:"input_ids"`
		ReturnLogprob   bool    `json:"return_logprob"`
		LogprobStartLen int     `json:"logprob_start_len"`
		TopLogprobsNum  int     `json:"top_logprobs_num"`
		Sampling        struct {
			Temperature  float64
			MaxNewTokens int     `json:"max_new_tokens"`
			Seed         int64   `json:"sampling_seed"`
			StopTokenIDs []int32 `json:"stop_token_ids"`
			IgnoreEOS    bool    `json:"ignore_eos"`
		} `json:"sampling_params"`
	}
	if !read(w, r, &q) {
		return
	}
	p := q.Sampling
	stop := append(p.StopTokenIDs, int32(s.base.Config().EOSTokenID))
	if p.IgnoreEOS { // stop_token_ids are not looked at then
		stop = nil
	}
	c, err := s.Generate(r.Context(), Request{Prompt: q.InputIDs, MaxTokens: p.MaxNewTokens, Temperature: p.Temperature, Seed: p.Seed, Stop: stop, Top: q.TopLogprobsNum})
	if err != nil {
		reply(w, http.StatusBadRequest, object{"error": object{"message": err.Error()}})
		return
	}
	var sampled [][]any
	var top [][][]any
	for i, token := range c.Tokens {
		sampled = append(sampled, []any{c.Logprobs[i], token, nil})
		list := [][]any{}
		for _, t := range c.Top[i] {
			list = append(list, []any{t.LogProb, t.Token, nil})
		}
		top = append(top, list)
	}
	finish := object{"type": c.Finish}
	meta := object{"id": "1", "finish_reason": finish, "prompt_tokens": len(q.InputIDs), "cached_tokens": 0, "completion_tokens": len(c.Tokens), "weight_versions": c.Spans,
		"output_token_logprobs": sampled, "output_top_logprobs": top}
	if len(c.Spans) > 0 {
		meta["weight_version"] = c.Spans[len(c.Spans)-1].Version
	}
	if q.LogprobStartLen == 0 {
		logprobs, label, err := s.prompt(q.InputIDs)
		if err != nil {
			reply(w, http.StatusBadRequest, object{"error": object{"message": err.Error()}})
			return
		}
		input := [][]any{{nil, q.InputIDs[0], nil}}
		for i, token := range q.InputIDs[1:] {
			input = append(input, []any{logprobs[i+1], token, nil})
		}
		meta["input_token_logprobs"], meta["weight_versions"] = input, []Span{{label, 0, 1}}
	}
	reply(w, http.StatusOK, object{"text": "", "output_ids": c.Tokens, "meta_info": meta})
}
