package openenv

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// observe is the text of an observation: of the fields that the option show names, or of all. A field alone that is a text is that
// text, several are JSON; what says nothing (null, an empty text or list) is left out, and so are metadata.
func (c Config) observe(observation json.RawMessage) (string, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(observation, &fields); err != nil {
		return "", fmt.Errorf("the observation %.200s is no object", observation)
	}
	if len(c.Show) > 0 {
		var parts []string
		known := false
		for _, name := range c.Show {
			field, ok := fields[name]
			known = known || ok
			if text := plain(field); text != "" {
				parts = append(parts, text)
			}
		}
		if _, alone := fields["metadata"]; !known && len(fields) > int(env.Bool(alone)) {
			return "", fmt.Errorf("show = %q: the observation has %s", c.Show, strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		}
		return strings.Join(parts, "\n"), nil
	}
	said := map[string]json.RawMessage{}
	var only json.RawMessage
	for name, field := range fields {
		switch name {
		case "metadata", "reward", "done":
			continue
		}
		switch string(field) {
		case "null", `""`, "[]", "{}":
			continue
		}
		said[name], only = field, field
	}
	switch len(said) {
	case 0:
		return "", nil
	case 1:
		return plain(only), nil
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(said); err != nil {
		return "", fmt.Errorf("the observation %.200s: %w", observation, err)
	}
	return strings.TrimSpace(text.String()), nil
}

// plain is a text as it is, and anything else as JSON.
func plain(field json.RawMessage) string {
	var text string
	switch {
	case len(field) == 0 || string(field) == "null":
		return ""
	case json.Unmarshal(field, &text) == nil:
		return text
	}
	return compact(field)
}
