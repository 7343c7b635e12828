// Package alphabetsort is the environment "alphabet-sort": sort names, more of which come every turn, into one growing list.
//
// It exercises several turns in which the policy must go on from what it said before, a format that depends on the turn, and partial
// credit. It follows the environment of the same name in Prime Intellect's verifiers; what differs stands at the end.
//
// A task is one to three turns (min_turns, max_turns) of one to five names each (min_names, max_names), to be sorted by first or by
// last name. The first turn's answer is its names in order; every later one is all names so far in order, with those that came in this
// turn marked as new. Names are a first and a last name without space ("AdaLovelace"); within a task no two have either in common.
//
// Reward "sorted" is the mean over the task's turns of similarity to the power of power (default 4), where the similarity of an
// answer is twice the length of the longest common subsequence of its lines and those of the truth, divided by the number of both: 1
// for the truth only. A missing or wrong mark makes a line another one; upper case does not matter. A turn that was not reached counts
// 0. Metrics: "exact", the share of turns that were all right; "turns".
//
// Compact prompt: a message is "first" or "last" and the names with a space between ("last AdaAbe EvaBaker"); the answer is names with
// space between, new ones with a plus behind ("AdaAbe EmilAdler+ EvaBaker"). Full prompt: sentences; the answer stands line by line in
// <alphabetical_sorted></alphabetical_sorted>, in later turns in <combined_alphabetical_sorted>, the last of which counts, and new names
// are marked by " // new name!".
//
// Held out: a hash of a task's names decides which split it is in, so no two tasks of different splits have the same; the names one by
// one are in both. The seed plays no part. The demonstration is the answers, in compact form, with " / " between turns.
//
// Reference player (sorts): 1. Random player (all names in random order, marked rightly): 0.33 with the defaults, since short lists are
// often in order by chance. Without looking nobody knows a name: 0.
//
// Other than in verifiers similarity is of lines instead of characters, of several answers in one reply the last counts, and the names
// are made here instead of taken from a data set.
package alphabetsort

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Config holds the options of alphabet-sort.
type Config struct {
	MinTurns int     `toml:"min_turns" json:"min_turns"` // at least 1; default 1
	MaxTurns int     `toml:"max_turns" json:"max_turns"` // at least min_turns; default 3
	MinNames int     `toml:"min_names" json:"min_names"` // of a turn, at least 1; default 1
	MaxNames int     `toml:"max_names" json:"max_names"` // of a turn, at least min_names; max_turns × max_names is at most 100; default 5
	By       string  `toml:"by" json:"by"`               // "first", "last" or "any" (default): either, as it falls
	Power    float64 `toml:"power" json:"power"`         // of the similarity, 1 to 16; default 4
	// TrainTasks and EvalTasks are the sizes of the splits, at least 1; default 1024 and 256.
	TrainTasks  int `toml:"train_tasks" json:"train_tasks"`
	EvalTasks   int `toml:"eval_tasks" json:"eval_tasks"`
	EvalPercent int `toml:"eval_percent" json:"eval_percent"` // share of the tasks that is held out, 1 to 50; default 20
	// Prompt is "compact" (default) or "full".
	Prompt string `toml:"prompt" json:"prompt"`
}

// Defaults is the configuration of one to three turns of one to five names.
func Defaults() Config {
	return Config{
		MinTurns: 1, MaxTurns: 3, MinNames: 1, MaxNames: 5, By: "any", Power: 4, TrainTasks: 1024, EvalTasks: 256, EvalPercent: 20,
		Prompt: "compact",
	}
}

// Validate returns every conflict, each with what to change.
func (c Config) Validate() error {
	var errs []error
	if c.MinTurns < 1 || c.MaxTurns < c.MinTurns {
		errs = append(errs, fmt.Errorf("min_turns = %d, max_turns = %d: want 1 <= min_turns <= max_turns", c.MinTurns, c.MaxTurns))
	}
	if c.MinNames < 1 || c.MaxNames < c.MinNames {
		errs = append(errs, fmt.Errorf("min_names = %d, max_names = %d: want 1 <= min_names <= max_names", c.MinNames, c.MaxNames))
	}
	if c.MaxTurns > 100 || c.MaxNames > 100 || c.MaxTurns*c.MaxNames > 100 {
		errs = append(errs, fmt.Errorf("max_turns = %d, max_names = %d: want at most 100 names in all", c.MaxTurns, c.MaxNames))
	}
	if c.By != "first" && c.By != "last" && c.By != "any" {
		errs = append(errs, fmt.Errorf("by = %q: want first, last or any", c.By))
	}
	if !(c.Power >= 1 && c.Power <= 16) {
		errs = append(errs, fmt.Errorf("power = %v: want 1 to 16", c.Power))
	}
	errs = append(errs, env.CheckTasks(c.TrainTasks, c.EvalTasks), env.CheckPercent(c.EvalPercent), env.CheckPrompt(c.Prompt))
	return errors.Join(errs...)
}

