// Package python is the environment "python": write a function that passes hidden tests. The code runs in a process of its own that
// is shut in, held to limits, and ended with everything it has started.
//
// It exercises code as an answer, several attempts with what went wrong in between, and untrusted work. A task is a prompt, the name
// of a function and tests: calls and what they should return. file = "tasks.jsonl" reads them from there, an object a line:
//
//	{"prompt": "...", "function": "add", "tests": [{"args": [1, 2], "want": 3}], "solution": "..."}
//
// (solution is optional and for demonstrations only). Without a file there are 40 small problems; they are for a first run, not
// for a benchmark. A reply is code, for which there is the standard library: its last block in ``` or, without one, all of it. All
// tests run in one process; what they should return never gets there, so code cannot pass by anything but the right values. Values
// are compared as JSON: whole numbers exactly, others to nine digits, tuples are lists. After an attempt that fails the policy
// hears how many tests passed and what the first other one returned or raised, until its attempts are used up.
//
// # How code is shut in
//
// Always: a limit on time, on memory and on a file's size; no core file; output that is too long is thrown away; results that are
// too long end it; a process group that is killed at the end; no environment variables of the server. On Linux, where the system lets
// this user have namespaces (found out at the start): no network, not even to this machine; no files but Python's and the system's
// libraries, read-only, and an empty /tmp in memory, bounded in all; no sight of other processes; a limit on processes; all of them,
// whatever they did to hide, end with the first one; no capabilities, and as the user nobody if the server is root. Without namespaces
// the code can start no process and no thread, but sees the user's files and network; that is said in the log, and isolation =
// "required" refuses it; a server that is root runs it as nobody. No such wall is perfect: it is the kernel's. A process takes some 35 ms
// and what memory_mb and processes allow; parallel of them run at once and others wait, for which envserver.env_timeout must leave
// room.
//
// Reward components, each from 0 to 1, with weights from the configuration: "solved" (all tests pass) and "tests" (the share that
// does), of the last attempt. Metrics: "attempts", "timeouts" (attempts that the time limit stopped), "ran" (1 if the last one was run:
// a reply that does not name the function is not). Code that could not be shut in has not run, and is an error of the infrastructure.
//
// Held out: a hash of the prompt decides which split a task is in. Compact prompt: the task's prompt. Full prompt: an instruction as
// system message before it. The seed plays no part; code that asks for the time or for random numbers may of course go another way
// each time. Recorded rollouts are not scored anew, since that would run code.
//
// On the built-in tasks: reference player (knows solutions) 1.2; random player (returns one of some constants) 0.02; the first
// argument returned as it is 0.01; the best constant 0.04.
package python

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Config holds the options of python.
type Config struct {
	File     string `toml:"file" json:"file"`         // JSONL with tasks; default none: the built-in ones
	Python   string `toml:"python" json:"python"`     // interpreter, a path or a name on PATH; default "python3"
	Attempts int    `toml:"attempts" json:"attempts"` // replies, 1 to 20; default 3
	// Isolation is "auto" (default) or "required": an error at the start where there are no namespaces.
	Isolation   string  `toml:"isolation" json:"isolation"`
	TimeoutS    float64 `toml:"timeout_s" json:"timeout_s"`       // seconds for all tests of an attempt, 0.1 to 600; default 5
	MemoryMB    int     `toml:"memory_mb" json:"memory_mb"`       // MiB of each process, at least 64; default 256
	FileMB      int     `toml:"file_mb" json:"file_mb"`           // MiB of a file, with namespaces of all together, 1 to 4096; default 16
	Processes   int     `toml:"processes" json:"processes"`       // at once, threads included, 1 to 1000; default 16
	OutputKB    int     `toml:"output_kb" json:"output_kb"`       // KiB that are kept of what is printed, 0 to 1024; default 16
	Parallel    int     `toml:"parallel" json:"parallel"`         // attempts that run at once; default 0: the number of processors
	EvalPercent int     `toml:"eval_percent" json:"eval_percent"` // share of the tasks that is held out, 1 to 50; default 20
	Prompt      string  `toml:"prompt" json:"prompt"`             // "compact" or "full" (default)
	Weights     Weights `toml:"weights" json:"weights"`
}

