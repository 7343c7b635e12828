package main

import (
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
)

// logFlags say how this process logs and lets itself be looked into.
type logFlags struct {
	LogLevel  string `help:"debug, info, warn or error (log.level)." enum:"debug,info,warn,error,default" default:"default" placeholder:"LEVEL" for:"*"`
	LogFormat string `help:"text, or json for programs (log.format)." enum:"text,json,default" default:"default" placeholder:"FORMAT" for:"*"`
	Pprof     bool   `help:"Profiles under /debug/pprof/ of the telemetry address, for this machine alone (telemetry_pprof)." for:"*"`
}

// sets are the settings that the flags stand for.
func (f logFlags) sets() (sets []string) {
	if f.LogLevel != "default" && f.LogLevel != "" {
		sets = append(sets, fmt.Sprintf("log.level=%q", f.LogLevel))
	}
	if f.LogFormat != "default" && f.LogFormat != "" {
		sets = append(sets, fmt.Sprintf("log.format=%q", f.LogFormat))
	}
	if f.Pprof {
		sets = append(sets, fmt.Sprintf("telemetry_pprof=%q", pipeline.PprofLocal))
	}
	return sets
}

// logger makes the log of this process, from a level on unless the settings say another.
func logger(cfg *stages.Config, usual slog.Level) *slog.Logger {
	return pipeline.NewLogger(stderr(), cfg.Log, usual, logDir(cfg), "")
}

// stageLogger is logger for a process that runs a stage; where that is wanted it has a file in the run's folder, too.
func stageLogger(cfg *stages.Config, usual slog.Level, stage, instance string) *slog.Logger {
	file := "stage." + stage + "." + instance
	if stage == allName {
		file = "stage." + stage
	}
	if c := cfg.Log.Files; c == pipeline.LogFilesNever || c == pipeline.LogFilesAuto && stage != allName {
		file = ""
	}
	return pipeline.NewLogger(stderr(), cfg.Log, usual, logDir(cfg), file)
}

// logDir holds the log files of a run.
func logDir(cfg *stages.Config) string { return filepath.Join(cfg.RunDir(), "logs") }
