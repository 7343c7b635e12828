package gsm

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/prl-project/prl/stages/envserver/env"
)

// load reads problems from a JSONL file. An error names the file and the line. A question that stands there twice with one answer
// counts once; with two, it is an error.
func (c Config) load() ([]task, error) {
	file, err := os.Open(c.File)
	if err != nil {
		return nil, fmt.Errorf("file: %w", err)
	}
	defer file.Close()
	var tasks []task
	at := map[string]int{} // line of a question
	known := map[string]string{}
	err = env.Lines(c.File, file, func(n int, line []byte) error {
		t, err := c.problem(line)
		if err != nil {
			return err
		}
		if first, ok := at[t.Question]; ok {
			if known[t.Question] != t.Answer {
				return fmt.Errorf("the question of line %d with another answer, %s instead of %s", first, t.Answer, known[t.Question])
			}
			return nil
		}
		at[t.Question], known[t.Question] = n, t.Answer
		tasks = append(tasks, t)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(tasks) == 0 {
		return nil, fmt.Errorf("%s has no problem", c.File)
	}
	return tasks, nil
}

// problem reads a line.
func (c Config) problem(line []byte) (task, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil {
		return task{}, fmt.Errorf("not a JSON object: %w", err)
	}
	question, err := text(fields, c.Question)
	if err != nil {
		return task{}, err
	}
	answer, err := text(fields, c.Answer)
	if err != nil {
		return task{}, err
	}
	v, ok := truth(answer)
	if !ok {
		return task{}, fmt.Errorf("field %q is not one number: %.100q (an explanation may come before #### 42)", c.Answer, answer)
	}
	return task{Question: question, Answer: v.RatString()}, nil
}

// text is a field that is a string or a number.
func text(fields map[string]json.RawMessage, name string) (string, error) {
	raw, ok := fields[name]
	if !ok {
		return "", fmt.Errorf("no field %q", name)
	}
	var s string
	if json.Unmarshal(raw, &s) == nil && s != "" {
		return s, nil
	}
	var n json.Number
	if json.Unmarshal(raw, &n) == nil && n != "" {
		return n.String(), nil
	}
	return "", fmt.Errorf("field %q is neither text nor a number: %.100s", name, raw)
}
