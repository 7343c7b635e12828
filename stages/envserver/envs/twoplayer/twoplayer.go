// Package twoplayer is the environment "two-player": two agents with values of their own divide a few items between them.
//
// It exercises several agents: the policy plays both, each in a conversation of its own in which it sees its own values and never
// the other's, and each has its own reward. It is the negotiation of Lewis et al. (Deal or No Deal?, arXiv:1706.05125) with offers in
// place of free talk.
//
// A task is three kinds of items, one to four of each and five to seven in all, and what one of each kind is worth to the agents
// "first" and "second". To each of them all items together are worth 10. They speak in turns, "first" begins. A reply is an offer,
// how many of each kind the speaker wants for itself, or accepts the offer that the other made just before, which ends the game: the
// one that offered gets what it asked for, the other the rest. A reply that is neither is no offer, and it is the other's turn. Without
// a deal within replies (6) of both together nobody gets anything.
//
// Rewards of an agent: "share", what its items are worth to it in parts of 10. Reward of the rollout, which is shown and trained on
// by no agent: "welfare", what both get together in parts of the most they could. Metrics: "deal", "replies", "unreadable" (replies that
// were neither).
//
// Compact prompt: the system message is the items and their values ("3 1 2 worth 1 3 2"), a message of the game is what the other's
// offer leaves to the reader ("1 0 2"), or "-" without one; a reply is three numbers or "deal". Full prompt: sentences; the reply ends in
// <keep>2 1 0</keep> or <deal/>, of which the last one counts, and all of it is shown to the other.
//
// Held out: a hash of the items and values decides which split a task is in, so no task is in both. The seed plays no part.
//
// Reference player (asks for what is worth most to it, less every time, and takes what is worth as much as it would ask for): a
// welfare of 0.91. Random player (any legal move): 0.10.
package twoplayer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Config holds the options of two-player.
type Config struct {
	Replies int `toml:"replies" json:"replies"` // of both together, 2 to 40; default 6
	// TrainTasks and EvalTasks are the sizes of the splits, at least 1; default 1024 and 256.
	TrainTasks  int `toml:"train_tasks" json:"train_tasks"`
	EvalTasks   int `toml:"eval_tasks" json:"eval_tasks"`
	EvalPercent int `toml:"eval_percent" json:"eval_percent"` // share of the tasks that is held out, 1 to 50; default 20
	// Prompt is "compact" (default) or "full".
	Prompt string `toml:"prompt" json:"prompt"`
}

// Defaults is the configuration of three replies each.
func Defaults() Config {
	return Config{Replies: 6, TrainTasks: 1024, EvalTasks: 256, EvalPercent: 20, Prompt: "compact"}
}

// Validate returns every conflict, each with what to change.
func (c Config) Validate() error {
	var errs []error
	if c.Replies < 2 || c.Replies > 40 {
		errs = append(errs, fmt.Errorf("replies = %d: want 2 to 40", c.Replies))
	}
	errs = append(errs, env.CheckTasks(c.TrainTasks, c.EvalTasks), env.CheckPercent(c.EvalPercent), env.CheckPrompt(c.Prompt))
	return errors.Join(errs...)
}

// TwoPlayer is the environment.
type TwoPlayer struct {
	cfg Config
	// baselines are computed when they are first asked for.
	baselines map[env.Split]func() map[string]float64
}

// New makes the environment of a configuration; an error if that is not valid.
func New(cfg Config) (*TwoPlayer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &TwoPlayer{cfg: cfg, baselines: map[env.Split]func() map[string]float64{}}
	for _, split := range []env.Split{env.Train, env.Eval} {
		p.baselines[split] = sync.OnceValue(func() map[string]float64 { return p.measure(split) })
	}
	return p, nil
}

// Info implements [env.Environment].
func (p *TwoPlayer) Info() env.Info {
	return env.Info{Name: "two-player", Version: "1", Train: p.cfg.TrainTasks, Eval: p.cfg.EvalTasks, Disjoint: true, MaxTurns: p.cfg.Replies}
}

// Task implements [env.Environment]: {"items": [3, 1, 2], "first": [1, 3, 2], "second": [2, 0, 2]}.
func (p *TwoPlayer) Task(split env.Split, index int) (json.RawMessage, error) {
	if err := env.CheckIndex(p.Info(), split, index); err != nil {
		return nil, err
	}
	t, err := p.draw(split, index)
	if err != nil {
		return nil, err
	}
	return json.Marshal(t)
}

func (p *TwoPlayer) draw(split env.Split, index int) (task, error) {
	return env.Draw("two-player", split, index, p.cfg.EvalPercent, func(rng *rand.Rand) (task, string) {
		t := generate(rng)
		return t, fmt.Sprint(t.Items, t.First, t.Second)
	})
}

// Start implements [env.Environment].
func (p *TwoPlayer) Start(_ context.Context, data json.RawMessage, _ int64) (env.Episode, error) {
	var t task
	if err := json.Unmarshal(data, &t); err != nil {
		return nil, fmt.Errorf("decode task: %w", err)
	}
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("task %s: %w", data, err)
	}
	return &episode{cfg: p.cfg, task: t}, nil
}

// Rescore implements [env.Rescorer].
func (p *TwoPlayer) Rescore(ctx context.Context, task json.RawMessage, seed int64, messages []env.Message, ended bool) (env.Score, error) {
	return env.Rescore(ctx, p, task, seed, messages, ended)
}
