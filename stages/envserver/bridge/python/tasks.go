package python

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/prl-project/prl/stages/envserver/bridge/rows"
	"github.com/prl-project/prl/stages/envserver/env"
)

// deal makes the splits of the file, of what the class says it has, or of numbers. disjoint says that no row is in both.
func (c Config) deal(own json.RawMessage) (tasks map[env.Split][]json.RawMessage, disjoint bool, err error) {
	all := rows.Numbered(c.Tasks)
	switch {
	case c.File != "":
		if all, err = rows.Load(c.File); err != nil {
			return nil, false, err
		}
	case len(own) > 0 && own[0] == '{':
		return dealt(own)
	case len(own) > 0 && own[0] == '[':
		all = nil
		if err := json.Unmarshal(own, &all); err != nil {
			return nil, false, fmt.Errorf("dataset: %w", err)
		}
	}
	tasks, err = rows.Deal(all, c.EvalPercent)
	return tasks, true, err
}

// dealt takes the splits as the class has dealt them.
func dealt(own json.RawMessage) (tasks map[env.Split][]json.RawMessage, disjoint bool, err error) {
	if err := json.Unmarshal(own, &tasks); err != nil {
		return nil, false, fmt.Errorf("dataset: %w", err)
	}
	train := map[string]bool{}
	for split, all := range tasks {
		if split != env.Train && split != env.Eval {
			return nil, false, fmt.Errorf(`dataset: a split %q: want "train" and "eval"`, split)
		}
		if tasks[split], err = rows.Tidy(all); err != nil {
			return nil, false, fmt.Errorf("split %q: %w", split, err)
		}
	}
	if len(tasks[env.Train]) == 0 {
		return nil, false, errors.New(`dataset: its split "train" has no row`)
	}
	for _, row := range tasks[env.Train] {
		train[string(row)] = true
	}
	disjoint = true
	for _, row := range tasks[env.Eval] {
		disjoint = disjoint && !train[string(row)]
	}
	return tasks, disjoint, nil
}