// Weights are what the reward components count; at least 0.
type Weights struct {
	Solved float64 `toml:"solved" json:"solved"` // for passing all tests; default 1
	Tests  float64 `toml:"tests" json:"tests"`   // for the share of the tests that pass; default 0.2
}

// Defaults is the configuration of the built-in tasks with three attempts.
func Defaults() Config {
	return Config{
		Python: "python3", Attempts: 3, Isolation: "auto", TimeoutS: 5, MemoryMB: 256, FileMB: 16, Processes: 16, OutputKB: 16,
		EvalPercent: 20, Prompt: "full", Weights: Weights{Solved: 1, Tests: 0.2},
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
	within("attempts", c.Attempts, 1, 20)
	within("memory_mb", c.MemoryMB, 64, 1<<20)
	within("file_mb", c.FileMB, 1, 4096)
	within("processes", c.Processes, 1, 1000)
	within("output_kb", c.OutputKB, 0, 1024)
	within("parallel", c.Parallel, 0, 1000)
	within("eval_percent", c.EvalPercent, 1, 50)
	if c.Python == "" {
		errs = append(errs, errors.New(`python = "": want an interpreter, such as "python3"`))
	}
	if c.Isolation != "auto" && c.Isolation != "required" {
		errs = append(errs, fmt.Errorf("isolation = %q: want auto or required", c.Isolation))
	}
	if !(c.TimeoutS >= 0.1 && c.TimeoutS <= 600) {
		errs = append(errs, fmt.Errorf("timeout_s = %v: want 0.1 to 600", c.TimeoutS))
	}
	errs = append(errs, env.CheckPrompt(c.Prompt))
	for _, w := range []float64{c.Weights.Solved, c.Weights.Tests} {
		if !(w >= 0 && w <= math.MaxFloat32) {
			errs = append(errs, fmt.Errorf("weights: %v: want a number of at least 0", w))
		}
	}
	return errors.Join(errs...)
}

// Python is the environment.
type Python struct {
	cfg     Config
	sandbox *sandbox
	tasks   map[env.Split][]task
}

// New makes the environment of a configuration and tries whether code can be run: an error if the configuration is not valid, the
// file cannot be read, a split is empty, there is no Python 3, or code cannot be shut in as it must be.
func New(cfg Config) (*Python, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Parallel == 0 {
		cfg.Parallel = runtime.GOMAXPROCS(0)
	}
	all, err := cfg.load()
	if err != nil {
		return nil, err
	}
	p := &Python{cfg: cfg, tasks: env.Deal(all, cfg.EvalPercent, func(t task) string { return t.Prompt })}
	if len(p.tasks[env.Train]) == 0 || len(p.tasks[env.Eval]) == 0 {
		return nil, fmt.Errorf("%d training and %d eval tasks: give more of them, or change eval_percent = %d",
			len(p.tasks[env.Train]), len(p.tasks[env.Eval]), cfg.EvalPercent)
	}
	p.sandbox, err = newSandbox(cfg)
	return p, err
}

// Info implements [env.Environment].
func (p *Python) Info() env.Info {
	return env.Info{
		Name: "python", Version: "1", Train: len(p.tasks[env.Train]), Eval: len(p.tasks[env.Eval]), Disjoint: true, MaxTurns: p.cfg.Attempts,
	}
}

// Task implements [env.Environment]: {"prompt": "...", "function": "...", "tests": [...]}.
func (p *Python) Task(split env.Split, index int) (json.RawMessage, error) {
	if err := env.CheckIndex(p.Info(), split, index); err != nil {
		return nil, err
	}
	return json.Marshal(p.tasks[split][index])
}

// Start implements [env.Environment].
func (p *Python) Start(_ context.Context, data json.RawMessage, _ int64) (env.Episode, error) {
	t, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("task %.200s: %w", data, err)
	}
	return &episode{cfg: p.cfg, sandbox: p.sandbox, task: t}, nil
}

// Demonstrate implements [env.Demonstrator]; an error for a task without a solution.
func (p *Python) Demonstrate(data json.RawMessage, _ int64) (string, error) {
	t, err := parse(data)
	if err != nil {
		return "", fmt.Errorf("task %.200s: %w", data, err)
	}
	if t.Solution == "" {
		return "", fmt.Errorf("task %.200s has no solution to show", data)
	}
	return "```python\n" + t.Solution + "```", nil
}
