package judge

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// topics are those of the prompts that are here without a file.
var topics = strings.Split(`a balance, a battery, a bridge, a camera, a candle, a circle, a clock, a cloud, a comet, a compass, a computer, a desert, a forest,
	a glacier, a map, a mirror, a motor, a mountain, a piano, a poem, a prime number, a pulley, a rainbow, a recipe, a river, a sail, a seed, a shadow,
	a telescope, a thermometer, a tide, a triangle, a vaccine, a volcano, a wheel, a window, an anchor, an atom, an echo, an island`, ",")

func builtin() []task {
	var tasks []task
	for _, topic := range topics {
		tasks = append(tasks, task{Prompt: "Explain in one sentence what " + strings.TrimSpace(topic) + " is."})
	}
	return tasks
}

// load reads prompts from a JSONL file. An error names the file and the line. A prompt that stands there twice counts once.
func (c Config) load() ([]task, error) {
	if c.File == "" {
		return builtin(), nil
	}
	file, err := os.Open(c.File)
	if err != nil {
		return nil, fmt.Errorf("file: %w", err)
	}
	defer file.Close()
	var tasks []task
	seen := map[string]bool{}
	err = env.Lines(c.File, file, func(_ int, line []byte) error {
		t, err := c.line(line)
		if err == nil && !seen[t.Prompt] {
			seen[t.Prompt] = true
			tasks = append(tasks, t)
		}
		return err
	})
	return tasks, err
}

func (c Config) line(text []byte) (t task, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return t, fmt.Errorf("not a JSON object: %w", err)
	}
	if err := json.Unmarshal(fields[c.PromptField], &t.Prompt); err != nil || t.Prompt == "" {
		return t, fmt.Errorf("field %q is no text", c.PromptField)
	}
	if raw, ok := fields[c.ReferenceField]; ok && string(raw) != "null" {
		if err := json.Unmarshal(raw, &t.Reference); err != nil {
			return t, fmt.Errorf("field %q is no text", c.ReferenceField)
		}
	}
	return t, nil
}
