package inference

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// FrozenConfig is a section [frozen.<name>]: a policy that is not trained. Tasks name it to be played by it, and
// environments to have it as teacher. It has the tokenizer of the run, and either a folder or a url:
//
//	[frozen.teacher]
//	folder = "runs/demo/model-900"     # served beside the policy, by [inference]
//
//	[frozen.large]
//	url = "http://gpu:8000"            # a server elsewhere that speaks the same protocol
//	model = "Qwen/Qwen3-8B"
type FrozenConfig struct {
	// Folder is a Hugging Face folder such as --stage all writes at the end of a run: config.json, tokenizer.json and
	// model.safetensors. Weights of other kinds are not read.
	Folder string `toml:"folder"`
	// URL is the root of the server that has it.
	URL string `toml:"url"`
	// Model is the name that the policy has at that server.
	Model string `toml:"model"`
	// Token is sent to that server as bearer token; empty for none. Give it in PRL__FROZEN__<NAME>__TOKEN.
	Token pipeline.Secret `toml:"token"`
}

// Validate checks the section of a name on its own.
func (c FrozenConfig) Validate(name string) error {
	switch {
	case !pipeline.ValidName(name):
		return fmt.Errorf("frozen.%s: the name of a frozen policy has letters, digits, dashes and underscores, at most 100", name)
	case name == schemas.TeacherSelf:
		return fmt.Errorf("frozen.%s: the name stands for the policy that is trained; choose another", name)
	case (c.Folder == "") == (c.URL == ""):
		return fmt.Errorf("frozen.%s: either folder, or url and model", name)
	case c.Folder != "" && (c.Model != "" || c.Token.Reveal() != ""):
		return fmt.Errorf("frozen.%s.folder: model and token belong to a url", name)
	case c.Folder != "":
		return nil
	case c.Model == "":
		return fmt.Errorf("frozen.%s.model: the name of the policy at %s is missing", name, c.URL)
	}
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("frozen.%s.url = %q: a URL such as http://localhost:8000", name, c.URL)
	}
	return nil
}

// ValidateFrozen checks all sections [frozen.*].
func ValidateFrozen(sections map[string]FrozenConfig) error {
	for _, name := range slices.Sorted(maps.Keys(sections)) {
		if err := sections[name].Validate(name); err != nil {
			return err
		}
	}
	return nil
}

// folders are the frozen policies that a server has itself.
func folders(sections map[string]FrozenConfig) map[string]string {
	own := map[string]string{}
	for name, c := range sections {
		if c.Folder != "" {
			own[name] = c.Folder
		}
	}
	return own
}

// readFolder reads a frozen policy.
func readFolder(name, dir string) (Policy, error) {
	p := Policy{Name: name}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return p, fmt.Errorf("frozen.%s.folder = %q: there is no such folder; --stage all writes one at the end of a run", name, dir)
	}
	for _, f := range []struct {
		name string
		to   *[]byte
	}{{"config.json", &p.Config}, {"tokenizer.json", &p.Tokenizer}, {"model.safetensors", &p.Weights}} {
		data, err := os.ReadFile(filepath.Join(dir, f.name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return p, fmt.Errorf("frozen.%s.folder = %q: it has no %s (weights are read as safetensors, in one file)", name, dir, f.name)
		case err != nil:
			return p, fmt.Errorf("frozen.%s.folder: %w", name, err)
		}
		*f.to = data
	}
	return p, nil
}

// loadFrozen loads the frozen policies of this server. An error is fatal: without them the run is another one.
func (s *Server) loadFrozen(ctx context.Context) error {
	if s.fixed {
		return s.loadFixed(ctx)
	}
	defer close(s.thawed)
	for _, name := range slices.Sorted(maps.Keys(s.frozen)) {
		p, err := readFolder(name, s.frozen[name])
		if err != nil {
			return pipeline.Fatal("%w", err)
		}
		if err := s.install(ctx, p); err != nil {
			return pipeline.Fatal("frozen.%s.folder = %q: %w", name, s.frozen[name], err)
		}
		s.weights[name] = fmt.Sprintf("%x", sha256.Sum256(p.Weights))
		s.rt.Log.Info("a frozen policy is served", "policy", name, "folder", s.frozen[name], "sha256", s.weights[name])
	}
	return nil
}

// policyOf is the frozen policy that a request is for, by its field of either name; empty for the one that is trained.
func (s *Server) policyOf(policy, model string) (string, error) {
	name := policy
	if name == "" {
		name = model
	}
	if s.fixed {
		return s.fixedPolicy(name)
	}
	if policy == "" && (name == "" || name == s.cfg.Model) {
		return "", nil
	}
	if _, ok := s.frozen[name]; ok {
		return name, nil
	}
	return "", refuse(http.StatusNotFound, CodeNoModel, "model %q is not served here: %s", name, strings.Join(s.served(), ", ")+" are")
}

// served are the names under which policies are served, the one that is trained first.
func (s *Server) served() []string {
	if s.fixed {
		return []string{s.cfg.Model}
	}
	return append([]string{s.cfg.Model}, slices.Sorted(maps.Keys(s.frozen))...)
}
