package inference

import (
	"context"
	"fmt"
	"net/http"
	"strings"
)

const pathModels = "/v1/models"

type modelList struct {
	Object string      `json:"object"`
	Data   []ModelCard `json:"data"`
}

// ModelCard says what a server has under one name. It is OpenAI's, with vLLM's max_model_len; what follows that is ours, and
// other servers do not say it.
type ModelCard struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"` // Unix seconds: when the server began
	OwnedBy     string `json:"owned_by"`
	MaxModelLen int    `json:"max_model_len"`            // tokens of the longest sequence, prompt and completion together
	MaxProbeLen int    `json:"max_probe_len,omitempty"`  // tokens of the longest probe
	Renderer    string `json:"renderer,omitempty"`       // chat format and tokenizer: render.Renderer.ID
	Weights     string `json:"weights_sha256,omitempty"` // of a frozen policy's model.safetensors, in hex
}

// probeLen is the longest sequence that can be probed; 0 where the server does not say. Servers of other makes sample a
// token behind what they are asked about, and need room for it.
func (c ModelCard) probeLen() int {
	if c.MaxProbeLen > 0 {
		return c.MaxProbeLen
	}
	return max(0, c.MaxModelLen-1)
}

// Models implements Host. It waits for the first policy version, before which the frozen policies are loaded.
func (s *Server) Models(ctx context.Context) ([]ModelCard, error) {
	if err := s.ready(ctx); err != nil {
		return nil, fmt.Errorf("list the models: %w", err)
	}
	id := s.voice.get().ID()
	var cards []ModelCard
	for i, name := range s.served() {
		policy := name
		if i == 0 && !s.fixed {
			policy = "" // the one that is trained
		}
		completed, probed := s.backend.Limits(policy)
		cards = append(cards, ModelCard{
			ID: name, Object: "model", Created: s.began.Unix(), OwnedBy: "prl", MaxModelLen: completed, MaxProbeLen: probed,
			Renderer: id, Weights: s.weights[policy],
		})
	}
	return cards, nil
}

func (a *API) oneModel(r *http.Request, _ []byte) (any, error) {
	cards, err := a.speaker.Models(r.Context())
	if err != nil {
		return nil, err
	}
	name := r.PathValue("name")
	var served []string
	for _, c := range cards {
		if c.ID == name {
			return c, nil
		}
		served = append(served, c.ID)
	}
	if name == "" {
		return nil, refuse(http.StatusNotFound, CodeNoModel, "the name of a model is missing behind %s/", pathModels)
	}
	return nil, refuse(http.StatusNotFound, CodeNoModel, "model %q is not served here: %s", name, strings.Join(served, ", ")+" are")
}

func (a *API) allModels(r *http.Request, _ []byte) (any, error) {
	cards, err := a.speaker.Models(r.Context())
	return modelList{"list", cards}, err
}
