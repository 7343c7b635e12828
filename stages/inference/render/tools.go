package render

import (
	"encoding/json"
	"fmt"
)

// maxToolText bounds, in bytes, what the policy is told of its tools: lines can be much more than the JSON that is read.
const maxToolText = 1 << 20

// describeAll are the tools as templates get them.
func describeAll(tools []Tool, indent int) ([]string, error) {
	texts, size := make([]string, len(tools)), 0
	for i, t := range tools {
		var err error
		if texts[i], err = describe(t, indent); err != nil {
			return nil, err
		}
		if size += len(texts[i]); size > maxToolText {
			return nil, fmt.Errorf("the descriptions of the tools have over %d bytes", maxToolText)
		}
	}
	return texts, nil
}

// describe is a tool as templates get it, written by tojson.
func describe(t Tool, indent int) (string, error) {
	parameters := t.Parameters
	if parameters == nil {
		parameters = json.RawMessage("{}")
	}
	// A struct keeps the order of its fields.
	type function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	}
	data, err := json.Marshal(struct {
		Type     string   `json:"type"`
		Function function `json:"function"`
	}{"function", function{t.Name, t.Description, parameters}})
	if err != nil {
		return "", fmt.Errorf("schema of tool %s: %w", t.Name, err)
	}
	return toJSON(data, indent)
}
