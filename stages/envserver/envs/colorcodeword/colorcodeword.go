// Package colorcodeword is the environment "color-codeword": read a word off coloured squares, more of which come every turn.
//
// It exercises images, made on the spot as PNG, and several turns in which the policy must go on from what it saw before. It follows
// the environment of the same name in Prime Intellect's verifiers.
//
// A task is a key, a letter for each of the colours, and one to three turns (min_turns, max_turns) with an image of one to four
// squares each (min_squares, max_squares). The answer of a turn is the word that all squares so far spell, from the first image on and
// from left to right. Every task has letters of its own, so the key has to be read.
//
// Reward "codeword" is the mean over the task's turns of the share of letters that are right and in their place, of the letters of
// the word or of the answer, whichever has more; upper and lower case are the same. A turn that was not reached counts 0. Metrics:
// "exact", the share of turns that were all right; "turns".
//
// A model that reads only text is shown the colours' names in place of an image ("[image: red blue]"), so that it can play, too. Compact
// prompt: the key in the first message ("red=K blue=T …"), then images alone; the answer is the reply's letters. Full prompt: sentences;
// the answer stands in <codeword></codeword>, the last of which counts.
//
// Held out: a hash of a task's key and squares decides which split it is in. The seed plays no part. The demonstration is the words,
// with " / " between turns.
//
// Reference player (reads the images, pixel by pixel): 1. Random player (as many letters of the key as there are squares): 0.17.
package colorcodeword

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Config holds the options of color-codeword.
type Config struct {
	MinTurns   int `toml:"min_turns" json:"min_turns"`     // at least 1; default 1
	MaxTurns   int `toml:"max_turns" json:"max_turns"`     // min_turns to 16; default 3
	MinSquares int `toml:"min_squares" json:"min_squares"` // of an image, at least 1; default 1
	MaxSquares int `toml:"max_squares" json:"max_squares"` // of an image, min_squares to 16; default 4
	Colors     int `toml:"colors" json:"colors"`           // in the key, 2 to 8; default 6
	Pixels     int `toml:"pixels" json:"pixels"`           // of a square's side, 1 to 256; default 32
	// TrainTasks and EvalTasks are the sizes of the splits, at least 1; default 1024 and 256.
	TrainTasks  int `toml:"train_tasks" json:"train_tasks"`
	EvalTasks   int `toml:"eval_tasks" json:"eval_tasks"`
	EvalPercent int `toml:"eval_percent" json:"eval_percent"` // share of the tasks that is held out, 1 to 50; default 20
	// Prompt is "compact" (default) or "full".
	Prompt string `toml:"prompt" json:"prompt"`
}

// Defaults is the configuration of one to three images of one to four squares.
func Defaults() Config {
	return Config{
		MinTurns: 1, MaxTurns: 3, MinSquares: 1, MaxSquares: 4, Colors: 6, Pixels: 32, TrainTasks: 1024, EvalTasks: 256, EvalPercent: 20,
		Prompt: "compact",
	}
}

// Validate returns every conflict, each with what to change.
func (c Config) Validate() error {
	var errs []error
	if c.MinTurns < 1 || c.MaxTurns < c.MinTurns || c.MaxTurns > 16 {
		errs = append(errs, fmt.Errorf("min_turns = %d, max_turns = %d: want 1 <= min_turns <= max_turns <= 16", c.MinTurns, c.MaxTurns))
	}
	if c.MinSquares < 1 || c.MaxSquares < c.MinSquares || c.MaxSquares > 16 {
		errs = append(errs, fmt.Errorf("min_squares = %d, max_squares = %d: want 1 <= min_squares <= max_squares <= 16", c.MinSquares, c.MaxSquares))
	}
	if c.Colors < 2 || c.Colors > len(palette) {
		errs = append(errs, fmt.Errorf("colors = %d: want 2 to %d", c.Colors, len(palette)))
	}
	if c.Pixels < 1 || c.Pixels > 256 {
		errs = append(errs, fmt.Errorf("pixels = %d: want 1 to 256", c.Pixels))
	}
	errs = append(errs, env.CheckTasks(c.TrainTasks, c.EvalTasks), env.CheckPercent(c.EvalPercent), env.CheckPrompt(c.Prompt))
	return errors.Join(errs...)
}

// ColorCodeword is the environment.
type ColorCodeword struct{ cfg Config }

