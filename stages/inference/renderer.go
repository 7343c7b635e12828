package inference

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/prl-project/prl/stages/inference/render"
)

// errTokenizer is wrapped where two policies of a run do not speak the same: another tokenizer, or another chat format.
var errTokenizer = errors.New("it has another tokenizer than the policy that is trained: make both with the same model.alphabet")

// voice is how the policies speak: all of them have one renderer, that of the first that is loaded.
type voice struct {
	name string // of the renderer; empty for the one that the tokenizer says

	mu        sync.Mutex
	tokenizer []byte          // that renderer was made from last
	renderer  render.Renderer // nil before the first policy
	first     string          // the frozen policy that it was made for; empty for the one that is trained
}

// get is the renderer; nil before the first policy.
func (v *voice) get() render.Renderer {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.renderer
}

// hear makes the renderer from a policy's tokenizer, or checks that it is the same as before.
func (v *voice) hear(p Policy) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	r := v.renderer
	if r == nil || !bytes.Equal(v.tokenizer, p.Tokenizer) {
		var err error
		if r, err = render.New(v.name, p.Tokenizer); err != nil {
			return err
		}
	}
	var config struct {
		VocabSize *int `json:"vocab_size"` // where there is none it is not at the top level
	}
	if err := json.Unmarshal(p.Config, &config); err != nil {
		return fmt.Errorf("config.json: %w", err)
	}
	switch n := r.VocabSize(); {
	case v.renderer != nil && v.renderer.ID() != r.ID() && p.Name == "" && v.first != "":
		return fmt.Errorf("the frozen policy %q: %w", v.first, errTokenizer)
	case v.renderer != nil && v.renderer.ID() != r.ID():
		return errTokenizer
	case config.VocabSize != nil && *config.VocabSize < n:
		return fmt.Errorf("vocab_size is %d, but the tokenizer has %d tokens", *config.VocabSize, n)
	case v.renderer == nil:
		v.renderer, v.first = r, p.Name
	}
	v.tokenizer = p.Tokenizer
	return nil
}

// install gives a policy to the backend.
func (s *Server) install(ctx context.Context, p Policy) error {
	if err := s.voice.hear(p); err != nil {
		return err
	}
	return s.backend.Load(ctx, p)
}

// Renderer implements Speaker: it waits for the first policy.
func (s *Server) Renderer(ctx context.Context) (render.Renderer, error) {
	if r := s.voice.get(); r != nil {
		return r, nil
	}
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	return s.voice.get(), nil
}

// ready waits for the first policy version.
func (s *Server) ready(ctx context.Context) error {
	if s.fixed {
		return s.waitThawed(ctx)
	}
	if s.serves() {
		return nil
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	_, err := s.available(ctx, "", nil)
	return err
}

// serves reports whether there is a policy version, or the model where none is trained.
func (s *Server) serves() bool {
	if s.fixed {
		select {
		case <-s.thawed:
			return true
		default:
			return false
		}
	}
	s.policies.mu.Lock()
	defer s.policies.mu.Unlock()
	return s.policies.serving() != none
}
