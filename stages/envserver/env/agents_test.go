package env

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// pair is an episode of two agents that speak in turns; hooks that are nil do that.
type pair struct {
	*scripted
	agents []string
	turn   func(reply Message) Turn
	heard  []string
}

func (p *pair) Agents() []string { return p.agents }

func (p *pair) PromptOf(agent string) []Message { return []Message{System("You are " + agent + ".")} }

func (p *pair) Reply(_ context.Context, reply Message) (Turn, error) {
	p.heard = append(p.heard, reply.Agent+":"+reply.Content)
	if p.turn != nil {
		return p.turn(reply), nil
	}
	next := p.agents[len(p.heard)%len(p.agents)]
	return Turn{Agent: next, Messages: []Message{User("said: " + reply.Content)}}, nil
}

func (p *pair) Look(context.Context, struct{}) (ToolResult, error) {
	return ToolResult{Text: "seen", Images: []Image{{MIME: "image/png", Data: []byte("x"), Alt: "a dot"}}}, nil
}

func newPair(agents ...string) *pair {
	p := &pair{scripted: script(), agents: agents}
	p.maxTurns = 4
	p.start = func() (Episode, error) { return p, nil }
	return p
}

// Each agent gets its prompt in front of its first messages, and every message says whose it is.
func TestAgentsSpeakInTurns(t *testing.T) {
	p := newPair("left", "right")
	s := begin(t, p)
	if got := s.Prompt(); len(got) != 1 || got[0].Agent != "left" || !reflect.DeepEqual(s.Agents(), p.agents) {
		t.Fatalf("prompt %+v, agents %q", got, s.Agents())
	}
	var got []string
	for i := range 3 {
		turn, err := s.Reply(t.Context(), Assistant(fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range turn.Messages {
			got = append(got, fmt.Sprintf("%s %s:%s", turn.Agent, m.Agent, m.Content))
		}
	}
	want := []string{"right right:You are right.", "right right:said: 0", "left left:said: 1", "right right:said: 2"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("shown %q, want %q", got, want)
	}
	if want := []string{"left:0", "right:1", "left:2"}; !reflect.DeepEqual(p.heard, want) {
		t.Errorf("heard %q, want %q", p.heard, want)
	}
	turn, err := s.Reply(t.Context(), Message{ToolCalls: []ToolCall{{ID: "c", Name: "Look", Arguments: "{}"}}})
	if err != nil || turn.Agent != "right" || turn.Messages[0].Agent != "right" || turn.Messages[0].Content != "seen" || len(turn.Messages[0].Images) != 1 {
		t.Errorf("a tool's answer goes to who called it: %+v, %v", turn, err)
	}
	if !turn.Done || !turn.Truncated {
		t.Errorf("four replies of all agents together are the limit: %+v", turn)
	}
}

func TestAgentsOnlyNeedAPrompt(t *testing.T) {
	p := newPair("left", "right")
	p.turn = func(Message) Turn { return Turn{Agent: "right"} }
	s := begin(t, p)
	if turn, err := s.Reply(t.Context(), Assistant("a")); err != nil || len(turn.Messages) != 1 {
		t.Errorf("%+v, %v", turn, err)
	}
	if _, err := s.Reply(t.Context(), Assistant("b")); err == nil || !strings.Contains(err.Error(), "without a message") {
		t.Errorf("the prompt comes once: %v", err)
	}
}

func TestAgentsThatAreNone(t *testing.T) {
	for _, agents := range [][]string{{}, {""}, {"a", "a"}, {"a", "b/c"}} {
		if _, err := Begin(t.Context(), newPair(agents...), json.RawMessage(`{}`), 0); err == nil {
			t.Errorf("agents %q begin", agents)
		}
	}
	p := newPair("left", "right")
	p.turn = func(Message) Turn { return Turn{Agent: "middle", Done: true} }
	if _, err := begin(t, p).Reply(t.Context(), Assistant("a")); err == nil || !strings.Contains(err.Error(), `"middle"`) {
		t.Errorf("an agent that is none speaks: %v", err)
	}
	one := script()
	one.reply = func(Message) (Turn, error) { return Turn{Agent: "left", Done: true}, nil }
	if _, err := begin(t, one).Reply(t.Context(), Assistant("a")); err == nil {
		t.Error("an episode without agents names one")
	}
}

func TestScoreOfAgents(t *testing.T) {
	for _, test := range []struct {
		name  string
		score Score
		want  string
	}{
		{"of one", Score{Rewards: Rewards{"deal": Value(1)}, Agents: map[string]Rewards{"left": {"won": Value(1)}}}, ""},
		{"unknown", Score{Agents: map[string]Rewards{"middle": {"won": Value(1)}}}, `"middle"`},
		{"NaN", Score{Agents: map[string]Rewards{"left": {"won": Value(nan())}}}, "not finite"},
		{"none applies", Score{Rewards: Rewards{"deal": Value(1)}, Agents: map[string]Rewards{"left": {"won": NotApplicable(1)}}}, "leave the agent out"},
		{"nothing applies", Score{Rewards: Rewards{"deal": NotApplicable(1)}, Agents: map[string]Rewards{"left": {"won": NotApplicable(1)}}}, ""},
	} {
		p := newPair("left", "right")
		p.score = func() (Score, error) { return test.score, nil }
		_, err := begin(t, p).Score(t.Context())
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

func nan() float64 { zero := 0.0; return zero / zero }

func TestImages(t *testing.T) {
	dot := Image{MIME: "image/png", Data: []byte("x"), Alt: "a dot"}
	for _, test := range []struct {
		m    Message
		want string
	}{
		{User("what?"), "what?"},
		{Message{Content: "what?\n", Images: []Image{dot}}, "[image: a dot]\nwhat?\n"},
		{Message{Images: []Image{dot, dot}}, "[image: a dot]\n[image: a dot]"},
	} {
		text, err := test.m.Text()
		if err != nil || text != test.want {
			t.Errorf("%q, %v, want %q", text, err, test.want)
		}
		back := Message{Images: test.m.Images}
		if back.SetText(text); back.Content != test.m.Content {
			t.Errorf("%q is read back as %q", text, back.Content)
		}
	}
	if _, err := (Message{Images: []Image{{MIME: "image/png", Data: []byte("x")}}}).Text(); err == nil || !strings.Contains(err.Error(), "no alt text") {
		t.Errorf("an image without alt text: %v", err)
	}
	for name, bad := range map[string]Image{
		"no data":   {MIME: "image/png"},
		"no format": {Data: []byte("x")},
		"too large": {MIME: "image/png", Data: make([]byte, LargestImage+1)},
	} {
		e := script()
		e.prompt = []Message{{Role: RoleUser, Images: []Image{dot, bad}}}
		if _, err := Begin(t.Context(), e, json.RawMessage(`{}`), 0); err == nil {
			t.Errorf("%s: it begins", name)
		}
		e = script()
		e.reply = func(Message) (Turn, error) {
			return Turn{Messages: []Message{{Role: RoleUser, Images: []Image{bad}}}}, nil
		}
		if _, err := begin(t, e).Reply(t.Context(), Assistant("a")); err == nil {
			t.Errorf("%s: it goes on", name)
		}
	}
}

// The messages of an episode stay its own: a runner's names and an agent's prompt do not get into them.
func TestMessagesAreCopied(t *testing.T) {
	p := newPair("left", "right")
	own := []Message{User("hello")}
	p.turn = func(Message) Turn { return Turn{Messages: own} }
	s := begin(t, p)
	if _, err := s.Reply(t.Context(), Assistant("a")); err != nil || own[0].Agent != "" || p.prompt[0].Agent != "" {
		t.Errorf("%+v, %+v, %v", own, p.prompt, err)
	}
}
