// Package echo is the environment "echo": the policy is shown a text and says it back.
//
// It is the simplest environment there is, for smoke tests: it exercises the way of a rollout from task to trainer and nothing
// else, and a model that learns anything at all learns this.
//
// A text has length characters, drawn uniformly from the alphabet. Reward "positions" is the number of positions at which answer
// and text agree, divided by the longer of the two lengths: 1 for the text only, 0 for an empty answer. Space around the answer is
// ignored, unless the alphabet has some. Metric: "exact" (1 or 0).
//
// Held out: a hash of the text decides which split it is in, so the splits are disjoint.
//
// Compact prompt: the text alone. Full prompt: an instruction as system message before it. One turn. The seed plays no part.
//
// Reference player (says the text): 1. Random player (as many random characters of the alphabet): 1 / size of the alphabet, 0.04
// with the defaults. The demonstration is the text.
package echo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Config holds the options of echo.
type Config struct {
	Length   int    `toml:"length" json:"length"`     // characters, 1 to 10,000; default 5
	Alphabet string `toml:"alphabet" json:"alphabet"` // at least 2 different characters; default a to z
	// TrainTasks and EvalTasks are the sizes of the splits, at least 1; default 1024 and 256. Short texts repeat.
	TrainTasks  int `toml:"train_tasks" json:"train_tasks"`
	EvalTasks   int `toml:"eval_tasks" json:"eval_tasks"`
	EvalPercent int `toml:"eval_percent" json:"eval_percent"` // share of the texts that is held out, 1 to 50; default 20
	// Prompt is "compact" (default) or "full".
	Prompt string `toml:"prompt" json:"prompt"`
}

// Defaults is the configuration of five letters a to z.
func Defaults() Config {
	return Config{
		Length: 5, Alphabet: "abcdefghijklmnopqrstuvwxyz", TrainTasks: 1024, EvalTasks: 256, EvalPercent: 20, Prompt: "compact",
	}
}

// Validate returns every conflict, each with what to change.
func (c Config) Validate() error {
	var errs []error
	if c.Length < 1 || c.Length > 10000 {
		errs = append(errs, fmt.Errorf("length = %d: want 1 to 10000", c.Length))
	}
	letters := map[rune]bool{}
	for _, r := range c.Alphabet {
		letters[r] = true
	}
	if len(letters) < 2 || len(letters) < utf8.RuneCountInString(c.Alphabet) || !utf8.ValidString(c.Alphabet) {
		errs = append(errs, fmt.Errorf("alphabet = %q: want at least two characters, each once", c.Alphabet))
	}
	errs = append(errs, env.CheckTasks(c.TrainTasks, c.EvalTasks), env.CheckPercent(c.EvalPercent), env.CheckPrompt(c.Prompt))
	return errors.Join(errs...)
}

// Echo is the environment.
type Echo struct {
	cfg      Config
	alphabet []rune
}

// New makes the environment of a configuration; an error if that is not valid or leaves a split without a text.
func New(cfg Config) (*Echo, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	e := &Echo{cfg: cfg, alphabet: []rune(cfg.Alphabet)}
	for _, split := range []env.Split{env.Train, env.Eval} {
		if _, err := e.draw(split, 0); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// draw is the text of a task.
func (e *Echo) draw(split env.Split, index int) (string, error) {
	what := fmt.Sprintf("echo of length = %d, alphabet = %q", e.cfg.Length, e.cfg.Alphabet)
	return env.Draw(what, split, index, e.cfg.EvalPercent, func(rng *rand.Rand) (text, key string) {
		letters := make([]rune, e.cfg.Length)
		for i := range letters {
			letters[i] = e.alphabet[rng.IntN(len(e.alphabet))]
		}
		return string(letters), string(letters)
	})
}

// Info implements [env.Environment].
func (e *Echo) Info() env.Info {
	return env.Info{Name: "echo", Version: "1", Train: e.cfg.TrainTasks, Eval: e.cfg.EvalTasks, Disjoint: true, MaxTurns: 1}
}

// task is the JSON of a task.
type task struct {
	Text string `json:"text"`
}

// Task implements [env.Environment]: {"text": "..."}.
func (e *Echo) Task(split env.Split, index int) (json.RawMessage, error) {
	if err := env.CheckIndex(e.Info(), split, index); err != nil {
		return nil, err
	}
	text, err := e.draw(split, index)
	if err != nil {
		return nil, err
	}
	return json.Marshal(task{text})
}

// Start implements [env.Environment].
func (e *Echo) Start(_ context.Context, data json.RawMessage, _ int64) (env.Episode, error) {
	t, err := decode(data)
	if err != nil {
		return nil, err
	}
	return &episode{full: e.cfg.Prompt == "full", text: t.Text, spaces: strings.ContainsFunc(e.cfg.Alphabet, unicode.IsSpace)}, nil
}

// Rescore implements [env.Rescorer].
func (e *Echo) Rescore(ctx context.Context, task json.RawMessage, seed int64, messages []env.Message, ended bool) (env.Score, error) {
	return env.Rescore(ctx, e, task, seed, messages, ended)
}

// Demonstrate implements [env.Demonstrator].
func (e *Echo) Demonstrate(data json.RawMessage, _ int64) (string, error) {
	t, err := decode(data)
	return t.Text, err
}

func decode(data json.RawMessage) (t task, err error) {
	if err := json.Unmarshal(data, &t); err != nil {
		return t, fmt.Errorf("decode task: %w", err)
	}
	if t.Text == "" {
		return t, fmt.Errorf("task %s has no text", data)
	}
	return t, nil
}
