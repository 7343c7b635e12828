package env_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
)

// counting asks for the numbers from 1 to Last, one a reply; with Tool, by a call of the tool Say.
type counting struct {
	Last   int
	Tool   bool
	Weight float64
	Shown  bool // an example of a reply, in the prompt
}

func (counting) Info() env.Info                               { return env.Info{Name: "counting", Train: 1, MaxTurns: 10} }
func (counting) Task(env.Split, int) (json.RawMessage, error) { return json.RawMessage(`{}`), nil }

func (c counting) Start(context.Context, json.RawMessage, int64) (env.Episode, error) {
	if c.Tool {
		return &calls{count{counting: c}}, nil
	}
	return &count{counting: c}, nil
}

type count struct {
	counting
	said, right int
}

func (e *count) Prompt() []env.Message {
	if e.Shown {
		return []env.Message{env.System("Count."), env.User("such as"), env.Assistant("1"), env.User("begin")}
	}
	return []env.Message{env.System("Count."), env.User("begin")}
}

func (e *count) Reply(_ context.Context, reply env.Message) (env.Turn, error) {
	e.say(reply.Content)
	if e.said == e.Last {
		return env.Turn{Done: true}, nil
	}
	return env.Turn{Messages: []env.Message{env.User(fmt.Sprint("after ", e.said))}}, nil
}

func (e *count) say(text string) {
	if e.said++; text == fmt.Sprint(e.said) {
		e.right++
	}
}

func (e *count) Score(context.Context) (env.Score, error) {
	return env.Score{Rewards: env.Rewards{"right": env.Weighted(float64(e.right), e.Weight)}}, nil
}

type calls struct{ count }

type sayArgs struct {
	_ struct{} `tool:"Say a number."`
	N string   `json:"n"`
}

func (e *calls) Say(_ context.Context, args sayArgs) (string, error) {
	e.say(args.N)
	return "heard", nil
}

func (e *calls) Done() bool { return e.said == e.Last }

func TestRescore(t *testing.T) {
	call := func(id, name, arguments string) env.Message {
		return env.Message{Role: env.RoleAssistant, Content: "…", ToolCalls: []env.ToolCall{{ID: id, Name: name, Arguments: arguments}}}
	}
	answer := func(id, text string) env.Message {
		return env.Message{Role: env.RoleTool, Content: text, ToolCallID: id}
	}
	played := []env.Message{env.System("Count."), env.User("begin"), env.Assistant("1"), env.User("after 1"), env.Assistant("3")}
	shown := []env.Message{env.System("Count."), env.User("such as"), env.Assistant("1"), env.User("begin"), env.Assistant("1"), env.User("after 1"), env.Assistant("3")}
	tests := []struct {
		name     string
		e        counting
		messages []env.Message
		cut      bool
		want     float64
		diverged bool
	}{
		{"as recorded", counting{Last: 2, Weight: 1}, played, false, 1, false},
		{"other weight", counting{Last: 2, Weight: 5}, played, false, 5, false},
		{"cut", counting{Last: 4, Weight: 1}, append(played[:len(played):len(played)], env.User("after 2")), true, 1, false},
		{"goes on", counting{Last: 4, Weight: 1}, played, false, 0, true},
		{"no reply", counting{Last: 4, Weight: 1}, played[:2], true, 0, false},
		{"over before", counting{Last: 1, Weight: 1}, played, false, 0, true},
		{"another prompt", counting{Last: 2, Weight: 1}, append([]env.Message{env.System("Count!")}, played[1:]...), false, 0, true},
		{"another answer", counting{Last: 2, Weight: 1}, []env.Message{played[0], played[1], played[2], env.User("after 7"), played[4]}, false, 0, true},
		{"reply in the prompt", counting{Last: 2, Weight: 1, Shown: true}, shown, false, 1, false},
		{"reply in the prompt, no other", counting{Last: 2, Weight: 1, Shown: true}, shown[:4], true, 0, false},
		{"another reply in the prompt", counting{Last: 2, Weight: 1, Shown: true}, append([]env.Message{shown[0], shown[1], env.Assistant("2")}, shown[3:]...), false, 0, true},
		{"no reply in the prompt any more", counting{Last: 2, Weight: 1}, shown, false, 0, true},
		{"a longer prompt", counting{Last: 2, Weight: 1, Shown: true}, played[:3], true, 0, true},
		{"a message too many", counting{Last: 3, Weight: 1}, []env.Message{played[0], played[1], env.User("and"), env.User("after 1"), played[4]}, true, 0, true},
		{"tools", counting{Last: 2, Weight: 1, Tool: true}, []env.Message{
			env.System("Count.\n\nTools: Say"), env.User("begin"), call("a", "Say", `{"n":"1"}`), answer("a", "heard"), call("b", "Say", `{"n":"2"}`),
		}, false, 2, false},
		{"a call nobody can read", counting{Last: 2, Weight: 1, Tool: true}, []env.Message{
			env.System("Count.\n\nTools: Say"), env.User("begin"), call("a", "", `{"n":`), answer("a", "error: the tool call cannot be read: in the runner's words"), call("b", "Say", `{"n":"1"}`),
		}, true, 1, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			score, err := env.Rescore(t.Context(), tt.e, json.RawMessage(`{}`), 1, tt.messages, !tt.cut)
			if tt.diverged {
				if !errors.Is(err, env.ErrDiverged) {
					t.Errorf("%+v, %v", score, err)
				}
				return
			}
			if err != nil || *score.Rewards.Total() != tt.want {
				t.Errorf("%+v, %v; want %v", score.Rewards, err, tt.want)
			}
		})
	}
}
