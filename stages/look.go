package stages

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"

	"github.com/pelletier/go-toml/v2"

	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/envserver/env"
)

// Begun says whether the run has begun in its folder. An error says that it did so with other settings. It writes nothing.
func (c *Config) Begun() (bool, error) {
	err := c.asBegun()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil && len(c.SchemaRegistry.URLs) == 0 {
		err = c.agreeFraming()
	}
	return true, err
}

// Environments are those a process has to do with that serves some, or all that are configured.
func (c *Config) Environments(serves []string) []string {
	if len(serves) > 0 {
		return serves
	}
	return slices.Sorted(maps.Keys(c.Envs))
}

// A ProbedEnv is what ProbeEnv finds.
type ProbedEnv struct {
	Version     string
	Train, Eval int
	TaskBytes   int
}

// An EnvProbe is the environment that ProbeEnv opens.
type EnvProbe struct {
	Name    string
	Dir     string // for what it writes while it starts
	Section emitter.EnvConfig
}

// ProbeEnv reads an EnvProbe as TOML, opens the environment, makes its first task and writes a ProbedEnv as JSON. It is what the child of a
// dry run does: an environment that crashes or hangs takes only the child with it.
func ProbeEnv(in io.Reader, out io.Writer) (err error) {
	var p EnvProbe
	if err := toml.NewDecoder(in).Decode(&p); err != nil {
		return fmt.Errorf("probe an environment: %w", err)
	}
	cfg := DefaultConfig()
	cfg.Dir, cfg.Envs[p.Name] = p.Dir, p.Section
	e, err := cfg.OpenEnv(p.Name)
	if err != nil {
		return err
	}
	if c, ok := e.(io.Closer); ok {
		defer func() { err = errors.Join(err, c.Close()) }()
	}
	info := e.Info()
	split := env.Train
	if info.Train == 0 {
		split = env.Eval
	}
	task, err := e.Task(split, 0)
	if err != nil {
		return fmt.Errorf("environment %s: make its first task: %w", p.Name, err)
	}
	return json.NewEncoder(out).Encode(ProbedEnv{info.Version, info.Train, info.Eval, len(task)})
}

// OfRun are the settings with which a process of a fleet serves one of its runs.
func (c *Config) OfRun(name string) (*Config, error) { return c.ofRun(name) }