// New makes the environment of a configuration; an error if that is not valid.
func New(cfg Config) (*ColorCodeword, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &ColorCodeword{cfg}
	for _, split := range []env.Split{env.Train, env.Eval} {
		if _, err := c.draw(split, 0); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Info implements [env.Environment].
func (c *ColorCodeword) Info() env.Info {
	return env.Info{
		Name: "color-codeword", Version: "1", Train: c.cfg.TrainTasks, Eval: c.cfg.EvalTasks, Disjoint: true, MaxTurns: c.cfg.MaxTurns,
	}
}

// task is the JSON of a task.
type task struct {
	Key   map[string]string `json:"key"`   // a letter for each colour's name
	Turns [][]string        `json:"turns"` // the colours of each turn's squares
}

// Task implements [env.Environment]: {"key": {"red": "K", "blue": "T"}, "turns": [["blue", "red"], ["red"]]}.
func (c *ColorCodeword) Task(split env.Split, index int) (json.RawMessage, error) {
	if err := env.CheckIndex(c.Info(), split, index); err != nil {
		return nil, err
	}
	t, err := c.draw(split, index)
	if err != nil {
		return nil, err
	}
	return json.Marshal(t)
}

func (c *ColorCodeword) draw(split env.Split, index int) (task, error) {
	o := c.cfg
	what := fmt.Sprintf("color-codeword of %d to %d turns, %d to %d squares, %d colors", o.MinTurns, o.MaxTurns, o.MinSquares, o.MaxSquares, o.Colors)
	return env.Draw(what, split, index, o.EvalPercent, func(rng *rand.Rand) (task, string) {
		t := task{Key: map[string]string{}}
		names := make([]string, o.Colors)
		letters := rng.Perm(26)
		for i, k := range rng.Perm(len(palette))[:o.Colors] {
			names[i] = palette[k].name
			t.Key[names[i]] = string(rune('A' + letters[i]))
		}
		for range o.MinTurns + rng.IntN(o.MaxTurns-o.MinTurns+1) {
			var squares []string
			for range o.MinSquares + rng.IntN(o.MaxSquares-o.MinSquares+1) {
				squares = append(squares, names[rng.IntN(len(names))])
			}
			t.Turns = append(t.Turns, squares)
		}
		return t, fmt.Sprint(t.Key, t.Turns)
	})
}

// Start implements [env.Environment].
func (c *ColorCodeword) Start(_ context.Context, data json.RawMessage, _ int64) (env.Episode, error) {
	t, err := c.decode(data)
	if err != nil {
		return nil, err
	}
	e := &episode{cfg: c.cfg, task: t}
	for _, squares := range t.Turns {
		i, err := picture(squares, c.cfg.Pixels)
		if err != nil {
			return nil, err
		}
		e.images = append(e.images, i)
	}
	return e, nil
}

// Rescore implements [env.Rescorer].
func (c *ColorCodeword) Rescore(ctx context.Context, task json.RawMessage, seed int64, messages []env.Message, ended bool) (env.Score, error) {
	return env.Rescore(ctx, c, task, seed, messages, ended)
}

// Demonstrate implements [env.Demonstrator].
func (c *ColorCodeword) Demonstrate(data json.RawMessage, _ int64) (string, error) {
	t, err := c.decode(data)
	if err != nil {
		return "", err
	}
	var words []string
	for turn := range t.Turns {
		words = append(words, t.word(turn))
	}
	return strings.Join(words, " / "), nil
}

// Baselines implements [env.Baseliner]: "random" says as many letters of the key as there are squares, and is right by chance.
func (c *ColorCodeword) Baselines(split env.Split) map[string]float64 {
	if c.Info().Tasks(split) == 0 {
		return nil
	}
	return map[string]float64{"random": 1 / float64(c.cfg.Colors)}
}

func (c *ColorCodeword) decode(data json.RawMessage) (t task, err error) {
	if err := json.Unmarshal(data, &t); err != nil {
		return t, fmt.Errorf("decode task: %w", err)
	}
	if len(t.Turns) == 0 || len(t.Turns) > c.cfg.MaxTurns {
		return t, fmt.Errorf("task %s: %d turns, want 1 to max_turns = %d", data, len(t.Turns), c.cfg.MaxTurns)
	}
	for name, letter := range t.Key {
		if _, ok := colorOf(name); !ok || len(letter) != 1 || letter < "A" || letter > "Z" {
			return t, fmt.Errorf("task %s: %q = %q: want a colour that is known, and an upper-case letter", data, name, letter)
		}
	}
	for _, squares := range t.Turns {
		if len(squares) < 1 || len(squares) > 16 {
			return t, fmt.Errorf("task %s: an image of %d squares, want 1 to 16", data, len(squares))
		}
		for _, name := range squares {
			if t.Key[name] == "" {
				return t, fmt.Errorf("task %s: a square of color %q, which is not in the key", data, name)
			}
		}
	}
	return t, nil
}

// word is the answer of a turn.
func (t task) word(turn int) (word string) {
	for _, squares := range t.Turns[:turn+1] {
		for _, name := range squares {
			word += t.Key[name]
		}
	}
	return word
}
