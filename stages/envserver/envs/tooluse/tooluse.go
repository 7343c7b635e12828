// Package tooluse is the environment "tool-use": serve the customer of a small shop with its tools.
//
// It exercises calls of several typed tools, one after the other and several in one reply, answers in JSON from which the policy must
// look up what it needs, refusals, and an end that the policy itself declares. What counts is the state of the shop in the end, not
// the way there.
//
// A task is a shop (products with price and stock, the customer's orders, balance, city and kind of delivery) and a request with
// one to three goals: order some of a product, order the cheapest of its kind, cancel an order, change where orders go. Products and
// orders are named in words; ids must be looked up. The tools are SearchProducts, PlaceOrder, ListOrders, CancelOrder, SetDelivery and
// ShowAccount. A call that the shop cannot do (no such id, too little stock or money, an order that is on its way) is answered
// with an error and changes nothing. The conversation ends with a reply without a call, after max_calls calls, or after turns replies.
//
// Reward components, each from 0 to 1, with weights from the configuration: "state", 1 if what is on order of each product, the
// balance, the city and the delivery are all as they should be, so that nothing was done that nobody asked for; "goals", the share
// of the goals that are reached. What was ordered by mistake and cancelled again does not count against either. Metrics: "calls" (that
// reached a tool), "refused" (of these), "finished" (1 if the policy said that it is done).
//
// Held out: a hash of request and shop decides which split a task is in. The seed plays no part. The demonstration is the goals as
// calls of the shop's tools.
//
// Reference player (reads the request, looks ids up, does it): 1.2. Random player (five random calls with ids that may exist): 0.01.
// A player that does nothing has 0, since no task's goals are reached at the start.
package tooluse

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Config holds the options of tool-use.
type Config struct {
	MinGoals int `toml:"min_goals" json:"min_goals"` // of a request, at least 1; default 1
	MaxGoals int `toml:"max_goals" json:"max_goals"` // of a request, min_goals to 4; default 3
	Products int `toml:"products" json:"products"`   // of the shop, 10 to 60; default 16
	Turns    int `toml:"turns" json:"turns"`         // replies, 2 to 100; default 12
	MaxCalls int `toml:"max_calls" json:"max_calls"` // of tools, at least turns, up to 1000; default 30
	// TrainTasks and EvalTasks are the sizes of the splits, at least 1; default 1024 and 128.
	TrainTasks  int     `toml:"train_tasks" json:"train_tasks"`
	EvalTasks   int     `toml:"eval_tasks" json:"eval_tasks"`
	EvalPercent int     `toml:"eval_percent" json:"eval_percent"` // share of the tasks that is held out, 1 to 50; default 20
	Weights     Weights `toml:"weights" json:"weights"`
}

// Weights are what the reward components count; at least 0.
type Weights struct {
	State float64 `toml:"state" json:"state"` // for a shop that ends as it should; default 1
	Goals float64 `toml:"goals" json:"goals"` // for the share of the goals that are met; default 0.2
}

// Defaults is the configuration of requests with one to three goals.
func Defaults() Config {
	return Config{
		MinGoals: 1, MaxGoals: 3, Products: 16, Turns: 12, MaxCalls: 30, TrainTasks: 1024, EvalTasks: 128, EvalPercent: 20,
		Weights: Weights{State: 1, Goals: 0.2},
	}
}

// Validate returns every conflict, each with what to change.
func (c Config) Validate() error {
	var errs []error
	if c.MinGoals < 1 || c.MaxGoals < c.MinGoals || c.MaxGoals > 4 {
		errs = append(errs, fmt.Errorf("min_goals = %d, max_goals = %d: want 1 <= min_goals <= max_goals <= 4", c.MinGoals, c.MaxGoals))
	}
	if n := len(kinds) * len(colours); c.Products < 10 || c.Products > n {
		errs = append(errs, fmt.Errorf("products = %d: want 10 to %d", c.Products, n))
	}
	if c.Turns < 2 || c.Turns > 100 {
		errs = append(errs, fmt.Errorf("turns = %d: want 2 to 100", c.Turns))
	}
	if c.MaxCalls < c.Turns || c.MaxCalls > 1000 {
		errs = append(errs, fmt.Errorf("max_calls = %d: want turns (%d) to 1000", c.MaxCalls, c.Turns))
	}
	errs = append(errs, env.CheckTasks(c.TrainTasks, c.EvalTasks), env.CheckPercent(c.EvalPercent))
	for _, w := range []float64{c.Weights.State, c.Weights.Goals} {
		if !(w >= 0 && w <= math.MaxFloat32) {
			errs = append(errs, fmt.Errorf("weights: %v: want a number of at least 0", w))
		}
	}
	return errors.Join(errs...)
}

