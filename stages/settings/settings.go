// Package settings knows every key of the configuration: its type, unit, default and meaning. Nobody writes that down twice:
// the keys are those of the structs that hold the configuration, the meanings their comments, the defaults those that a stage
// starts with. A test makes settings.json, which the binary carries, and configs/README.md of them (make generate).
package settings

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/prl-project/prl/pipeline"
)

//go:embed settings.json
var embedded []byte

// A Setting is one key.
type Setting struct {
	// Key is the dotted name, with <name> for what users name.
	Key string `json:"key"`
	// Type is what may stand there, in words.
	Type string `json:"type"`
	// Unit is that of a number; empty for one that counts things which the meaning names.
	Unit string `json:"unit,omitempty"`
	// Default is TOML; empty where there is none.
	Default string `json:"default,omitempty"`
	// Values are all there are, where they are few.
	Values []string `json:"values,omitempty"`
	// Doc is the meaning.
	Doc string `json:"doc"`
}

// A Section is a table of the configuration.
type Section struct {
	// Name is that of the table; empty for the keys outside of all.
	Name string `json:"name"`
	// Of is what has these keys, where several may have the table: the options of an environment. Else empty.
	Of       string    `json:"of,omitempty"`
	Doc      string    `json:"doc,omitempty"`
	Settings []Setting `json:"settings"`
}

// Title is the section as a heading.
func (s Section) Title() string {
	switch {
	case s.Name == "":
		return "Outside of all sections"
	case s.Of != "":
		return "[" + s.Name + "] of " + s.Of
	}
	return "[" + s.Name + "]"
}

// All are the sections, in the order of the configuration.
var All = sync.OnceValue(func() (list []Section) {
	if err := json.Unmarshal(embedded, &list); err != nil {
		panic(fmt.Sprintf("settings.json: %v", err)) // a test has read it
	}
	return list
})

// Names are the keys of all sections, as a user may write them after --set.
func Names() (names []string) {
	for _, section := range All() {
		for _, s := range section.Settings {
			names = append(names, s.Key)
		}
	}
	return slices.Compact(names)
}

// within reports whether a key is in a section or is it, names of the user's included: envs.catch.ratio is envs.<name>.ratio.
func within(key, prefix string) bool {
	have, want := strings.Split(key, "."), strings.Split(prefix, ".")
	if len(want) > len(have) {
		return false
	}
	for i, w := range want {
		if w != have[i] && !(strings.HasPrefix(have[i], "<") && w != "") {
			return false
		}
	}
	return true
}

// Below are the sections with the keys that are below a prefix, or are it; all for an empty one.
func Below(prefix string) []Section {
	prefix = strings.Trim(prefix, "[].*")
	var list []Section
	for _, section := range All() {
		section.Settings = slices.DeleteFunc(slices.Clone(section.Settings), func(s Setting) bool {
			return prefix != "" && !within(s.Key, prefix)
		})
		if len(section.Settings) > 0 {
			list = append(list, section)
		}
	}
	return list
}

// Unknown is the error of a key that is none.
func Unknown(key string) error {
	if near := pipeline.Nearest(key, Names()); len(near) > 0 {
		return fmt.Errorf("there is no key %s: did you mean %s?", key, strings.Join(near, " or "))
	}
	return fmt.Errorf("there is no key %s: --config-keys lists all", key)
}

// List prints the keys below a prefix, a line each.
func List(w io.Writer, prefix string) error {
	sections := Below(prefix)
	if len(sections) == 0 {
		return Unknown(prefix)
	}
	for i, section := range sections {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w, section.Title())
		Lines(w, section.Settings)
	}
	return nil
}

// Lines prints settings, a line each: key, default, kind, and the first sentence of the meaning.
func Lines(w io.Writer, list []Setting) {
	width := 0
	for _, s := range list {
		width = max(width, len(s.Key+" = "+s.value()))
	}
	width = min(width, 48)
	for _, s := range list {
		fmt.Fprintf(w, "  %-*s  %s\n", width, s.Key+" = "+s.value(), cut(strings.ReplaceAll(first(s.Doc), "`", ""), 90))
	}
}

// Explain prints all there is to know of a key, or of the keys of a section.
func Explain(w io.Writer, key string) error {
	sections := Below(key)
	if len(sections) == 0 || key == "" {
		return Unknown(key)
	}
	for _, section := range sections {
		for _, s := range section.Settings {
			of := ""
			if section.Of != "" {
				of = " (" + section.Of + ")"
			}
			fmt.Fprintf(w, "%s%s\n  %s; default %s\n", s.Key, of, s.Kind(), s.value())
			fmt.Fprint(w, wrapped(strings.ReplaceAll(s.Doc, "`", ""), 100))
			if path := strings.ToUpper(strings.ReplaceAll(s.Key, ".", "__")); !strings.Contains(path, "<") {
				fmt.Fprintf(w, "  --set %s=…   or   PRL__%s=…\n", s.Key, path)
			}
			fmt.Fprintln(w)
		}
	}
	return nil
}

// Kind is type, unit and values in words.
func (s Setting) Kind() string {
	kind := s.Type
	if s.Unit != "" {
		kind += ", " + s.Unit
	}
	if len(s.Values) > 0 {
		kind = strings.Join(s.Values, ", ")
	}
	return kind
}

// cut is a text that is no longer than n characters.
func cut(text string, n int) string {
	if r := []rune(text); len(r) > n {
		return strings.TrimRight(string(r[:n-1]), " ") + "…"
	}
	return text
}

func (s Setting) value() string {
	switch {
	case s.Default == "":
		return "(none)"
	case len(s.Default) > 60:
		return s.Default[:57] + "…"
	}
	return s.Default
}

// first is the first sentence of a text.
func first(text string) string {
	for i := range text {
		if end := strings.HasPrefix(text[i:], ". ") || strings.HasPrefix(text[i:], "; "); end {
			return text[:i]
		}
	}
	return strings.TrimSuffix(text, ".")
}

func wrapped(text string, width int) string {
	var b strings.Builder
	line := " "
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > width {
			b.WriteString(line + "\n")
			line = " "
		}
		line += " " + word
	}
	return b.String() + line + "\n"
}

// Short is a duration without what is zero at its end: 10m, where Go says 10m0s.
func Short(d pipeline.Duration) string {
	text := d.String()
	if rest, ok := strings.CutSuffix(text, "m0s"); ok {
		text = rest + "m"
	}
	if rest, ok := strings.CutSuffix(text, "h0m"); ok {
		text = rest + "h"
	}
	return text
}