// AlphabetSort is the environment.
type AlphabetSort struct {
	cfg Config
	// baselines are computed when they are first asked for.
	baselines map[env.Split]func() map[string]float64
}

// New makes the environment of a configuration; an error if that is not valid.
func New(cfg Config) (*AlphabetSort, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a := &AlphabetSort{cfg: cfg, baselines: map[env.Split]func() map[string]float64{}}
	for _, split := range []env.Split{env.Train, env.Eval} {
		if _, err := a.draw(split, 0); err != nil {
			return nil, err
		}
		a.baselines[split] = sync.OnceValue(func() map[string]float64 { return a.measure(split) })
	}
	return a, nil
}

// Info implements [env.Environment].
func (a *AlphabetSort) Info() env.Info {
	return env.Info{
		Name: "alphabet-sort", Version: "1", Train: a.cfg.TrainTasks, Eval: a.cfg.EvalTasks, Disjoint: true, MaxTurns: a.cfg.MaxTurns,
	}
}

// task is the JSON of a task.
type task struct {
	By    string     `json:"by"`    // "first" or "last"
	Turns [][]string `json:"turns"` // the names of each turn as they are shown
}

// Task implements [env.Environment]: {"by": "first", "turns": [["AdaAbe", ...], ...]}.
func (a *AlphabetSort) Task(split env.Split, index int) (json.RawMessage, error) {
	if err := env.CheckIndex(a.Info(), split, index); err != nil {
		return nil, err
	}
	t, err := a.draw(split, index)
	if err != nil {
		return nil, err
	}
	return json.Marshal(t)
}

func (a *AlphabetSort) draw(split env.Split, index int) (task, error) {
	c := a.cfg
	what := fmt.Sprintf("alphabet-sort of %d to %d turns, %d to %d names, by %s", c.MinTurns, c.MaxTurns, c.MinNames, c.MaxNames, c.By)
	return env.Draw(what, split, index, c.EvalPercent, func(rng *rand.Rand) (task, string) {
		t := task{By: c.By}
		if c.By == "any" {
			t.By = []string{"first", "last"}[rng.IntN(2)]
		}
		firsts, lasts := rng.Perm(len(firstNames)), rng.Perm(len(lastNames))
		n := 0
		for range c.MinTurns + rng.IntN(c.MaxTurns-c.MinTurns+1) {
			var names []string
			for range c.MinNames + rng.IntN(c.MaxNames-c.MinNames+1) {
				names = append(names, name(firstNames[firsts[n]], lastNames[lasts[n]]))
				n++
			}
			t.Turns = append(t.Turns, names)
		}
		all := slices.Sorted(slices.Values(slices.Concat(t.Turns...)))
		return t, strings.Join(all, " ")
	})
}

// Start implements [env.Environment].
func (a *AlphabetSort) Start(_ context.Context, data json.RawMessage, _ int64) (env.Episode, error) {
	t, err := a.decode(data)
	if err != nil {
		return nil, err
	}
	return &episode{cfg: a.cfg, task: t}, nil
}

// Rescore implements [env.Rescorer].
func (a *AlphabetSort) Rescore(ctx context.Context, task json.RawMessage, seed int64, messages []env.Message, ended bool) (env.Score, error) {
	return env.Rescore(ctx, a, task, seed, messages, ended)
}

// Demonstrate implements [env.Demonstrator].
func (a *AlphabetSort) Demonstrate(data json.RawMessage, _ int64) (string, error) {
	t, err := a.decode(data)
	if err != nil {
		return "", err
	}
	var turns []string
	for turn := range t.Turns {
		turns = append(turns, strings.Join(t.truth(turn, compactMark), " "))
	}
	return strings.Join(turns, " / "), nil
}

func (a *AlphabetSort) decode(data json.RawMessage) (t task, err error) {
	if err := json.Unmarshal(data, &t); err != nil {
		return t, fmt.Errorf("decode task: %w", err)
	}
	if t.By != "first" && t.By != "last" {
		return t, fmt.Errorf("task %s: by = %q, want first or last", data, t.By)
	}
	if len(t.Turns) == 0 || len(t.Turns) > a.cfg.MaxTurns {
		return t, fmt.Errorf("task %s: %d turns, want 1 to max_turns = %d", data, len(t.Turns), a.cfg.MaxTurns)
	}
	for _, names := range t.Turns {
		if len(names) == 0 || slices.Contains(names, "") {
			return t, fmt.Errorf("task %s: a turn without names", data)
		}
	}
	return t, nil
}

// truth is the answer of a turn: all names so far in order, those that came after the first turn and in this one with a mark.
// Names with the same key stay in the order in which they came.
func (t task) truth(turn int, mark string) []string {
	names := slices.Concat(t.Turns[:turn+1]...)
	slices.SortStableFunc(names, func(a, b string) int {
		return cmp.Compare(strings.ToLower(key(a, t.By)), strings.ToLower(key(b, t.By)))
	})
	for i, n := range names {
		if turn > 0 && slices.Contains(t.Turns[turn], n) {
			names[i] += mark
		}
	}
	return names
}
