package inference

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
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
	OwnedBy     string `json:"owned_by"`
	MaxModelLen int    `json:"max_model_len"`              // tokens of the longest sequence, prompt and completion together
	MaxProbeLen int    `json:"max_probe_len,omitempty"`    // tokens of the longest probe
	Tokenizer   string `json:"tokenizer_sha256,omitempty"` // see tokenizerID
	Weights     string `json:"weights_sha256,omitempty"`   // of a frozen policy's model.safetensors, in hex
}

// probeLen is the longest sequence that can be probed; 0 where the server does not say. Servers of other makes sample a
// token behind what they are asked about, and need room for it.
func (c ModelCard) probeLen() int {
	if c.MaxProbeLen > 0 {
		return c.MaxProbeLen
	}
	return max(0, c.MaxModelLen-1)
}

// tokenizerID is equal for equal tokenizers: the SHA-256 of its tokenizer.json, without space, in hex.
func tokenizerID(t Tokenizer) (string, error) {
	data, err := json.Marshal(t)
	if err != nil {
		return "", fmt.Errorf("tokenizer: %w", err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(data)), nil
}

// Models implements Host. It waits for the first policy version, before which the frozen policies are loaded.
func (s *Server) Models(ctx context.Context) ([]ModelCard, error) {
	tok, err := s.tokenizer(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the models: %w", err)
	}
	id, err := tokenizerID(tok)
	if err != nil {
		return nil, fmt.Errorf("list the models: %w", err)
	}
	var cards []ModelCard
	for i, name := range s.served() {
		policy := name
		if i == 0 {
			policy = "" // the one that is trained
		}
		completed, probed := s.backend.Limits(policy)
		cards = append(cards, ModelCard{name, "model", "prl", completed, probed, id, s.weights[policy]})
	}
	return cards, nil
}

func (s *Server) handleModels(r *http.Request, _ []byte) (any, error) {
	cards, err := s.Models(r.Context())
	return modelList{"list", cards}, err
}
