package verifiers

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/prl-project/prl/stages/envserver/bridge/zmtp"
	"github.com/prl-project/prl/stages/envserver/env"
)

// Config holds the options.
type Config struct {
	Python      string         `toml:"python" json:"python"`             // interpreter that has verifiers, a path or a name on PATH; default "python3"
	Path        string         `toml:"path" json:"path"`                 // folder in which the environment's module is looked for first; default "."
	Args        map[string]any `toml:"args" json:"args"`                 // configuration of the environment, as verifiers has it
	EvalArgs    map[string]any `toml:"eval_args" json:"eval_args"`       // laid over args for the tasks that are held out; default none: a part is
	Wire        string         `toml:"wire" json:"wire"`                 // "0.4.0", "0.2.1" or "v0"; default "": found out
	Address     string         `toml:"address" json:"address"`           // of a server that runs already; default "": servers are started
	File        string         `toml:"file" json:"file"`                 // JSONL with tasks; default none: the environment's
	Tasks       int            `toml:"tasks" json:"tasks"`               // number of them where they have no end, at least 2; default 1024
	EvalPercent int            `toml:"eval_percent" json:"eval_percent"` // share that is held out where nobody says, 1 to 50; default 20
	Turns       int            `toml:"turns" json:"turns"`               // model calls of a rollout, 1 to 10000; default 100
	Pool        string         `toml:"pool" json:"pool"`                 // "elastic" starts at one server, "static" has all from the start; default "elastic"
	Workers     int            `toml:"workers" json:"workers"`           // servers, at most; default 0: the number of processors
	Multiplex   int            `toml:"multiplex" json:"multiplex"`       // rollouts that a server carries, 1 to 10000; default 128
	Rollouts    int            `toml:"rollouts" json:"rollouts"`         // after which a server is replaced, 0 for never; default 500
	IdleS       float64        `toml:"idle_s" json:"idle_s"`             // seconds after which an idle server goes, 0.1 to 86400; default 60
	StartS      float64        `toml:"start_s" json:"start_s"`           // seconds for a server to start and load its tasks, 0.1 to 3600; default 300
	HealthS     float64        `toml:"health_s" json:"health_s"`         // seconds for a server to answer a health check, 0.1 to 3600; default 60
	TimeoutS    float64        `toml:"timeout_s" json:"timeout_s"`       // seconds for a rollout, 0.1 to 86400; default 3600
	ReplyMB     int            `toml:"reply_mb" json:"reply_mb"`         // MiB that a server may say of a rollout, 1 to 1024; default 64
	LogMB       int            `toml:"log_mb" json:"log_mb"`             // MiB of the log, of which one older is kept, 1 to 10240; default 16
	Tokenizer   string         `toml:"tokenizer" json:"tokenizer"`       // folder of one that servers turn messages into tokens with; default none: they send messages
	Renderer    string         `toml:"renderer" json:"renderer"`         // how they do, by its name in the package renderers; default "": found by the tokenizer's name
}

// Defaults suit an environment whose rollouts take minutes.
func Defaults() Config {
	return Config{
		Python: "python3", Path: ".", Tasks: 1024, EvalPercent: 20, Turns: 100, Pool: "elastic", Multiplex: 128,
		Rollouts: 500, IdleS: 60, StartS: 300, HealthS: 60, TimeoutS: 3600, ReplyMB: 64, LogMB: 16,
	}
}

// fill is how many rollouts a server gets. One that was started by others stays.
func (c Config) fill() int {
	if c.Address != "" {
		return 0
	}
	return c.Rollouts
}

// Validate returns every conflict, each with what to change.
func (c Config) Validate() error {
	var errs []error
	for _, o := range []struct {
		option      string
		v, from, to int
	}{
		{"tasks", c.Tasks, 2, 1 << 20}, {"turns", c.Turns, 1, 10000}, {"workers", c.Workers, 0, 1000}, {"multiplex", c.Multiplex, 1, 10000},
		{"rollouts", c.Rollouts, 0, 1 << 30},
		{"reply_mb", c.ReplyMB, 1, 1024}, {"log_mb", c.LogMB, 1, 10240},
	} {
		if o.v < o.from || o.v > o.to {
			errs = append(errs, fmt.Errorf("%s = %d: want %d to %d", o.option, o.v, o.from, o.to))
		}
	}
	for _, o := range []struct {
		option string
		v, to  float64
	}{{"idle_s", c.IdleS, 86400}, {"start_s", c.StartS, 3600}, {"health_s", c.HealthS, 3600}, {"timeout_s", c.TimeoutS, 86400}} {
		if !(o.v >= 0.1 && o.v <= o.to) {
			errs = append(errs, fmt.Errorf("%s = %v: want 0.1 to %v", o.option, o.v, o.to))
		}
	}
	if !slices.Contains([]string{"elastic", "static"}, c.Pool) {
		errs = append(errs, fmt.Errorf("pool = %q: want elastic or static", c.Pool))
	}
	if c.Wire != "" && findWire(c.Wire) == nil {
		errs = append(errs, fmt.Errorf("wire = %q: want 0.4.0, 0.2.1 or v0, or leave it out", c.Wire))
	}
	if c.Python == "" {
		errs = append(errs, errors.New(`python = "": want an interpreter, such as "python3"`))
	}
	if c.Address != "" {
		if _, _, err := zmtp.Split(c.Address); err != nil {
			errs = append(errs, err)
		}
		if c.Workers > 1 {
			errs = append(errs, fmt.Errorf("workers = %d: a server at an address has workers of its own: leave workers out", c.Workers))
		}
	}
	if c.Renderer != "" && c.Tokenizer == "" {
		errs = append(errs, errors.New("renderer needs a tokenizer: set that too, or leave both out"))
	}
	if c.File != "" && len(c.EvalArgs) > 0 {
		errs = append(errs, errors.New("file and eval_args both say what the tasks are: leave one out"))
	}
	return errors.Join(append(errs, env.CheckPercent(c.EvalPercent))...)
}

// complete sets what depends on the machine.
func (c Config) complete() Config {
	switch {
	case c.Address != "":
		c.Workers, c.Pool = 1, "static"
	case c.Workers == 0:
		c.Workers = runtime.GOMAXPROCS(0)
	}
	if c.Args == nil {
		c.Args = map[string]any{}
	}
	if c.EvalArgs == nil {
		c.EvalArgs = map[string]any{}
	}
	return c
}

// least is how many servers there are when there is nothing to do.
func (c Config) least() int {
	if c.Pool == "static" {
		return c.Workers
	}
	return 1
}
