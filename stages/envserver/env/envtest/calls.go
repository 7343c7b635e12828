package envtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Typed calls the tools with arguments that fit their schemas, whatever they mean, several at once now and then, and says a word
// between. Where there are no tools it is [Noise].
func Typed(rng *rand.Rand, conversation []env.Message, tools []env.Tool) env.Message {
	if len(tools) == 0 || rng.IntN(8) == 0 {
		return Noise(rng, conversation, tools)
	}
	m := env.Assistant("")
	for k := range 1 + rng.IntN(3) {
		t := tools[rng.IntN(len(tools))]
		var s jsonschema.Schema
		_ = json.Unmarshal(t.Schema, &s) // env.Tools has read it
		m.ToolCalls = append(m.ToolCalls, env.ToolCall{ID: fmt.Sprint("call_", len(conversation), "_", k), Name: t.Name, Arguments: text(value(rng, &s, 0))})
	}
	return m
}

// words are texts that may mean something to somebody, or harm.
var words = []string{"", "a", "0", "crane", "ünï©ode", " x ", "../../etc/passwd", "'; DROP TABLE x; --", "<script>", strings.Repeat("z", 300), "-1", "null"}

// numbers are on the edges of what is counted in.
var numbers = []float64{0, 1, -1, 2, 3, 5, 10, 100, math.MaxInt32, math.MinInt32, 1 << 53}

// value is anything that fits a schema, as far as it is understood.
func value(rng *rand.Rand, s *jsonschema.Schema, depth int) any {
	if len(s.Enum) > 0 {
		return s.Enum[rng.IntN(len(s.Enum))]
	}
	kind := s.Type
	if kind == "" && len(s.Types) > 0 {
		kind = s.Types[rng.IntN(len(s.Types))]
	}
	switch {
	case kind == "object" && depth < 5:
		object := map[string]any{}
		names := make([]string, 0, len(s.Properties))
		for name := range s.Properties {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			if slices.Contains(s.Required, name) || rng.IntN(2) == 0 {
				object[name] = value(rng, s.Properties[name], depth+1)
			}
		}
		return object
	case kind == "array" && s.Items != nil && depth < 5:
		list := []any{}
		for range rng.IntN(4) {
			list = append(list, value(rng, s.Items, depth+1))
		}
		return list
	case kind == "string":
		return words[rng.IntN(len(words))]
	case kind == "integer":
		return int64(numbers[rng.IntN(len(numbers))])
	case kind == "number":
		return numbers[rng.IntN(len(numbers))] / []float64{1, 3}[rng.IntN(2)]
	case kind == "boolean":
		return rng.IntN(2) == 0
	case kind == "object":
		return map[string]any{}
	case kind == "array":
		return []any{}
	}
	return nil
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "{}" // it is made of what JSON has
	}
	return string(b)
}

// huge is how many bytes a call may have that nobody should fail at.
const huge = 1 << 20

// checkCalls makes calls that are wrong in every way: each is answered by a message that begins with "error: ", and the episode
// goes on.
func checkCalls(e env.Environment, _ []Player) error {
	ctx := context.Background()
	task, err := e.Task(env.Train, 0)
	if err != nil {
		return err
	}
	begin := func() (*env.Session, error) { return env.Begin(ctx, e, task, 1) }
	s, err := begin()
	if err != nil {
		return err
	}
	tools := s.Tools()
	if err := s.Close(); err != nil || len(tools) == 0 {
		return err
	}
	for _, call := range wrongCalls(tools) {
		s, err := begin()
		if err != nil {
			return err
		}
		turn, err := s.Reply(ctx, env.Message{Role: env.RoleAssistant, ToolCalls: []env.ToolCall{call}})
		if err == nil && (len(turn.Messages) != 1 || turn.Messages[0].Role != env.RoleTool || turn.Messages[0].ToolCallID != call.ID || !strings.HasPrefix(turn.Messages[0].Content, "error: ")) {
			err = fmt.Errorf("answered by %+v, want a message that begins with \"error: \"", turn.Messages)
		}
		if err == nil {
			_, err = s.Score(ctx)
		}
		if err := errors.Join(err, s.Close()); err != nil {
			return fmt.Errorf("call %s(%.200s): %w", call.Name, call.Arguments, err)
		}
	}
	return nil
}

// wrongCalls are calls of tools that are not there, and of those that are with arguments that no schema allows.
func wrongCalls(tools []env.Tool) (calls []env.ToolCall) {
	add := func(name, arguments string) {
		calls = append(calls, env.ToolCall{ID: fmt.Sprint("call_", len(calls)), Name: name, Arguments: arguments})
	}
	for _, name := range []string{"", "nowhere", "Reply", "Score", "Prompt", "Close", tools[0].Name + " ", strings.Repeat("x", huge)} {
		add(name, "{}")
	}
	for _, t := range tools {
		for _, arguments := range []string{"", "{", "null", "[]", "1", `"x"`, `{"a":1}}`, "{\"\xff\":1}", `{"a":1,"a":2}`, strings.Repeat("[", huge), `{"x":"` + strings.Repeat("y", huge)} {
			add(t.Name, arguments)
		}
		var s jsonschema.Schema
		_ = json.Unmarshal(t.Schema, &s) // env.Tools has read it
		if s.AdditionalProperties != nil {
			add(t.Name, `{"a_property_of_nobody":1}`)
		}
		whole := value(rand.New(rand.NewPCG(1, 1)), &s, 0)
		for _, name := range s.Required {
			object, _ := whole.(map[string]any)
			less := map[string]any{}
			for n, v := range object {
				if n != name {
					less[n] = v
				}
			}
			add(t.Name, text(less))
			if kind := s.Properties[name]; kind != nil && kind.Type != "" {
				less[name] = map[string]any{"wrong": true}
				if kind.Type == "object" {
					less[name] = "wrong"
				}
				add(t.Name, text(less))
			}
		}
	}
	return calls
}
