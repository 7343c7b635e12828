package scorer

import (
	"fmt"
	"math"
	"testing"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/scorer/advantage"
)

// A game: two players with a view each, of whom the second is rewarded by itself and spoke in two branches; a judge that
// has the reward of the rollout. All share the rules, and the second's branches share a reply.
func game(group int64, size, rollout int, reward, second float64) *schemas.Trace {
	t := trace(group, size, rollout, reward)
	t.Nodes = []schemas.Node{
		prompt(-1, 1, 2),
		answer(0, 10, 3), // of the first
		prompt(0, 20, 1),
		answer(2, 30, 4), // of the second
		answer(3, 40, 2), // and on
		answer(3, 50, 3), // and on, otherwise
		answer(0, 60, 2), // of the judge
	}
	for i, agent := range []string{1: "first", 4: "second", 5: "second", 6: "judge"} {
		t.Nodes[i].Agent = agent
	}
	t.Nodes[4].Reward, t.Nodes[5].Reward = new(second), new(second+1)
	return t
}

func TestMembers(t *testing.T) {
	r := newRollout(game(0, 1, 0, 5, 7))
	var got []string
	for _, m := range r.members {
		got = append(got, fmt.Sprintf("%s %v %d %+v", m.Agent, *m.Reward, m.Sampled, m.Size))
	}
	// The reply that the second's branches share belongs to the first of them, and to the size of both.
	want := []string{
		"first 5 2 {Output:2 Total:5 Turns:1}",
		"second 7 4 {Output:4 Total:9 Turns:2}",
		"second 8 2 {Output:5 Total:10 Turns:2}",
		"judge 5 1 {Output:1 Total:4 Turns:1}",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("members\n%v, want\n%v", got, want)
	}
	samples := samplesOf(r.trace, nil, advantage.Credit{RL: true, All: 1}, advantage.Credit{RL: true, Tokens: []float32{2, 3, 4, 5}},
		advantage.Credit{RL: true, Tokens: []float32{6, 7}}, advantage.Credit{})
	if len(samples) != 3 {
		t.Fatalf("%d samples, the judge is not trained", len(samples))
	}
	for i, want := range []string{"first [0 0 1 1 0]", "second [0 0 0 2 3 4 0 5 0]", "second [0 0 0 0 0 0 0 6 7 0]"} {
		if got := fmt.Sprint(samples[i].Agent, " ", samples[i].Advantages.Values()); got != want {
			t.Errorf("sample %d: %s, want %s", i, got, want)
		}
	}
}

// Agents are compared with their like in the other rollouts.
func TestAgentsOfAGroup(t *testing.T) {
	sg := score(t, DefaultConfig(), game(0, 2, 0, 0, 10), game(0, 2, 1, 1, 20))
	want := map[string]float32{"0 first": -0.5, "0 second 1": -5.5, "0 second 2": -4.5, "0 judge": -0.5, "1 first": 0.5, "1 second 1": 4.5, "1 second 2": 5.5, "1 judge": 0.5}
	if len(sg.Samples) != len(want) {
		t.Fatalf("%d samples", len(sg.Samples))
	}
	for _, s := range sg.Samples {
		key := fmt.Sprint(s.RolloutIndex, " ", s.Agent)
		if s.Agent == "second" {
			key += fmt.Sprint(" ", s.Branch)
		}
		got := float32(0)
		for _, a := range s.Advantages.Values() {
			if a != 0 {
				got = a
			}
		}
		if got != want[key] {
			t.Errorf("%s: advantage %v, want %v", key, got, want[key])
		}
	}
}

// Agents without a reward of their own share the rollout's, each once however many branches it has.
func TestAgentsShareAReward(t *testing.T) {
	tr := game(0, 1, 0, 5, 7)
	tr.Nodes[4].Reward, tr.Nodes[5].Reward = nil, nil
	r := newRollout(tr)
	if len(r.members) != 3 || r.members[1].Sampled != 6 || *r.members[1].Reward != 5 || r.members[1].Size.Turns != 3 {
		t.Errorf("%+v", r.members)
	}
}

func TestTokenRewards(t *testing.T) {
	tr := &schemas.Trace{Nodes: []schemas.Node{
		{Parent: -1, Mask: schemas.Uint8s{0, 0}},
		{Parent: 0, Mask: schemas.Uint8s{1}},
		{Parent: 1, Mask: schemas.Uint8s{1, 0, 1}, TokenRewards: schemas.PackFloat32s([]float32{1, 2, 3})},
		{Parent: 2, Mask: schemas.Uint8s{1}},
	}}
	m := newRollout(tr).members[0]
	nan := func(i int) bool { return math.IsNaN(float64(m.TokenRewards[i])) }
	if m.Sampled != 4 || len(m.TokenRewards) != 4 || !nan(0) || m.TokenRewards[1] != 1 || m.TokenRewards[2] != 3 || !nan(3) {
		t.Errorf("%d sampled, rewards %v", m.Sampled, m.TokenRewards)
	}
	tr.Nodes[2].TokenRewards = nil
	if m := newRollout(tr).members[0]; m.TokenRewards != nil {
		t.Errorf("rewards %v of no token", m.TokenRewards)
	}
}
