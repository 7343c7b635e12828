// Package envs is the table of the built-in environments: one line each.
package envs

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/envs/alphabetsort"
	"github.com/prl-project/prl/stages/envserver/envs/catch"
	"github.com/prl-project/prl/stages/envserver/envs/colorcodeword"
	"github.com/prl-project/prl/stages/envserver/envs/echo"
	"github.com/prl-project/prl/stages/envserver/envs/gsm"
	"github.com/prl-project/prl/stages/envserver/envs/judge"
	"github.com/prl-project/prl/stages/envserver/envs/python"
	"github.com/prl-project/prl/stages/envserver/envs/reversetext"
	"github.com/prl-project/prl/stages/envserver/envs/sudoku"
	"github.com/prl-project/prl/stages/envserver/envs/tooluse"
	"github.com/prl-project/prl/stages/envserver/envs/twoplayer"
	"github.com/prl-project/prl/stages/envserver/envs/wordle"
)

// Registry maps the name of an environment to its constructor.
var Registry = map[string]New{
	"alphabet-sort":  with(alphabetsort.Defaults, alphabetsort.New),
	"catch":          with(catch.Defaults, catch.New),
	"color-codeword": with(colorcodeword.Defaults, colorcodeword.New),
	"echo":           with(echo.Defaults, echo.New),
	"gsm":            with(gsm.Defaults, gsm.New),
	"judge":          with(judge.Defaults, judge.New),
	"python":         with(python.Defaults, python.New),
	"reverse-text":   with(reversetext.Defaults, reversetext.New),
	"sudoku":         with(sudoku.Defaults, sudoku.New),
	"tool-use":       with(tooluse.Defaults, tooluse.New),
	"two-player":     with(twoplayer.Defaults, twoplayer.New),
	"wordle":         with(wordle.Defaults, wordle.New),
}

// New makes an environment with options. decode fills the environment's Config, which has its defaults already (a pointer to a
// struct with toml and json tags), and returns an error that names any option the struct does not have. nil leaves the defaults.
type New func(decode func(config any) error) (env.Environment, error)

// Open makes the environment of a name; see [New].
func Open(name string, decode func(config any) error) (env.Environment, error) {
	open, ok := Registry[name]
	if !ok {
		return nil, fmt.Errorf("no environment %q; there are: %s", name, strings.Join(Names(), ", "))
	}
	e, err := open(decode)
	if err != nil {
		return nil, fmt.Errorf("environment %s: %w", name, err)
	}
	return e, nil
}

// Names lists the registered environments in order.
func Names() []string { return slices.Sorted(maps.Keys(Registry)) }

// with makes a constructor of an environment's defaults and of what builds it from a configuration.
func with[C any, E env.Environment](defaults func() C, build func(C) (E, error)) New {
	return func(decode func(any) error) (env.Environment, error) {
		config := defaults()
		if decode != nil {
			if err := decode(&config); err != nil {
				return nil, err
			}
		}
		e, err := build(config)
		if err != nil {
			return nil, err
		}
		return e, nil
	}
}
