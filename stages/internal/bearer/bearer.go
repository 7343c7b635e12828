// Package bearer has what every client needs that sends a server a token: the token comes from a file or an environment variable,
// never from a configuration or a URL, and does not go to another machine in the clear.
package bearer

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
)

// Source is where a token is. The zero value is none.
type Source struct {
	// File or Env names the file or the environment variable; at most one of them.
	File, Env string
	// Cleartext lets the token be sent without TLS to another machine.
	Cleartext bool
	// Flags says that errors are about flags: --token-file rather than the option token_file.
	Flags bool
}

// Validate returns an error if there are two places.
func (s Source) Validate() error {
	if s.File != "" && s.Env != "" {
		return fmt.Errorf("%s and %s: leave one out", s.option("token-file"), s.option("token-env"))
	}
	return nil
}

// Check returns an error if the token may not be sent to a URL, or could not be found; what to change is in it. Nor may the URL have a
// password.
func (s Source) Check(to *url.URL) error {
	cleartext := s.option("cleartext")
	if !s.Flags {
		cleartext += " = true"
	}
	switch {
	case to.User != nil:
		return fmt.Errorf("the URL %s has a password in it: put the token into a file and name that in %s, or into an environment variable, in %s",
			to.Redacted(), s.option("token-file"), s.option("token-env"))
	case s.Validate() != nil:
		return s.Validate()
	case s.File == "" && s.Env == "":
		return nil
	case to.Scheme != "https" && !local(to.Hostname()) && !s.Cleartext:
		return fmt.Errorf("%s sends the token as it is: use https, or set %s where the network itself is encrypted", to, cleartext)
	}
	_, err := s.Token()
	return err
}

// Token is the token, read anew each time, so that it can be renewed; empty if there is none. Its errors do not show it.
func (s Source) Token() (string, error) {
	var text string
	switch {
	case s.Env != "":
		text = os.Getenv(s.Env)
	case s.File != "":
		read, err := os.ReadFile(s.File)
		if err != nil {
			return "", fmt.Errorf("%s: %w", s.option("token-file"), err)
		}
		text = string(read)
	default:
		return "", nil
	}
	if text = strings.TrimSpace(text); text != "" {
		return text, nil
	}
	if s.Env != "" {
		return "", fmt.Errorf("%s: the environment variable %s is not set, or empty", s.option("token-env"), s.Env)
	}
	return "", fmt.Errorf("%s: %s is empty", s.option("token-file"), s.File)
}

// option is how an option is called, by its flag's name.
func (s Source) option(flag string) string {
	if s.Flags {
		return "--" + flag
	}
	return strings.ReplaceAll(flag, "-", "_")
}

// local reports whether a host is this machine.
func local(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Misplaced is the type of a key at which somebody might put the token itself into a configuration: it is refused.
type Misplaced struct{}

// UnmarshalText implements [encoding.TextUnmarshaler]. It refuses, without a word of what it refuses.
func (*Misplaced) UnmarshalText([]byte) error {
	return errors.New("a secret does not belong into the configuration: name a file in token_file, or an environment variable in token_env")
}
