package try

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
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
	case u.User != nil:
		return "", fmt.Errorf("--url %s has a password in it: put the token into a file for --token-file, or into a variable for --token-env", u.Redacted())
	case u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("--url %q: want it without ? and #", s.URL)
	case s.TokenFile != "" && s.TokenEnv != "":
		return "", errors.New("--token-file and --token-env: leave one out")
	case (s.TokenFile != "" || s.TokenEnv != "") && u.Scheme == "http" && !local(u.Hostname()) && !s.Cleartext:
		return "", fmt.Errorf("--url %s sends the token as it is: use https, or give --cleartext where the network itself is encrypted", s.URL)
	}
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), pathChat)
	if u.Path == "" {
		u.Path = "/v1"
	}
	if _, err := s.Token(); err != nil {
		return "", err
	}
	return u.String(), nil
}

func local(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Token is empty if there is none.
func (s Server) Token() (string, error) {
	switch {
	case s.TokenEnv != "":
		if token := strings.TrimSpace(os.Getenv(s.TokenEnv)); token != "" {
			return token, nil
		}
		return "", fmt.Errorf("--token-env: the environment variable %s is not set", s.TokenEnv)
	case s.TokenFile != "":
		text, err := os.ReadFile(s.TokenFile)
		if err != nil {
			return "", fmt.Errorf("--token-file: %w", err)
		}
		token := strings.TrimSpace(string(text))
		if token == "" {
			return "", fmt.Errorf("--token-file: %s is empty", s.TokenFile)
		}
		return token, nil
	}
	return "", nil
}
