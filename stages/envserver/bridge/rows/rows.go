// Package rows holds the tasks of environments that other programs host: JSON objects, of which the field "prompt" is what the
// policy sees first and the rest is for the program.
package rows

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Numbered are n rows {"seed": 0}, {"seed": 1} and so on, for a program that makes up its own tasks.
func Numbered(n int) []json.RawMessage {
	rows := make([]json.RawMessage, n)
	for i := range rows {
		rows[i] = fmt.Appendf(nil, `{"seed":%d}`, i)
	}
	return rows
}

// Load reads the file of that name, with an object a line.
func Load(name string) ([]json.RawMessage, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("file: %w", err)
	}
	defer file.Close()
	return Read(name, file)
}

// Read reads an object a line. An error names the file and the line.
func Read(name string, from io.Reader) ([]json.RawMessage, error) {
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

// Tidy writes rows without spaces and leaves out those that were there before. An error names one that is no object.
func Tidy(rows []json.RawMessage) (tidied []json.RawMessage, err error) {
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

// Deal tidies rows and deals them to the splits; a hash of a row decides where it goes. An error if a split gets none.
func Deal(rows []json.RawMessage, percent int) (map[env.Split][]json.RawMessage, error) {
	rows, err := Tidy(rows)
	if err != nil {
		return nil, err
	}
	tasks := env.Deal(rows, percent, func(row json.RawMessage) string { return string(row) })
	if train, eval := len(tasks[env.Train]), len(tasks[env.Eval]); train == 0 || eval == 0 {
		return nil, fmt.Errorf("%d training and %d eval tasks: give more of them, or change eval_percent = %d", train, eval, percent)
	}
	return tasks, nil
}

// Prompt reads the messages of a task's field "prompt", a text or messages; none if it has no such field.
func Prompt(task json.RawMessage) ([]env.Message, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(task, &fields); err != nil || fields == nil {
		return nil, errors.New("not a JSON object")
	}
	said, ok := fields["prompt"]
	if !ok || string(said) == "null" {
		return nil, nil
	}
	var text string
	if json.Unmarshal(said, &text) == nil {
		return []env.Message{env.User(text)}, nil
	}
	var messages []env.Message
	if err := json.Unmarshal(said, &messages); err != nil || len(messages) == 0 {
		return nil, errors.New(`field "prompt": want a text, or messages with role and content`)
	}
	for _, m := range messages {
		switch m.Role {
		case env.RoleSystem, env.RoleUser, env.RoleAssistant:
		default:
			return nil, fmt.Errorf(`field "prompt": a message of role %q`, m.Role)
		}
	}
	return messages, nil
}

// Observed appends what reset said (nil: nothing) to the last message, which is the user's.
func Observed(messages []env.Message, said *string) ([]env.Message, error) {
	last := len(messages) - 1
	switch {
	case last < 0 && (said == nil || *said == ""):
		return nil, errors.New(`the task has no field "prompt", and reset returned nothing`)
	case last < 0:
		return []env.Message{env.User(*said)}, nil
	case said == nil:
	case messages[last].Role != env.RoleUser:
		return nil, fmt.Errorf(`reset returned text for the last message of "prompt", which is of role %q, not user`, messages[last].Role)
	default:
		messages[last].Content += *said
	}
	return messages, nil
}
