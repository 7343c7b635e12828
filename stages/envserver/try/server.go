package try

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/prl-project/prl/stages/internal/bearer"
)

// Server is where a model answers: any server with OpenAI's chat completions.
type Server struct {
	// URL is the base of the API, such as https://example.com/v1. One without a path gets /v1.
	URL string
	// Model is its name there; empty where the server has only one.
	Model string
	// TokenFile or TokenEnv names the file or the environment variable with the token; empty for none. It is read for every
	// request, so that it can be renewed.
	TokenFile, TokenEnv string
	// Cleartext lets the token be sent without TLS to another machine.
	Cleartext bool
}

// base is the URL to which the paths of the API are appended.
func (s Server) base() (string, error) {
	u, err := url.Parse(s.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("--url %q: want one such as http://localhost:8000", s.URL)
	case u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("--url %q: want it without ? and #", s.URL)
	}
	if err := s.bearer().Check(u); err != nil {
		return "", fmt.Errorf("--url: %w", err)
	}
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), pathChat)
	if u.Path == "" {
		u.Path = "/v1"
	}
	return u.String(), nil
}

// Token is empty if there is none.
func (s Server) Token() (string, error) { return s.bearer().Token() }

func (s Server) bearer() bearer.Source {
	return bearer.Source{File: s.TokenFile, Env: s.TokenEnv, Cleartext: s.Cleartext, Flags: true}
}
