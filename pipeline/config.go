package pipeline

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// envPrefix starts environment variables that override the configuration: PRL__RUN__MAX_STEPS=5 is run.max_steps = 5.
const envPrefix = "PRL__"

// Duration is a time.Duration that the configuration writes as "90s" or "10m".
type Duration time.Duration

// UnmarshalText reads what time.ParseDuration takes.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is no duration: write it as 90s, 10m or 1h30m", text)
	}
	*d = Duration(v)
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d Duration) String() string { return time.Duration(d).String() }

// Milliseconds is the duration in milliseconds.
func (d Duration) Milliseconds() int64 { return time.Duration(d).Milliseconds() }

// A source is one place settings come from, as TOML.
type source struct {
	name string // file, or the flag or variable
	text []byte
}

// Config is a whole configuration; its fields hold the defaults before it is loaded.
type Config interface {
	// Prepare is told what a source sets before it is decoded, so that tables of a name of the user's have their defaults.
	Prepare(tree map[string]any)
	// Validate checks the whole. An error starts with the key it speaks of.
	Validate() error
}

// LoadConfig decodes into config the file at path (none if empty), then environment variables, then sets of the form
// key=value, each over the ones before, and validates it. An unknown key is an error; errors name file and line.
func LoadConfig(path string, environ, sets []string, config Config) error {
	sources, err := sourcesOf(path, environ, sets)
	if err != nil {
		return err
	}
	for _, s := range sources {
		if err := s.decode(config); err != nil {
			return err
		}
	}
	if err := config.Validate(); err != nil {
		return locate(err, sources)
	}
	return nil
}

// sourcesOf are the places that settings come from, each over the ones before.
func sourcesOf(path string, environ, sets []string) ([]source, error) {
	var sources []source
	if path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read the configuration: %w", err)
		}
		sources = append(sources, source{path, text})
	}
	for _, kv := range environ {
		if key, ok := strings.CutPrefix(kv, envPrefix); ok {
			name, value, _ := strings.Cut(key, "=")
			key := strings.ToLower(strings.ReplaceAll(name, "__", "."))
			sources = append(sources, source{"environment variable " + envPrefix + name, setting(key, value)})
		}
	}
	for _, kv := range sets {
		key, value, ok := strings.Cut(kv, "=")
		if !ok {
			return nil, fmt.Errorf("--set %s: want key=value, e.g. --set run.max_steps=10", kv)
		}
		// Errors name their source. The value may be a secret that was put where it does not belong.
		sources = append(sources, source{"--set " + key, setting(strings.TrimSpace(key), value)})
	}
	return sources, nil
}

// Origins says where each key comes from that LoadConfig finds set: file and line, variable or flag. Of a table in one line
// the keys in it come from where it is.
func Origins(path string, environ, sets []string) (map[string]string, error) {
	sources, err := sourcesOf(path, environ, sets)
	if err != nil {
		return nil, err
	}
	from := map[string]string{}
	for _, s := range sources {
		eachKey(s.text, func(key string, row int) bool {
			from[key] = s.at(row)
			return true
		})
	}
	return from, nil
}

// setting is one key as TOML. A value that is no TOML value is taken as text.
func setting(key, value string) []byte {
	line := []byte(key + " = " + strings.TrimSpace(value) + "\n")
	if toml.Unmarshal(line, &map[string]any{}) == nil {
		return line
	}
	return fmt.Appendf(nil, "%s = %q\n", key, value)
}

func (s source) decode(config Config) error {
	tree := map[string]any{}
	if toml.Unmarshal(s.text, &tree) == nil {
		config.Prepare(tree)
	}
	err := toml.NewDecoder(bytes.NewReader(s.text)).DisallowUnknownFields().Decode(config)
	var strict *toml.StrictMissingError
	var bad *toml.DecodeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &strict):
		var list []error
		for i := range strict.Errors {
			row, _ := strict.Errors[i].Position()
			key := strings.Join(strict.Errors[i].Key(), ".")
			list = append(list, fmt.Errorf("%s: unknown key %s%s", s.at(row), key, suggest(key, config)))
		}
		return errors.Join(list...)
	case errors.As(err, &bad):
		row, _ := bad.Position()
		return fmt.Errorf("%s: %s: %s", s.at(row), strings.Join(bad.Key(), "."), strings.TrimPrefix(bad.Error(), "toml: "))
	}
	return fmt.Errorf("%s: %w", s.name, err)
}

// suggest says which keys an unknown one may have been meant for.
func suggest(key string, config Config) string {
	var names []string
	for _, k := range Keys(config) {
		names = append(names, k.Name)
		for at, c := range k.Name { // and the sections it is in
			if c == '.' {
				names = append(names, k.Name[:at])
			}
		}
	}
	near := Nearest(key, names)
	if len(near) == 0 {
		return " (prl-stage --config-keys lists them)"
	}
	return fmt.Sprintf(": did you mean %s? (prl-stage --explain %s)", strings.Join(near, " or "), near[0])
}

func (s source) at(row int) string {
	if bytes.Count(s.text, []byte("\n")) == 1 && strings.ContainsAny(s.name, " ") {
		return s.name
	}
	return fmt.Sprintf("%s:%d", s.name, row)
}

// locate puts the file and line of the key an error starts with before it.
func locate(err error, sources []source) error {
	key, _, _ := strings.Cut(err.Error(), " ")
	key = strings.TrimSuffix(strings.TrimSuffix(key, ":"), ",")
	for _, s := range slices.Backward(sources) {
		if row := rowOf(s.text, key); row > 0 {
			return fmt.Errorf("%s: %w", s.at(row), err)
		}
	}
	return err
}

// rowOf is the line of a dotted key in a TOML text; 0 where it does not stand there.
func rowOf(text []byte, key string) (at int) {
	eachKey(text, func(k string, row int) bool {
		if k == key {
			at = row
		}
		return at == 0
	})
	return at
}

// eachKey calls found with the dotted keys of a TOML text and their lines, until it returns false.
func eachKey(text []byte, found func(key string, row int) bool) {
	var p unstable.Parser
	p.Reset(text)
	table := ""
	for p.NextExpression() {
		e := p.Expression()
		name := dotted(e.Key())
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = name + "."
		case unstable.KeyValue:
			k := e.Key()
			k.Next()
			if !found(table+name, 1+bytes.Count(text[:k.Node().Raw.Offset], []byte("\n"))) {
				return
			}
		}
	}
}

func dotted(it unstable.Iterator) string {
	var parts []string
	for it.Next() {
		parts = append(parts, string(it.Node().Data))
	}
	return strings.Join(parts, ".")
}
