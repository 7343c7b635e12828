package python

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// newSandbox finds Python and what this system lets a process be shut in with.
func newSandbox(cfg Config) (*sandbox, error) {
	s := &sandbox{limits: limits{
		time: time.Duration(cfg.TimeoutS * float64(time.Second)), memory: int64(cfg.MemoryMB) << 20, files: int64(cfg.FileMB) << 20,
		processes: cfg.Processes, output: cfg.OutputKB << 10,
	}, slots: make(chan struct{}, cfg.Parallel)}
	if err := s.find(cfg.Python); err != nil {
		return nil, err
	}
	why := errors.New("this system has none")
	if canIsolate {
		s.namespaces = true
		if why = s.probe(); why == nil {
			return s, nil
		}
		s.namespaces = false
	}
	if cfg.Isolation == "required" {
		return nil, fmt.Errorf("isolation = \"required\": code cannot be run in namespaces of its own: %w", why)
	}
	if err := s.probe(); err != nil {
		return nil, fmt.Errorf("code cannot be run in namespaces of its own (%w), nor without: %w", why, err)
	}
	slog.Warn("code that models write sees files and network: it cannot be run in namespaces of its own; limits hold, and it can start no process",
		"env", "python", "reason", why)
	return s, nil
}

// find asks Python where it really is.
func (s *sandbox) find(name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("python = %q: this environment runs code with Python 3, which is not there: %w", name, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), setupTime)
	defer cancel()
	const ask = "import json, sys; print(json.dumps([sys.version_info[0], sys.executable, sys.prefix, sys.base_prefix]))"
	said, err := exec.CommandContext(ctx, path, "-s", "-S", "-B", "-c", ask).Output()
	if err != nil {
		return fmt.Errorf("python = %q: ask it for its version: %w", name, err)
	}
	var version int
	var prefix, base string
	if err := json.Unmarshal(said, &[]any{&version, &s.python, &prefix, &base}); err != nil || s.python == "" {
		return fmt.Errorf("python = %q is no Python: it says %.100q", name, said)
	}
	if version != 3 {
		return fmt.Errorf("python = %q is version %d, want 3", name, version)
	}
	s.prefixes = slices.Compact(slices.Sorted(slices.Values([]string{prefix, base})))
	return nil
}

// probe runs a program that any sandbox runs.
func (s *sandbox) probe() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*setupTime)
	defer cancel()
	o, err := s.run(ctx, "def probe(n):\n    return n + 1\n", "probe", []json.RawMessage{json.RawMessage(`[41]`)})
	if err != nil {
		return err
	}
	if string(o.returned[0]) != "42" {
		return fmt.Errorf("a program that adds 1 says %s (%s) %s", o.returned[0], strings.Join(o.errors, " "), o.printed)
	}
	return nil
}
