package pipeline

import (
	"bytes"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNewLogger writes lines where the section says, each with its level, and opens no file for what is no environment.
func TestNewLogger(t *testing.T) {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	dir := t.TempDir()
	var terminal bytes.Buffer
	c := DefaultLogConfig()
	c.EnvLevels, c.EnvFiles = map[string]string{"wordle": "debug"}, true
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	log := NewLogger(&terminal, c, slog.LevelWarn, filepath.Join(dir, "logs"), "stage.all")
	log.Info("for the file")
	log.Debug("of wordle", "env", "wordle")
	slog.Info("of what has no log of its own", "env", "../escape")
	for i := range 2 * maxEnvFiles {
		log.Info("of many", "env", fmt.Sprintf("env-%d", i))
	}
	if s := terminal.String(); strings.Contains(s, "for the file") || !strings.Contains(s, "of wordle") {
		t.Errorf("on the terminal:\n%s", s)
	}
	for name, want := range map[string]string{"stage.all.log": "for the file", "wordle.log": "of wordle"} {
		text, err := os.ReadFile(filepath.Join(dir, "logs", name))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %s, %v", name, text, err)
		}
	}
	files := 0
	if err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files++
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if files != maxEnvFiles+1 {
		t.Errorf("%d files of %d environments", files, 2*maxEnvFiles)
	}
}

func TestLogAndTracingConfig(t *testing.T) {
	good := DefaultTracingConfig()
	good.Endpoint = "https://collector.example:4318"
	for name, c := range map[string]struct {
		config interface{ Validate() error }
		want   string // in the error; empty for none
	}{
		"defaults":       {DefaultLogConfig(), ""},
		"tracing":        {good, ""},
		"off":            {DefaultTracingConfig(), ""},
		"format":         {with(DefaultLogConfig(), func(c *LogConfig) { c.Format = "xml" }), "log.format"},
		"level":          {with(DefaultLogConfig(), func(c *LogConfig) { c.Level = "loud" }), "log.level"},
		"level of env":   {with(DefaultLogConfig(), func(c *LogConfig) { c.EnvLevels = map[string]string{"a": "loud"} }), "log.env_levels.a"},
		"files":          {with(DefaultLogConfig(), func(c *LogConfig) { c.Files = "yes" }), "log.files"},
		"size":           {with(DefaultLogConfig(), func(c *LogConfig) { c.FileMB = 0 }), "log.file_mb"},
		"no URL":         {with(good, func(c *TracingConfig) { c.Endpoint = "collector:4318" }), "tracing.endpoint"},
		"password":       {with(good, func(c *TracingConfig) { c.Endpoint = "http://u:hunter2@c:4318" }), "tracing.endpoint"},
		"ratio":          {with(good, func(c *TracingConfig) { c.SampleRatio = 1.5 }), "tracing.sample_ratio"},
		"timeout":        {with(good, func(c *TracingConfig) { c.Timeout = 0 }), "tracing.timeout"},
		"header alone":   {with(good, func(c *TracingConfig) { c.HeaderName = "Authorization" }), "tracing.header_file"},
		"two of headers": {with(good, func(c *TracingConfig) { c.HeaderName, c.HeaderFile, c.HeaderEnv = "A", "f", "E" }), "exactly one"},
		"nameless":       {with(good, func(c *TracingConfig) { c.HeaderFile = "f" }), "tracing.header_name"},
	} {
		err := c.config.Validate()
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func with[C any](c C, change func(*C)) C {
	change(&c)
	return c
}
