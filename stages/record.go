package stages

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pelletier/go-toml/v2"
)

// recordedName is the file in a run's folder that holds the settings of its last start, without secrets.
const recordedName = "config.toml"

// RecordedConfig is the file with the settings that the run in dir was last started with; empty where there is none.
func RecordedConfig(dir, run string) string {
	path := filepath.Join(dir, run, recordedName)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// text is the settings as TOML, without secrets.
func (c *Config) text() ([]byte, error) {
	own := *c
	if dir, err := filepath.Abs(c.RunDir()); err == nil && own.Sink.Dir == filepath.Join(dir, "parquet") {
		own.Sink.Dir = "" // it moves with the run's folder
	}
	text, err := toml.Marshal(own)
	if err != nil {
		return nil, fmt.Errorf("write down the settings: %w", err)
	}
	return text, nil
}

// record writes the settings down for whoever looks at the run later.
func (c *Config) record() (err error) {
	text, err := c.text()
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(c.RunDir(), "."+recordedName)
	if err != nil {
		return fmt.Errorf("write down the settings: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write down the settings: %w", err), os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(c.RunDir(), recordedName))
}
