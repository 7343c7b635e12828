package inference

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/prl-project/prl/pipeline"
)

// NewFixed makes the stage with a backend of one model that is not trained. It is served as a frozen policy under the name
// Config.Model, for those who have a section [frozen.<name>] with the stage's url; no policies are followed. Its
// tokenizer.json is read from Config.Remote.Tokenizer.
func NewFixed(rt *pipeline.Runtime, cfg Config, b Backend) (*Server, error) {
	cfg, err := cfg.forRun(rt.Run)
	if err != nil {
		return nil, err
	}
	s, err := newServer(rt, cfg, map[string]string{cfg.Model: cfg.Remote.Tokenizer}, b)
	if err != nil {
		return nil, err
	}
	s.fixed = true
	return s, nil
}

// loadFixed is loadFrozen where nothing is trained.
func (s *Server) loadFixed(ctx context.Context) error {
	defer close(s.thawed)
	tokenizer, err := os.ReadFile(filepath.Join(s.cfg.Remote.Tokenizer, "tokenizer.json"))
	if err != nil {
		return pipeline.Fatal("inference.remote.tokenizer: the folder with the model's tokenizer.json: %w", err)
	}
	if err := s.install(ctx, Policy{Name: s.cfg.Model, Config: []byte("{}"), Tokenizer: tokenizer}); err != nil {
		return pipeline.Fatal("the model %s of inference.urls: %w", s.cfg.Model, err)
	}
	s.rt.Health.Set(Stage, true)
	return nil
}

// fixedPolicy is policyOf where nothing is trained.
func (s *Server) fixedPolicy(name string) (string, error) {
	if name != "" && name != s.cfg.Model {
		return "", refuse(http.StatusNotFound, CodeNoModel, "model %q is not served here, only %s is", name, s.cfg.Model)
	}
	return s.cfg.Model, nil
}

// waitThawed waits for the frozen policies.
func (s *Server) waitThawed(ctx context.Context) error {
	select {
	case <-s.thawed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the frozen policies: %w", context.Cause(ctx))
	}
}
