package verifiers

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
)

// Models says which servers of models clients may have asked, and what of this process's environment may be sent there. A
// client names both in its requests, and is not trusted to: without an entry no variable is ever read.
type Models struct {
	// Any lets clients have every server asked, though without a variable.
	Any bool
	// Variables are the names of variables that may be sent to a server, by its origin, such as https://api.example.com.
	Variables map[string][]string
}

// Allow adds an entry, URL or URL=VARIABLE.
func (m *Models) Allow(entry string) error {
	at, variable, _ := strings.Cut(entry, "=")
	origin, err := originOf(at)
	if err != nil {
		return err
	}
	if m.Variables == nil {
		m.Variables = map[string][]string{}
	}
	variables := m.Variables[origin]
	if variable != "" {
		variables = append(variables, variable)
	}
	m.Variables[origin] = variables
	return nil
}

// originOf is scheme, host and port of a URL.
func originOf(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q is no URL of a model's server, such as http://localhost:8000/v1", text)
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port, nil
}

// noKey is what the original sends where there is no key.
const noKey = "EMPTY"

// access is what goes with the requests to a server.
type access struct {
	key     string
	header  http.Header
	refused []string // variables that were asked for and may not be sent there
}

// access makes the headers that a client asks for. An error if its server may not be asked.
func (m Models) access(base, keyVar string, headers, fromVars map[string]string) (access, error) {
	a := access{key: noKey, header: http.Header{}}
	origin, err := originOf(base)
	if err != nil {
		return a, fmt.Errorf("base_url: %w", err)
	}
	if _, listed := m.Variables[origin]; !listed && !m.Any {
		return a, fmt.Errorf("base_url: %s is none of the servers that may be asked (--models)", origin)
	}
	variable := func(name string) string {
		for _, allowed := range m.Variables[origin] {
			if allowed == name {
				return os.Getenv(name)
			}
		}
		a.refused = append(a.refused, name)
		return ""
	}
	for name, value := range headers {
		a.header.Set(name, value)
	}
	for name, from := range fromVars {
		if value := variable(from); value != "" {
			a.header.Set(name, value)
		}
	}
	if keyVar != "" {
		if key := variable(keyVar); key != "" {
			a.key = key
		}
	}
	for name := range a.header {
		switch name {
		case "Host", "Content-Length", "Transfer-Encoding", "Connection":
			delete(a.header, name)
		}
	}
	if a.header.Get("Authorization") == "" {
		a.header.Set("Authorization", "Bearer "+a.key)
	}
	return a, nil
}
