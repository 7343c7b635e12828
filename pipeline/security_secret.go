package pipeline

import (
	"fmt"
	"io"
	"log/slog"
)

// hidden stands for a secret wherever it would be shown.
const hidden = "[secret]"

// Secret is a password or a token. However it is printed, logged or marshalled, alone or inside something else, it shows
// only whether there is one.
type Secret struct {
	text *string // a pointer: fmt does not look behind it, not even in an unexported field
}

// NewSecret hides text.
func NewSecret(text string) Secret { return Secret{&text} }

// Reveal is the secret itself; empty where there is none.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// String is what is shown.
func (s Secret) String() string {
	if s.Reveal() == "" {
		return ""
	}
	return hidden
}

// Format shows the same with every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue is what slog shows.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText is what JSON and TOML hold.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes a secret from a configuration. What MarshalText left of one is none.
func (s *Secret) UnmarshalText(text []byte) error {
	if *s = NewSecret(string(text)); string(text) == hidden {
		*s = Secret{}
	}
	return nil
}
