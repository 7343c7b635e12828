package stages

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/pelletier/go-toml/v2"

	"github.com/prl-project/prl/stages/envserver"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
)

// sharedEnvs are the environments of a fleet. Runs that have the same one, with the same source and options, share it, and with
// it its processes and its room.
type sharedEnvs struct {
	mu   sync.Mutex
	open map[string]*sharedEnv // by envKey
}

type sharedEnv struct {
	env.Environment
	users int
}

func newSharedEnvs() *sharedEnvs { return &sharedEnvs{open: map[string]*sharedEnv{}} }

// envKey is equal for environments that are the same.
func (c *Config) envKey(name string) (string, error) {
	section := c.Envs[name]
	text, err := toml.Marshal(map[string]any{"name": name, "source": section.Source, "options": section.Options})
	if err != nil {
		return "", fmt.Errorf("envs.%s.options: %w", name, err)
	}
	return string(text), nil
}

// get opens the environment of a run, or gives the one that another run has. What closes it comes with it.
func (s *sharedEnvs) get(cfg *Config, name string) (env.Environment, io.Closer, error) {
	key, err := cfg.envKey(name)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.open[key]
	if e == nil {
		opened, err := cfg.OpenEnv(name)
		if err != nil {
			return nil, nil, err
		}
		e = &sharedEnv{Environment: opened}
		s.open[key] = e
	}
	e.users++
	return e.Environment, closer(sync.OnceValue(func() error { return s.leave(key) })), nil
}

func (s *sharedEnvs) leave(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.open[key]
	if e.users--; e.users > 0 {
		return nil
	}
	delete(s.open, key)
	if c, ok := e.Environment.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// close closes what is left open.
func (s *sharedEnvs) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, e := range s.open {
		if c, ok := e.Environment.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	clear(s.open)
	return errors.Join(errs...)
}

type closer func() error

func (c closer) Close() error { return c() }

// openEnv makes an environment of this process; in a fleet it may be shared.
func (a *App) openEnv(name string) (e env.Environment, err error) {
	var c io.Closer
	if a.member != nil {
		e, c, err = a.member.fleet.envs.get(a.Config, name)
	} else if e, err = a.Config.OpenEnv(name); err == nil {
		c, _ = e.(io.Closer)
	}
	if c != nil {
		a.closers = append(a.closers, c)
	}
	return e, err
}

// newEnvServer makes the environment server: the process's, or in a fleet the run's.
func (a *App) newEnvServer(envs map[string]env.Environment, model *inference.Directory) (*envserver.Server, error) {
	if a.member == nil {
		return envserver.New(a.Runtime, a.Config.EnvServer, envs, model, a.teachers())
	}
	same := map[string]string{}
	for name := range envs {
		key, err := a.Config.envKey(name)
		if err != nil {
			return nil, err
		}
		same[name] = key
	}
	seat, err := a.member.fleet.slots.Seat(*a.member.share.Load(), same)
	if err != nil {
		return nil, err
	}
	return envserver.NewSeated(a.Runtime, a.Config.EnvServer, envs, model, a.teachers(), seat)
}
