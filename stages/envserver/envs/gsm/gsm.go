// Package gsm is the environment "gsm": arithmetic word problems, answered with one number that must be exactly right.
//
// It exercises reasoning before a short checkable answer, on problems of one's own: file = "problems.jsonl" reads them from there, an
// object a line with a question and an answer (GSM8K's files work as they are); every line that is not one is an error with its number.
// Without a file the problems are made here: somebody has some things, and in steps finds, gives away, multiplies and divides
// them; all numbers are whole and at most largest. Those are for a first run, not for a benchmark.
//
// Numbers are compared exactly, as rationals: with signs, commas between groups of three digits, decimals, fractions ("3/4",
// "2 1/2", "\frac{3}{4}"). Currency signs, percent signs and units around a number do not change it, so "$50", "50%" and "50 m" are 50;
// "0.5" and "1/2" are equal, "0.333" and "1/3" are not. The answer of a reply is the number behind its last "####", else in its last
// \boxed{}, else the last number; with strict = true only the first of these. In the file it stands behind "####", or is the
// field's only number.
//
// Reward "right" is 1 or 0. Metrics: "answered" (a number was found), "marked" (it stood behind ####).
//
// Held out: a hash of the question decides which split it is in, so the splits are disjoint, and a question stays in its split
// when others come or go.
//
// Compact prompt: the question alone. Full prompt: an instruction as system message before it. One turn. The seed plays no part.
// The demonstration is the answer.
//
// On the problems made here: reference player (does what the sentences say) 1; random player (a random number up to the largest)
// 0.03; the best answer to all of them 0.08.
package gsm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Config holds the options of gsm.
type Config struct {
	File     string `toml:"file" json:"file"`         // JSONL with problems; default none: they are made
	Question string `toml:"question" json:"question"` // field of the file; default "question"
	Answer   string `toml:"answer" json:"answer"`     // field of the file, text or a number; default "answer"
	// Steps, Largest, TrainTasks and EvalTasks are for problems that are made.
	Steps       int    `toml:"steps" json:"steps"`               // 1 to 10; default 2
	Largest     int    `toml:"largest" json:"largest"`           // number, 10 to 1,000,000; default 30
	TrainTasks  int    `toml:"train_tasks" json:"train_tasks"`   // at least 1; default 4096
	EvalTasks   int    `toml:"eval_tasks" json:"eval_tasks"`     // at least 1; default 512
	EvalPercent int    `toml:"eval_percent" json:"eval_percent"` // share of the questions that is held out, 1 to 50; default 20
	Strict      bool   `toml:"strict" json:"strict"`             // only "#### 42" is an answer; default false
	Prompt      string `toml:"prompt" json:"prompt"`             // "compact" or "full" (default)
}

// Defaults is the configuration of problems of two steps that are made here.
func Defaults() Config {
	return Config{
		Question: "question", Answer: "answer", Steps: 2, Largest: 30, TrainTasks: 4096, EvalTasks: 512, EvalPercent: 20, Prompt: "full",
	}
}

// Validate returns every conflict, each with what to change.
func (c Config) Validate() error {
	var errs []error
	if c.Question == "" || c.Answer == "" || c.Question == c.Answer {
		errs = append(errs, fmt.Errorf("question = %q, answer = %q: want the names of two fields", c.Question, c.Answer))
	}
	if c.Steps < 1 || c.Steps > 10 {
		errs = append(errs, fmt.Errorf("steps = %d: want 1 to 10", c.Steps))
	}
	if c.Largest < 10 || c.Largest > 1_000_000 {
		errs = append(errs, fmt.Errorf("largest = %d: want 10 to 1000000", c.Largest))
	}
	if c.TrainTasks < 1 || c.EvalTasks < 1 || c.TrainTasks > 1_000_000 || c.EvalTasks > 1_000_000 {
		errs = append(errs, fmt.Errorf("train_tasks = %d, eval_tasks = %d: want 1 to 1000000 each", c.TrainTasks, c.EvalTasks))
	}
	errs = append(errs, env.CheckPercent(c.EvalPercent), env.CheckPrompt(c.Prompt))
	return errors.Join(errs...)
}

// GSM is the environment.
type GSM struct {
	cfg   Config
	tasks map[env.Split][]task
}

// New makes the environment of a configuration; an error if that is not valid, the file cannot be read, or a split is empty.
func New(cfg Config) (*GSM, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.File == "" {
		tasks, err := cfg.generated()
		return &GSM{cfg: cfg, tasks: tasks}, err
	}
	all, err := cfg.load()
	if err != nil {
		return nil, err
	}
	g := &GSM{cfg: cfg, tasks: env.Deal(all, cfg.EvalPercent, func(t task) string { return t.Question })}
	if len(g.tasks[env.Train]) == 0 || len(g.tasks[env.Eval]) == 0 {
		return nil, fmt.Errorf("%s: %d training and %d eval problems; give more of them, or change eval_percent = %d",
			cfg.File, len(g.tasks[env.Train]), len(g.tasks[env.Eval]), cfg.EvalPercent)
	}
	return g, nil
}

// Info implements [env.Environment].
func (g *GSM) Info() env.Info {
	return env.Info{Name: "gsm", Version: "1", Train: len(g.tasks[env.Train]), Eval: len(g.tasks[env.Eval]), Disjoint: true, MaxTurns: 1}
}

// task is the JSON of a task.
type task struct {
	Question string `json:"question"`
	Answer   string `json:"answer"` // the exact number: "42", "-7", "1/2"
}

// Task implements [env.Environment]: {"question": "...", "answer": "42"}.
func (g *GSM) Task(split env.Split, index int) (json.RawMessage, error) {
	if err := env.CheckIndex(g.Info(), split, index); err != nil {
		return nil, err
	}
	return json.Marshal(g.tasks[split][index])
}

// Start implements [env.Environment].
func (g *GSM) Start(_ context.Context, data json.RawMessage, _ int64) (env.Episode, error) {
	t, err := decode(data)
	if err != nil {
		return nil, err
	}
	v, ok := new(big.Rat).SetString(t.Answer)
	if !ok {
		return nil, fmt.Errorf("task %s: the answer is no number", data)
	}
	return &episode{cfg: g.cfg, question: t.Question, truth: v}, nil
}

// Rescore implements [env.Rescorer].
func (g *GSM) Rescore(ctx context.Context, task json.RawMessage, seed int64, messages []env.Message, ended bool) (env.Score, error) {
	return env.Rescore(ctx, g, task, seed, messages, ended)
}

// Demonstrate implements [env.Demonstrator].
func (g *GSM) Demonstrate(data json.RawMessage, _ int64) (string, error) {
	t, err := decode(data)
	return "#### " + t.Answer, err
}

func decode(data json.RawMessage) (t task, err error) {
	if err := json.Unmarshal(data, &t); err != nil {
		return t, fmt.Errorf("decode task: %w", err)
	}
	if t.Question == "" || t.Answer == "" || len(t.Answer) > 1000 || strings.ContainsAny(t.Answer, "eEpP") {
		return t, fmt.Errorf("task %.200s: want a question, and an answer such as 42 or 1/2", data)
	}
	return t, nil
}
