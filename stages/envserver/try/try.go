// Package try lets a person play an environment in a terminal ([Play]), and a model behind any OpenAI-compatible URL
// ([Run]). It is for whoever writes an environment or wonders how well a model does in one.
//
// The guarantee: it needs no broker and writes nothing but what it prints, and for a person the images, in a temporary folder
// until the end; the environment is played by the same [env.Session] as in a run; and a rollout that failed has no reward, it
// is never a zero.
//
// What Run prints is not what a run trains on: it asks for text, not for tokens, and an environment that compares the rollouts
// of a group scores each by itself here.
//
// Depends on: package env alone. The wire is OpenAI's chat completions
// (https://platform.openai.com/docs/api-reference/chat), without streaming.
// Images go as data: URLs; those of a tool's answer, which has text alone there, in a message of the user behind it.
package try

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Tasks are the tasks of an environment that are played: one after the other from First on, and from 0 again behind the last.
type Tasks struct {
	Split env.Split
	First int
	// Seed is that of the first episode; every further one has the next.
	Seed int64
}

// A game is one task as it is played: with Tasks{Split, index, seed} it is the first one again.
type game struct {
	split env.Split
	index int
	seed  int64
	task  json.RawMessage
}

// check returns an error if the split has no tasks, or not the first one.
func (t Tasks) check(info env.Info) error {
	n := info.Tasks(t.Split)
	switch {
	case t.Split != env.Train && t.Split != env.Eval:
		return fmt.Errorf("there is no split %q: %q or %q", t.Split, env.Train, env.Eval)
	case n == 0:
		return fmt.Errorf("%s has no tasks in split %q: choose the other one (--split)", info.Name, t.Split)
	case t.First < 0 || t.First >= n:
		return fmt.Errorf("%s has no task %d in split %q: 0 to %d (--task)", info.Name, t.First, t.Split, n-1)
	}
	return nil
}

// game is the i-th one. A panic of the environment is an env.PanicError.
func (t Tasks) game(e env.Environment, i int) (g game, err error) {
	defer recovered(&err)
	g = game{split: t.Split, index: (t.First + i) % e.Info().Tasks(t.Split), seed: t.Seed + int64(i)}
	if g.task, err = e.Task(g.split, g.index); err != nil {
		return g, fmt.Errorf("task %d of split %s: %w", g.index, g.split, err)
	}
	if !json.Valid(g.task) {
		return g, fmt.Errorf("task %d of split %s is no JSON: %.200q", g.index, g.split, g.task)
	}
	return g, nil
}

func (g game) String() string { return fmt.Sprintf("task %d of %s, seed %d", g.index, g.split, g.seed) }

// traceback is where in an environment's code an error came from; empty if nobody knows.
func traceback(err error) string {
	var traced env.Traced
	if errors.As(err, &traced) {
		return traced.Traceback()
	}
	return ""
}