// ToolUse is the environment.
type ToolUse struct {
	cfg Config
	// random is computed when it is first asked for.
	random map[env.Split]func() float64
}

// New makes the environment of a configuration; an error if that is not valid.
func New(cfg Config) (*ToolUse, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t := &ToolUse{cfg: cfg, random: map[env.Split]func() float64{}}
	for _, split := range []env.Split{env.Train, env.Eval} {
		t.random[split] = sync.OnceValue(func() float64 { return t.measure(split) })
	}
	return t, nil
}

// Info implements [env.Environment].
func (t *ToolUse) Info() env.Info {
	return env.Info{Name: "tool-use", Version: "1", Train: t.cfg.TrainTasks, Eval: t.cfg.EvalTasks, Disjoint: true, MaxTurns: t.cfg.Turns}
}

// task is the JSON of a task.
type task struct {
	Request string `json:"request"`
	Goals   []goal `json:"goals"`
	Shop    shop   `json:"shop"`
}

// Task implements [env.Environment]: {"request": "...", "goals": [...], "shop": {...}}.
func (t *ToolUse) Task(split env.Split, index int) (json.RawMessage, error) {
	if err := env.CheckIndex(t.Info(), split, index); err != nil {
		return nil, err
	}
	made, err := t.draw(split, index)
	if err != nil {
		return nil, err
	}
	return json.Marshal(made)
}

// Start implements [env.Environment].
func (t *ToolUse) Start(_ context.Context, data json.RawMessage, _ int64) (env.Episode, error) {
	return t.episode(data)
}

// episode decodes a task and reaches its goals, to know what the shop should be like.
func (t *ToolUse) episode(data json.RawMessage) (*episode, error) {
	e := &episode{cfg: t.cfg}
	if err := json.Unmarshal(data, &e.task); err != nil {
		return nil, fmt.Errorf("decode task: %w", err)
	}
	if e.task.Request == "" || len(e.task.Goals) == 0 {
		return nil, fmt.Errorf("task %.200s: want a request and its goals", data)
	}
	for _, o := range e.task.Shop.Orders {
		if e.task.Shop.product(o.Product) == nil {
			return nil, fmt.Errorf("task %.200s: order %q is of no product", data, o.ID)
		}
	}
	e.shop, e.want = e.task.Shop.copied(), e.task.Shop.copied()
	for _, g := range e.task.Goals {
		if err := e.want.do(g); err != nil {
			return nil, fmt.Errorf("task %.200s: goal %+v: %w", data, g, err)
		}
	}
	return e, nil
}

// Rescore implements [env.Rescorer].
func (t *ToolUse) Rescore(ctx context.Context, task json.RawMessage, seed int64, messages []env.Message, ended bool) (env.Score, error) {
	return env.Rescore(ctx, t, task, seed, messages, ended)
}

// Demonstrate implements [env.Demonstrator].
func (t *ToolUse) Demonstrate(data json.RawMessage, _ int64) (string, error) {
	e, err := t.episode(data)
	if err != nil {
		return "", err
	}
	var calls []string
	for _, g := range e.task.Goals {
		name, args := g.call(&e.task.Shop)
		calls = append(calls, name+args)
	}
	return strings.Join(calls, " "), nil
}

// call is the tool call that reaches a goal in a shop.
func (g goal) call(s *shop) (name, args string) {
	var v any
	switch g.Do {
	case "cancel":
		name = "CancelOrder"
		for _, o := range s.Orders {
			if o.Product == g.Product && o.Status == "open" {
				v = CancelArgs{Order: o.ID}
				break
			}
		}
	case "deliver":
		name, v = "SetDelivery", DeliveryArgs{City: g.City, Express: g.Delivery == "express"}
	default:
		name, v = "PlaceOrder", OrderArgs{Product: g.Product, Quantity: g.Quantity}
	}
	text, _ := json.Marshal(v) // structs of strings and numbers
	return name, string(text)
}
