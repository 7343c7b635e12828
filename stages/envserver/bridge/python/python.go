// Package python plays environments that are plain Python classes, without any framework: TRL's convention for
// environment_factory (TRL 1.16). The class runs in processes of its own.
//
// The guarantee: whatever the class does, it costs the episodes of its own process only, and each of them ends with an error
// that has a traceback. A process that ends, does not answer in time, prints without end, has no memory left or answers what
// is no answer is killed with its children, and another one takes its place. Every wait has a deadline, every queue a bound.
//
//	[envs.lockbox]
//	source = "python:lockbox:Lockbox"        # python:<module>:<class>
//	options.path = "envs"                    # the folder of lockbox.py
//
// # The convention
//
// An instance is made without arguments and used for one episode after the other. reset(**row) begins one: row has the fields
// of the task, of which reset gets those that it takes (all, if it has **row). The policy sees the field "prompt" (a text, or
// messages), and what reset returns is appended to its last user message; without a prompt, that is the message. Public methods
// are tools, named as they are: each has a docstring, which the model is shown, and types (str, int, float, bool, list, dict, tuple,
// Optional, Union, Literal, enums); they may be async. An exception in a tool is told to the model, as TRL does, and goes to the
// log: it counts as the policy's fault ("tool_errors"), and so does a call that does not fit the types, which never gets
// there. Any other exception (in reset, in get_reward), MemoryError and an exit are the class's own failure: the rollout is an
// error with the traceback, and is tried again. A reply without a call ends the episode. get_reward() returns the reward, or
// None where none applies; without it, the attribute reward is that.
//
// What is ours and not TRL's: an attribute done that is true after a call ends the episode at once, get_reward may return a dict
// of components, calls are held to the types, random is seeded per task, reset gets the seed if it takes an argument "seed",
// and the tasks may be the class's own: an attribute or method dataset, a list of rows, or {"train": [...], "eval": [...]}.
// Otherwise they come from a file with an object a line, or, if there is neither, are numbers {"seed": n} for a class that
// makes up its own. Unless the class deals them, a hash of the row decides what is held out. Images are not supported.
//
// # Processes
//
// Up to options.processes run, each with up to options.episodes at once whose calls take turns; another process is started when all
// have an episode. episodes = 1 gives every rollout a process of its own, which shares the fate of no other. What the class
// prints goes to the environment's log. The class is trusted with the user's files and network; settings of prl are not in its
// environment variables.
package python

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/prl-project/prl/stages/envserver/bridge/child"
	"github.com/prl-project/prl/stages/envserver/bridge/rows"
	"github.com/prl-project/prl/stages/envserver/env"
)

// Config holds the options.
type Config struct {
	Path        string             `toml:"path" json:"path"`                 // folder in which modules are looked for first; default "."
	Python      string             `toml:"python" json:"python"`             // interpreter, a path or a name on PATH; default "python3"
	File        string             `toml:"file" json:"file"`                 // JSONL with tasks; default none: the class's
	Tasks       int                `toml:"tasks" json:"tasks"`               // number of them where they are numbers, at least 2; default 1024
	EvalPercent int                `toml:"eval_percent" json:"eval_percent"` // share that is held out, 1 to 50; default 20
	Turns       int                `toml:"turns" json:"turns"`               // replies, 1 to 10000; default 32
	Processes   int                `toml:"processes" json:"processes"`       // at most; default 0: the number of processors
	Episodes    int                `toml:"episodes" json:"episodes"`         // at once in a process, 1 to 10000; default 64
	StartS      float64            `toml:"start_s" json:"start_s"`           // seconds for a process to start and import, 0.1 to 3600; default 120
	TimeoutS    float64            `toml:"timeout_s" json:"timeout_s"`       // seconds for one call of the class, 0.1 to 3600; default 20
	MemoryMB    int                `toml:"memory_mb" json:"memory_mb"`       // MiB of address space of a process, 0 for no limit; default 8192
	OutputMB    int                `toml:"output_mb" json:"output_mb"`       // MiB that one call may print, 1 to 1024; default 16
	ReplyKB     int                `toml:"reply_kb" json:"reply_kb"`         // KiB of an answer, 1 to 65536; default 256
	LogMB       int                `toml:"log_mb" json:"log_mb"`             // MiB of the log, of which one older is kept, 1 to 10240; default 16
	Weights     map[string]float64 `toml:"weights" json:"weights"`           // of reward components; default 1 each
}

// Defaults suit a class that needs little time and memory.
func Defaults() Config {
	return Config{
		Path: ".", Python: "python3", Tasks: 1024, EvalPercent: 20, Turns: 32, Episodes: 64, StartS: 120, TimeoutS: 20,
		MemoryMB: 8192, OutputMB: 16, ReplyKB: 256, LogMB: 16,
	}
}

