package stages

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/envserver/bridge"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/envs"
)

// OpenEnv makes the environment of a name with the options of its section, if there is one: a built-in one, or the one of its
// source. What is an io.Closer is to be closed.
func (c *Config) OpenEnv(name string) (env.Environment, error) {
	section := c.Envs[name]
	options := strict("envs."+name+".options", section.Options)
	if section.Source != "" {
		return bridge.Open(name, section.Source, filepath.Join(c.RunDir(), "logs"), options)
	}
	return envs.Open(name, options)
}

// NameEnvs gives the names of environments of which some are given by their source, as --env may. Such a one is that of the section
// [envs.<name>] which has this source; without one it gets a section of defaults, under a name made of the source.
func (c *Config) NameEnvs(given []string) ([]string, error) {
	var names []string
	for _, text := range given {
		if !bridge.Is(text) {
			names = append(names, text)
			continue
		}
		name, err := c.nameEnv(text)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

func (c *Config) nameEnv(source string) (string, error) {
	for _, name := range slices.Sorted(maps.Keys(c.Envs)) {
		if c.Envs[name].Source == source {
			return name, nil
		}
	}
	name, err := bridge.Name(source)
	if err != nil {
		return "", err
	}
	_, taken := c.Envs[name]
	if _, builtin := envs.Registry[name]; taken || builtin {
		return "", fmt.Errorf("--env %s: there is another environment %s; give this one a section [envs.<name>] with source = %q", source, name, source)
	}
	section := emitter.DefaultEnvConfig()
	section.Source = source
	c.Envs[name] = section
	return name, nil
}
