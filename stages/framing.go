package stages

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// agreeFraming refuses to go on without a schema registry where the run has used one: its records could not be read, and
// would be passed over or end in dlq. A run may change to a registry at any time: the older records say what they are.
func (c *Config) agreeFraming() error {
	path := filepath.Join(c.RunDir(), "schema_registry")
	if len(c.SchemaRegistry.URLs) > 0 {
		if err := os.WriteFile(path, []byte(strings.Join(c.SchemaRegistry.URLs, "\n")), 0o644); err != nil {
			return fmt.Errorf("write down that the run uses a schema registry: %w", err)
		}
		return nil
	}
	urls, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look whether the run uses a schema registry: %w", err)
	}
	return fmt.Errorf("schema_registry.urls is empty, but the run %q has written records with the schema ids of the registry at %s (%s): set it back, or choose another run.name", c.Run.Name, urls, path)
}
