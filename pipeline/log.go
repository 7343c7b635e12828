package pipeline

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/prl-project/prl/pipeline/logs"
	"github.com/prl-project/prl/pipeline/tracing"
)

// LogConfig says how a process logs: the section [log].
type LogConfig struct {
	// Format of a line: text, or json for programs.
	Format string `toml:"format"`
	// Level is the lowest that is logged: debug, info, warn or error; empty for info, and for warn with --stage all, whose
	// terminal shows the run.
	Level string `toml:"level"`
	// EnvLevels are levels of their own of lines about an environment, by its name. What an environment prints is of level
	// debug.
	EnvLevels map[string]string `toml:"env_levels"`
	// Files says whether the log is also in the run's folder, as logs/stage.<stage>.<instance>.log: auto (with --stage all),
	// always or never. There it begins with level info.
	Files string `toml:"files"`
	// EnvFiles puts lines about an environment into logs/<env>.log, too, where what a bridge's environment prints is in any case.
	EnvFiles bool `toml:"env_files"`
	// FileMB is the size of a log file in MiB, beside which one older file is kept, 1 to 1024.
	FileMB int `toml:"file_mb"`
}

// Values of LogConfig.Files.
const (
	LogFilesAuto   = "auto"
	LogFilesAlways = "always"
	LogFilesNever  = "never"
)

// DefaultLogConfig logs text.
func DefaultLogConfig() LogConfig {
	return LogConfig{Format: logs.Text, EnvLevels: map[string]string{}, Files: LogFilesAuto, FileMB: 16}
}

// Validate checks the section.
func (c LogConfig) Validate() error {
	if c.Format != logs.Text && c.Format != logs.JSON {
		return fmt.Errorf("log.format = %q: %s or %s", c.Format, logs.Text, logs.JSON)
	}
	if _, err := level(c.Level); c.Level != "" && err != nil {
		return fmt.Errorf("log.level = %w", err)
	}
	for _, env := range slices.Sorted(maps.Keys(c.EnvLevels)) {
		if _, err := level(c.EnvLevels[env]); err != nil {
			return fmt.Errorf("log.env_levels.%s = %w", env, err)
		}
	}
	if !slices.Contains([]string{LogFilesAuto, LogFilesAlways, LogFilesNever}, c.Files) {
		return fmt.Errorf("log.files = %q: %s, %s or %s", c.Files, LogFilesAuto, LogFilesAlways, LogFilesNever)
	}
	if c.FileMB < 1 || c.FileMB > 1024 {
		return fmt.Errorf("log.file_mb = %d: 1 to 1024", c.FileMB)
	}
	return nil
}

func level(text string) (l slog.Level, err error) {
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, text) {
		return l, fmt.Errorf("%q: debug, info, warn or error", text)
	}
	return l, l.UnmarshalText([]byte(text))
}

// NewLogger makes the log of a process that writes to w, from a level on unless the section says another. folder is that of its
// files and file the name of its own; without one it has none. It is the log of what has no other, too (slog.Default).
func NewLogger(w io.Writer, c LogConfig, usual slog.Level, folder, file string) *slog.Logger {
	o := logs.Options{Format: c.Format, Level: usual, EnvLevels: map[string]slog.Level{}, FileLevel: slog.LevelInfo}
	if l, err := level(c.Level); err == nil {
		o.Level = l
	}
	for env, text := range c.EnvLevels {
		if l, err := level(text); err == nil {
			o.EnvLevels[env] = l
		}
	}
	limit := int64(c.FileMB) << 20
	if file != "" {
		o.File = logs.Open(folder, file, limit) // it lasts as long as the process
	}
	if c.EnvFiles && folder != "" {
		o.EnvFile = envFiles(folder, limit)
	}
	log := logs.New(w, o)
	slog.SetDefault(log)
	return log
}

// maxEnvFiles bounds the files of lines about environments.
const maxEnvFiles = 256

// envFiles gives the log of an environment. A line may name one that nobody has configured.
func envFiles(folder string, limit int64) func(env string) io.Writer {
	var mu sync.Mutex
	files := map[string]*logs.File{}
	return func(env string) io.Writer {
		mu.Lock()
		defer mu.Unlock()
		f := files[env]
		if f == nil {
			if !ValidName(env) || len(files) >= maxEnvFiles {
				return nil
			}
			f = logs.Open(folder, env, limit)
			files[env] = f
		}
		return f
	}
}

// For is the Runtime of a stage: its lines say which one it is.
func (rt *Runtime) For(stage string) *Runtime {
	own := *rt
	own.Log = rt.Log.With(logs.Stage, stage)
	return &own
}

// LogOf are the keys of a line about a rollout.
func (rt *Runtime) LogOf(env, eval string, group int64, rollout int) []any {
	keys := []any{logs.Env, env, logs.Group, group, logs.Rollout, rollout}
	if eval != "" {
		keys = append(keys, logs.Eval, eval)
	}
	if c := rt.Tracing.Rollout(tracing.Rollout{Eval: eval, Group: group, Index: rollout}); c.Valid() {
		keys = append(keys, logs.TraceID, c.Trace.String())
	}
	return keys
}
