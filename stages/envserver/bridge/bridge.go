// Package bridge opens environments that are not in this binary, by their source: what comes before the first colon says how
// they are spoken to, the rest which one is meant. "python:module:Class" is a plain Python class, see package
// python there; "openenv:http://host:8000" is what an OpenEnv server has, see package openenv; "verifiers:gsm8k" is an environment
// of the Python package verifiers, see package verifiers.
package bridge

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/prl-project/prl/stages/envserver/bridge/openenv"
	"github.com/prl-project/prl/stages/envserver/bridge/python"
	"github.com/prl-project/prl/stages/envserver/bridge/verifiers"
	"github.com/prl-project/prl/stages/envserver/env"
)

// A scheme opens the environments of one kind of source.
type scheme struct {
	like string // a source of it
	// open makes the environment of a target, which is the source without the scheme.
	open func(name, target, logs string, decode func(config any) error) (env.Environment, error)
	// words are what of a target says best what the environment is.
	words func(target string) string
}

var schemes = map[string]scheme{
	"openenv":   {like: "openenv:http://host:8000", open: made(openenv.Defaults, openenv.New), words: place},
	"python":    {like: "python:module:Class", open: made(python.Defaults, python.New), words: afterColon},
	"verifiers": {like: "verifiers:gsm8k", open: made(verifiers.Defaults, verifiers.New), words: plain},
}

// made opens environments by a constructor, with options over their defaults.
func made[C any, E env.Environment](defaults func() C, construct func(name, target, logs string, config C) (E, error)) func(
	name, target, logs string, decode func(any) error) (env.Environment, error) {
	return func(name, target, logs string, decode func(any) error) (env.Environment, error) {
		config := defaults()
		if err := decode(&config); err != nil {
			return nil, err
		}
		e, err := construct(name, target, logs, config)
		if err != nil {
			return nil, err
		}
		return e, nil
	}
}

// place says where a URL leads; an address alone would be no name.
func place(target string) string { return "openenv" + target[strings.LastIndex(target, "//")+1:] }

// plain is an id of a hub, "owner/name@version", without owner and version.
func plain(id string) string {
	id, _, _ = strings.Cut(id[strings.LastIndex(id, "/")+1:], "@")
	return id
}

func afterColon(target string) string { return target[strings.LastIndex(target, ":")+1:] }

// Open makes the environment of a source, which calls itself name. decode fills its options and refuses those it does not have;
// what it prints goes into the folder logs. It is an io.Closer.
func Open(name, source, logs string, decode func(config any) error) (env.Environment, error) {
	s, target, err := find(source)
	if err != nil {
		return nil, err
	}
	e, err := s.open(name, target, logs, decode)
	if err != nil {
		return nil, fmt.Errorf("environment %s (%s): %w", name, source, err)
	}
	return e, nil
}

// Is reports whether a text is a source rather than a name: names have no colons.
func Is(text string) bool { return strings.Contains(text, ":") }

// Check returns an error if a source is of no known kind.
func Check(source string) error {
	_, _, err := find(source)
	return err
}

func find(source string) (scheme, string, error) {
	kind, target, _ := strings.Cut(source, ":")
	s, ok := schemes[kind]
	if !ok || target == "" {
		var like []string
		for _, kind := range slices.Sorted(maps.Keys(schemes)) {
			like = append(like, schemes[kind].like)
		}
		return s, "", fmt.Errorf("no environment source %q: want %s", source, strings.Join(like, " or "))
	}
	return s, target, nil
}

var (
	joint = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	other = regexp.MustCompile(`[^a-z0-9]+`)
)

// Name is what an environment is called whose source alone is known: "word-game" for python:games:WordGame.
func Name(source string) (string, error) {
	s, target, err := find(source)
	if err != nil {
		return "", err
	}
	name := strings.Trim(other.ReplaceAllString(strings.ToLower(joint.ReplaceAllString(s.words(target), "$1-$2")), "-"), "-")
	if name == "" {
		return "", fmt.Errorf("%s: no name can be made of it: give it one with a section [envs.<name>] and source = %q", source, source)
	}
	return name, nil
}
