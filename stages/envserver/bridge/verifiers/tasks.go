package verifiers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/prl-project/prl/stages/envserver/bridge/rows"
	"github.com/prl-project/prl/stages/envserver/env"
)

// learn finds the tasks, and deals them where nobody has. disjoint says that none is in both splits. What the worker has not
// said of the environment, it adds to said.
func (v *Verifiers) learn(ctx context.Context, first *worker, said *about) (tasks map[env.Split][]json.RawMessage, disjoint bool, err error) {
	switch {
	case v.cfg.File != "":
		read, err := rows.Load(v.cfg.File)
		if err != nil {
			return nil, false, err
		}
		said.rows = map[string][]json.RawMessage{"": read}
	case v.cfg.Address != "" && said.wire == wire021:
		if err := v.ask(ctx, first, said); err != nil {
			return nil, false, err
		}
	case v.cfg.Address != "":
		more, err := v.foreman.survey(ctx, said.wire)
		if err != nil {
			return nil, false, fmt.Errorf("over wire %s the tasks are the client's: set python to an interpreter that has the environment, or file: %w",
				said.wire.name, err)
		}
		*said = more
	}
	if said.version == "" {
		said.version = said.wire.name
	}
	if len(said.rows["train"]) == 0 && len(said.rows["eval"]) == 0 {
		tasks, err = deal(said.rows[""], v.cfg.EvalPercent)
		return tasks, true, err
	}
	tasks = map[env.Split][]json.RawMessage{}
	for _, split := range []env.Split{env.Train, env.Eval} {
		if tasks[split], err = rows.Tidy(said.rows[string(split)]); err != nil {
			return nil, false, fmt.Errorf("split %q: %w", split, err)
		}
	}
	if len(tasks[env.Train]) == 0 {
		return nil, false, errors.New("there are no tasks to train on")
	}
	return tasks, apart(tasks[env.Train], tasks[env.Eval]), nil
}

// ask asks a server of wire 0.2.1 how many tasks it has; they are numbers to us.
func (v *Verifiers) ask(ctx context.Context, first *worker, said *about) error {
	ctx, cancel := context.WithTimeout(ctx, seconds(v.cfg.StartS))
	defer cancel()
	var f facts
	if err := first.c.ask(ctx, newID(), [][]byte{[]byte("info"), pack(object{})}, &f); err != nil {
		return fmt.Errorf("ask how many tasks there are: %w", err)
	}
	n, ok := numberOf(f.said["num_tasks"])
	switch {
	case !ok || n != nil && (*n < 2 || *n > 1<<20):
		return fmt.Errorf("the server has %v tasks: want 2 to %d", f.said["num_tasks"], 1<<20)
	case n == nil: // without end
		most := float64(v.cfg.Tasks)
		n = &most
	}
	said.group = flagOf(f.said, "requires_group_scoring")
	said.rows = map[string][]json.RawMessage{}
	for i := range int(*n) {
		said.rows[""] = append(said.rows[""], fmt.Appendf(nil, `{"task_idx":%d}`, i))
	}
	return nil
}

// deal deals tasks by a hash of their content. One that is there twice is left out.
func deal(all []json.RawMessage, percent int) (map[env.Split][]json.RawMessage, error) {
	all, err := rows.Tidy(all)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	all = slices.DeleteFunc(all, func(row json.RawMessage) bool {
		before := seen[content(row)]
		seen[content(row)] = true
		return before
	})
	tasks := env.Deal(all, percent, content)
	if train, eval := len(tasks[env.Train]), len(tasks[env.Eval]); train == 0 || eval == 0 {
		return nil, fmt.Errorf("%d training and %d eval tasks: give more of them, eval_args, or another eval_percent than %d", train, eval, percent)
	}
	return tasks, nil
}

// apart says that no task is in both.
func apart(train, eval []json.RawMessage) bool {
	seen := map[string]bool{}
	for _, row := range train {
		seen[content(row)] = true
	}
	for _, row := range eval {
		if seen[content(row)] {
			return false
		}
	}
	return true
}

// content is a task without the numbers by which a package counts its tasks, if it has anything else.
func content(row json.RawMessage) string {
	o, err := fromJSON(row)
	if err != nil {
		return string(row)
	}
	if c := without(o, "idx", "example_id", "task_idx"); len(c) > 0 {
		return string(toJSON(c))
	}
	return string(row)
}
