package python

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/prl-project/prl/stages/envserver/env"
)

// deal makes the splits of the file, of what the class says it has, or of numbers. disjoint says that no row is in both.
func (c Config) deal(own json.RawMessage) (tasks map[env.Split][]json.RawMessage, disjoint bool, err error) {
	var rows []json.RawMessage
	switch {
	case c.File != "":
		file, err := os.Open(c.File)
		if err != nil {
			return nil, false, fmt.Errorf("file: %w", err)
		}
		defer file.Close()
		if rows, err = readRows(c.File, file); err != nil {
			return nil, false, err
		}
	case len(own) > 0 && own[0] == '{':
		return dealt(own)
	case len(own) > 0 && own[0] == '[':
		if err := json.Unmarshal(own, &rows); err != nil {
			return nil, false, fmt.Errorf("dataset: %w", err)
		}
	default:
		for n := range c.Tasks {
			rows = append(rows, fmt.Appendf(nil, `{"seed":%d}`, n))
		}
	}
	if rows, err = tidy(rows); err != nil {
		return nil, false, err
	}
	texts := make([]string, len(rows))
	for i, row := range rows {
		texts[i] = string(row)
	}
	train, eval := env.HoldOut(texts, c.EvalPercent)
	tasks = map[env.Split][]json.RawMessage{}
	for _, text := range train {
		tasks[env.Train] = append(tasks[env.Train], json.RawMessage(text))
	}
	for _, text := range eval {
		tasks[env.Eval] = append(tasks[env.Eval], json.RawMessage(text))
	}
	if len(train) == 0 || len(eval) == 0 {
		return nil, false, fmt.Errorf("%d training and %d eval tasks: give more of them, or change eval_percent = %d", len(train), len(eval), c.EvalPercent)
	}
	return tasks, true, nil
}

// dealt takes the splits as the class has dealt them.
func dealt(own json.RawMessage) (tasks map[env.Split][]json.RawMessage, disjoint bool, err error) {
	if err := json.Unmarshal(own, &tasks); err != nil {
		return nil, false, fmt.Errorf("dataset: %w", err)
	}
	train := map[string]bool{}
	for split, rows := range tasks {
		if split != env.Train && split != env.Eval {
			return nil, false, fmt.Errorf(`dataset: a split %q: want "train" and "eval"`, split)
		}
		if tasks[split], err = tidy(rows); err != nil {
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

// tidy writes rows without spaces and leaves out those that were there before. An error names one that is no object.
func tidy(rows []json.RawMessage) (tidied []json.RawMessage, err error) {
	seen := map[string]bool{}
	for i, row := range rows {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(row, &fields); err != nil || fields == nil {
			return nil, fmt.Errorf("row %d is %.100s, want an object", i, row)
		}
		if len(row) > env.LongestLine {
			return nil, fmt.Errorf("row %d is longer than %d bytes", i, env.LongestLine)
		}
		var text bytes.Buffer
		if err := json.Compact(&text, row); err != nil {
			return nil, fmt.Errorf("row %d: %w", i, err)
		}
		if !seen[text.String()] {
			seen[text.String()] = true
			tidied = append(tidied, text.Bytes())
		}
	}
	return tidied, nil
}

// readRows reads an object a line. An error names the file and the line.
func readRows(name string, from io.Reader) ([]json.RawMessage, error) {
	var rows []json.RawMessage
	err := env.Lines(name, from, func(_ int, line []byte) error {
		if !json.Valid(line) || line[0] != '{' {
			return fmt.Errorf("%.100q, want a JSON object", line)
		}
		rows = append(rows, bytes.Clone(line))
		return nil
	})
	return rows, err
}
