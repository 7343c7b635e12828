package python

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"

	"github.com/prl-project/prl/stages/envserver/env"
)

// The problems that are here without a file.
//
//go:embed tasks.jsonl
var builtin []byte

// task is the JSON of a task, and a line of a file.
type task struct {
	Prompt   string `json:"prompt"`
	Function string `json:"function"` // that the code has to define
	Tests    []test `json:"tests"`
	Solution string `json:"solution,omitempty"` // code that passes them, for demonstrations
}

// test is a call and what it should return.
type test struct {
	Args []json.RawMessage `json:"args"`
	Want json.RawMessage   `json:"want"`
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// parse reads a task and says what is wrong with it.
func parse(data []byte) (t task, err error) {
	if err := json.Unmarshal(data, &t); err != nil {
		return t, fmt.Errorf("not a task: %w", err)
	}
	switch {
	case t.Prompt == "":
		return t, errors.New(`no field "prompt"`)
	case !identifier.MatchString(t.Function):
		return t, fmt.Errorf(`field "function" is %.100q, want the name of a function`, t.Function)
	case len(t.Tests) == 0:
		return t, errors.New(`field "tests" has no test`)
	}
	for i, test := range t.Tests {
		if test.Args == nil || test.Want == nil {
			return t, fmt.Errorf(`test %d: want "args", a list, and "want"`, i+1)
		}
	}
	return t, nil
}

// load reads the tasks of the configuration. An error names the file and the line.
func (c Config) load() ([]task, error) {
	if c.File == "" {
		return readTasks("the built-in tasks", bytes.NewReader(builtin))
	}
	file, err := os.Open(c.File)
	if err != nil {
		return nil, fmt.Errorf("file: %w", err)
	}
	defer file.Close()
	return readTasks(c.File, file)
}

func readTasks(name string, from io.Reader) ([]task, error) {
	var tasks []task
	at := map[string]int{} // line of a prompt
	err := env.Lines(name, from, func(n int, line []byte) error {
		t, err := parse(line)
		if err != nil {
			return err
		}
		if first, ok := at[t.Prompt]; ok {
			return fmt.Errorf("the prompt of line %d", first)
		}
		at[t.Prompt] = n
		tasks = append(tasks, t)
		return nil
	})
	return tasks, err
}
