package replay

import (
	"testing"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/envs/colorcodeword"
	"github.com/prl-project/prl/stages/envserver/envs/twoplayer"
)

// spoken makes a trace of messages; what an agent says follows on what it has seen.
func spoken(task string, messages ...schemas.Node) *schemas.Trace {
	t := &schemas.Trace{Env: "e", GroupSize: 1, Task: task}
	last := map[string]int{}
	for i, n := range messages {
		n.Parent = -1
		if p, ok := last[n.Agent]; ok {
			n.Parent = p
		}
		if last[n.Agent] = i; n.Role == "assistant" {
			n.TokenIDs, n.Mask, n.Logprobs = schemas.PackInt32s([]int32{1}), []byte{1}, make([]byte, 4)
		}
		t.Nodes = append(t.Nodes, n)
	}
	return t
}

func rescored(t *testing.T, e env.Rescorer, trace *schemas.Trace) *schemas.Trace {
	t.Helper()
	again, err := Rescorer{Env: e, Version: "2"}.Rescore(t.Context(), trace)
	if err != nil || len(again.Errors) > 0 {
		t.Fatalf("%+v, %v", again.Errors, err)
	}
	return again
}

// Every agent's branch gets its reward anew.
func TestRescoreOfAgents(t *testing.T) {
	e, err := twoplayer.New(twoplayer.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	node := func(agent, role, content string) schemas.Node {
		return schemas.Node{Agent: agent, Role: role, Content: content}
	}
	trace := spoken(`{"items":[3,1,2],"first":[1,3,2],"second":[2,0,2]}`,
		node("first", "system", "3 1 2 worth 1 3 2"), node("first", "user", "-"), node("first", "assistant", "1 1 0"),
		node("second", "system", "3 1 2 worth 2 0 2"), node("second", "user", "2 0 2"), node("second", "assistant", "deal"))
	trace.Nodes[2].Reward = new(9.0)
	again := rescored(t, e, trace)
	first, second := again.Nodes[2].Reward, again.Nodes[5].Reward
	if first == nil || second == nil || *first != 0.4 || *second != 0.8 || *again.Rewards["second/share"] != 0.8 || *trace.Nodes[2].Reward != 9 {
		t.Errorf("rewards %v and %v, components %v", first, second, again.Rewards)
	}
	trace.Nodes[5].Parent = 2 // on the other's branch
	if again, err := (Rescorer{Env: e}).Rescore(t.Context(), trace); err != nil || len(again.Errors) != 1 || again.Errors[0].Type != errorBranched {
		t.Errorf("%+v, %v", again.Errors, err)
	}
}

// The content of a message with images has their words in front, which the environment does not know.
func TestRescoreOfImages(t *testing.T) {
	e, err := colorcodeword.New(colorcodeword.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	trace := spoken(`{"key":{"red":"K","blue":"T"},"turns":[["blue","red"]]}`,
		schemas.Node{Role: "user", Content: "[image: blue red]\nblue=T red=K", Images: []schemas.Image{{Mime: "image/png", Alt: "blue red", Data: []byte("x"),
			SHA256: "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}}},
		schemas.Node{Role: "assistant", Content: "TX"})
	if again := rescored(t, e, trace); *again.Reward != 0.5 {
		t.Errorf("reward %v", *again.Reward)
	}
}