// Validate returns every conflict, each with what to change.
func (c Config) Validate() error {
	var errs []error
	within := func(option string, v, from, to int) {
		if v < from || v > to {
			errs = append(errs, fmt.Errorf("%s = %d: want %d to %d", option, v, from, to))
		}
	}
	within("tasks", c.Tasks, 2, 1<<24)
	within("eval_percent", c.EvalPercent, 1, 50)
	within("turns", c.Turns, 1, 10000)
	within("processes", c.Processes, 0, 1000)
	within("episodes", c.Episodes, 1, 10000)
	within("memory_mb", c.MemoryMB, 0, 1<<24)
	within("output_mb", c.OutputMB, 1, 1024)
	within("reply_kb", c.ReplyKB, 1, 65536)
	within("log_mb", c.LogMB, 1, 10240)
	for _, o := range []struct {
		option string
		v      float64
	}{{"start_s", c.StartS}, {"timeout_s", c.TimeoutS}} {
		if !(o.v >= 0.1 && o.v <= 3600) {
			errs = append(errs, fmt.Errorf("%s = %v: want 0.1 to 3600", o.option, o.v))
		}
	}
	if c.Python == "" {
		errs = append(errs, errors.New(`python = "": want an interpreter, such as "python3"`))
	}
	for name, w := range c.Weights {
		if math.IsNaN(w) || math.IsInf(w, 0) {
			errs = append(errs, fmt.Errorf("weights.%s = %v: want a number", name, w))
		}
	}
	return errors.Join(errs...)
}

// Python is the environment. It implements [io.Closer].
type Python struct {
	cfg   Config
	info  env.Info
	tools []env.Tool
	tasks map[env.Split][]json.RawMessage
	pool  *pool
	log   *child.Record
	next  atomic.Int64 // number of the next episode
}

var class = regexp.MustCompile(`^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$`)

// New makes the environment of a name from a class, "module:Class", and starts a first process, which tells tools and tasks.
// What the class prints goes to the file <logs>/<name>.log, nowhere if logs is empty. An error if the configuration is
// not valid, the class does not follow the convention, or there are no tasks to train on.
func New(name, target, logs string, cfg Config) (*Python, error) {
	if !class.MatchString(target) {
		return nil, fmt.Errorf("python:%s: want python:<module>:<class>", target)
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Processes == 0 {
		cfg.Processes = runtime.GOMAXPROCS(0)
	}
	path, err := filepath.Abs(cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("path: %w", err)
	}
	printed := child.NewRecord(logs, name, int64(cfg.LogMB)<<20)
	p := &Python{cfg: cfg, log: printed}
	module, class, _ := strings.Cut(target, ":")
	r := runner{cfg: cfg, module: module, class: class, path: path, record: printed, quit: make(chan struct{})}
	first, said, err := r.start(cfg.File == "")
	if err != nil {
		return nil, errors.Join(err, printed.Close())
	}
	p.pool = newPool(first, r.quit, cfg.Processes, cfg.Episodes, func() (*process, error) {
		next, _, err := r.start(false)
		return next, err
	})
	p.tools = said.Tools
	disjoint := true
	if p.tasks, disjoint, err = cfg.deal(said.Rows); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	p.info = env.Info{
		Name: name, Version: said.Version, Train: len(p.tasks[env.Train]), Eval: len(p.tasks[env.Eval]), Disjoint: disjoint, MaxTurns: cfg.Turns,
	}
	return p, nil
}

// Info implements [env.Environment]. The version is the class's attribute version, or a hash of its module's source.
func (p *Python) Info() env.Info { return p.info }

// Task implements [env.Environment]: a row.
func (p *Python) Task(split env.Split, index int) (json.RawMessage, error) {
	if err := env.CheckIndex(p.info, split, index); err != nil {
		return nil, err
	}
	return p.tasks[split][index], nil
}

// Capacity implements [env.Limited].
func (p *Python) Capacity() int { return p.cfg.Processes * p.cfg.Episodes }

// Start implements [env.Environment]. It waits for a process that has room; an error is [env.ErrFull] if all are full.
func (p *Python) Start(ctx context.Context, task json.RawMessage, seed int64) (env.Episode, error) {
	shown, err := rows.Prompt(task)
	if err != nil {
		return nil, fmt.Errorf("task %.200s: %w", task, err)
	}
	in, err := p.pool.acquire(ctx)
	if err != nil {
		return nil, err
	}
	e := &episode{cfg: p.cfg, tools: p.tools, in: in, id: p.next.Add(1)}
	a, err := in.ask(ctx, request{Op: "reset", Episode: e.id, Row: task, Seed: seed})
	if err == nil {
		e.prompt, err = rows.Observed(shown, a.Observation)
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// Close ends all processes. No episode goes on after it.
func (p *Python) Close() error {
	p.pool.close()
	return p.log.Close()
}
