package stages

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// agree holds the section [run] to the one the run began with: its processes must agree on it, and a restart with another
// one would decide otherwise what was decided already. The first process writes it into the run's folder.
func (c *Config) agree() error {
	text, err := toml.Marshal(map[string]any{"run": c.Run})
	if err != nil {
		return fmt.Errorf("write down the run's settings: %w", err)
	}
	path := filepath.Join(c.RunDir(), "run.toml")
	if err := os.MkdirAll(c.RunDir(), 0o755); err != nil {
		return fmt.Errorf("make the run's folder: %w", err)
	}
	f, err := os.CreateTemp(c.RunDir(), ".run.toml")
	if err != nil {
		return fmt.Errorf("write down the run's settings: %w", err)
	}
	defer os.Remove(f.Name())
	if _, err := f.Write(text); err != nil {
		return errors.Join(fmt.Errorf("write down the run's settings: %w", err), f.Close())
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write down the run's settings: %w", err)
	}
	if err := os.Link(f.Name(), path); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("write down the run's settings: %w", err)
	}
	return c.asBegun()
}

// asBegun is agree for a run that has begun. It writes nothing.
func (c *Config) asBegun() error {
	text, err := toml.Marshal(map[string]any{"run": c.Run})
	if err != nil {
		return fmt.Errorf("look at the run's settings: %w", err)
	}
	path := filepath.Join(c.RunDir(), "run.toml")
	began, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the run's settings: %w", err)
	}
	was, is := strings.Split(string(began), "\n"), strings.Split(string(text), "\n")
	for i := range min(len(was), len(is)) {
		if was[i] != is[i] {
			return fmt.Errorf("run.%s, but the run %q began with %s (%s): [run] is fixed for a run; set it back, or choose another run.name", is[i], c.Run.Name, was[i], path)
		}
	}
	return nil
}
