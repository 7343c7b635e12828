package envserver

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/scorer"
	"github.com/prl-project/prl/stages/scorer/advantage"
)

// duel is an environment of two agents who speak in turns and are rewarded for how much they say. The rollout's own reward is
// how often somebody spoke.
type duel struct {
	game
	agents []string
	rounds int
	own    bool // the second agent has no reward of its own
}

func (d *duel) Info() env.Info {
	i := d.game.Info()
	i.MaxTurns = 10
	return i
}

func (d *duel) Start(context.Context, json.RawMessage, int64) (env.Episode, error) {
	return &bout{duel: d, said: map[string]int{}}, nil
}

type bout struct {
	*duel
	turns int
	said  map[string]int
}

func (b *bout) Agents() []string      { return b.agents }
func (b *bout) Prompt() []env.Message { return []env.Message{env.User("begin, " + b.agents[0])} }
func (b *bout) PromptOf(agent string) []env.Message {
	return []env.Message{env.System("join, " + agent)}
}

func (b *bout) Reply(_ context.Context, r env.Message) (env.Turn, error) {
	b.said[r.Agent] += len(r.Content)
	b.turns++
	next := b.agents[b.turns%len(b.agents)]
	return env.Turn{Agent: next, Messages: []env.Message{env.User(r.Agent + " said " + r.Content)}, Done: b.turns == b.rounds}, nil
}

func (b *bout) Score(context.Context) (env.Score, error) {
	s := env.Score{Rewards: env.Rewards{"turns": env.Value(float64(b.turns))}, Agents: map[string]env.Rewards{}}
	for i, agent := range b.agents {
		if i == 0 || !b.own {
			s.Agents[agent] = env.Rewards{"letters": env.Weighted(float64(b.said[agent]), 2)}
		}
	}
	return s, nil
}

func newDuel(rounds int) *duel { return &duel{agents: []string{"left", "right"}, rounds: rounds} }

// Each agent's conversation is a tree of its own, which the model continues token by token as for one.
func TestAgentsHaveConversationsOfTheirOwn(t *testing.T) {
	m := says(tokenizer(t), "a", "bb", "ccc")
	trace := playOne(t, testPlayer(t, newDuel(3), m), testTask())
	scored(t, trace)
	var got []string
	for i, n := range trace.Nodes {
		got = append(got, fmt.Sprintf("%d<%d %s %s:%s", i, n.Parent, n.Agent, n.Role, n.Content))
	}
	want := []string{
		"0<-1 left user:begin, left",
		"1<0 left assistant:a",
		"2<-1 right system:join, right",
		"3<2 right user:left said a",
		"4<3 right assistant:bb",
		"5<1 left user:right said bb",
		"6<5 left assistant:ccc",
		"7<4 right user:left said ccc",
	}
	equal(t, "nodes", got, want)
	for call, at := range []int{1, 4, 6} {
		var path []int32
		for _, i := range branchTo(trace.Nodes, at) {
			path = append(path, trace.Nodes[i].TokenIDs.Values()...)
		}
		asked := m.requests[call]
		equal(t, "what the model was asked to continue", asked.Tokens, path[:len(asked.Tokens)])
		if len(path) <= len(asked.Tokens) || asked.Seed != mix(trace.Seed, call) {
			t.Errorf("call %d: %d tokens asked of %d, seed %d", call, len(asked.Tokens), len(path), asked.Seed)
		}
	}
	if n := trace.Nodes[7]; n.TokenIDs.Len() != 0 {
		t.Error("what nobody saw has tokens")
	}
	// The reward of an agent stands at the leaf of its branch.
	rewards := map[int]float64{}
	for i, n := range trace.Nodes {
		if n.Reward != nil {
			rewards[i] = *n.Reward
		}
	}
	if !maps.Equal(rewards, map[int]float64{6: 8, 7: 4}) || *trace.Reward != 3 {
		t.Errorf("rewards at %v, of the rollout %v", rewards, *trace.Reward)
	}
	names := slices.Sorted(maps.Keys(trace.Rewards))
	equal(t, "components", names, []string{"left/letters", "right/letters", "turns"})
	if *trace.Rewards["right/letters"] != 2 {
		t.Errorf("%v", *trace.Rewards["right/letters"])
	}
}

// Where a server saw other tokens than it was asked to continue, that is a branch of the agent whose turn it was.
func TestBranchOfAnAgent(t *testing.T) {
	tok := tokenizer(t)
	m := &model{answer: func(_ context.Context, call int, r inference.Request) (inference.Completion, error) {
		c := spoken(tok, "say", r)
		if call == 2 {
			c.Prompt = append(slices.Clone(r.Tokens[:1]), append(tok.Encode("other"), r.Tokens[1:]...)...)
		}
		return c, nil
	}}
	trace := playOne(t, testPlayer(t, newDuel(4), m), testTask())
	scored(t, trace)
	for _, path := range branches(trace.Nodes) {
		for _, i := range path {
			if trace.Nodes[i].Agent != trace.Nodes[path[0]].Agent {
				t.Errorf("path %v mixes agents", path)
			}
		}
		if leaf := trace.Nodes[path[len(path)-1]]; leaf.Reward == nil || *leaf.Reward != 12 {
			t.Errorf("the leaf of %v has the reward %v", path, leaf.Reward)
		}
	}
	if n := len(branches(trace.Nodes)); n != 3 {
		t.Errorf("%d branches, want two of left and one of right", n)
	}
	seen := append(slices.Clone(m.requests[2].Tokens[:1]), tok.Encode("other")...)
	for _, path := range branches(trace.Nodes)[:3] {
		var tokens []int32
		for _, i := range path {
			tokens = append(tokens, trace.Nodes[i].TokenIDs.Values()...)
		}
		if len(tokens) > len(seen) && slices.Equal(tokens[:len(seen)], seen) {
			return
		}
	}
	t.Error("what the server saw is not in the trace")
}

// The scorer's algorithms take each agent's samples by its own reward: rae against the agent's moving average.
func TestTwoAgentsGiveSamplesWithTheirOwnAdvantages(t *testing.T) {
	for _, test := range []struct {
		name, algorithm string
		own             bool
		want            map[string]string
	}{
		// The averages begin at 0 and keep 0.95: rollouts come in order, each agent's own.
		{"rae", advantage.RAE, false, map[string]string{
			"0 left": "2.00", "0 right": "4.00", "1 left": "1.90", "1 right": "3.80", "2 left": "5.80", "2 right": "7.61"}},
		{"rae, one has the rollout's", advantage.RAE, true, map[string]string{
			"0 left": "2.00", "0 right": "2.00", "1 left": "1.90", "1 right": "1.90", "2 left": "5.80", "2 right": "1.80"}},
		{"grpo compares an agent with itself in the other rollouts", advantage.GRPO, false, map[string]string{
			"0 left": "-1.33", "0 right": "-1.33", "1 left": "-1.33", "1 right": "-1.33", "2 left": "2.67", "2 right": "2.67"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := scorer.DefaultConfig()
			cfg.Advantage = test.algorithm
			run := pipeline.DefaultRunConfig()
			run.TracePartitions = 1
			factory := scorer.New(run, cfg, 2)
			r := pipelinetest.NewRunner(t, func(state []byte) (pipeline.Core, error) { return factory(0, state) })
			d := newDuel(2)
			d.own = test.own
			var groups []*schemas.SampleGroup
			for i := range 3 {
				task := testTask()
				task.GroupSize, task.RolloutIndex = 3, i
				more := strings.Repeat("xx", i/2)
				for _, e := range r.Feed(t, pipeline.TopicTraces, playOne(t, testPlayer(t, d, says(tokenizer(t), "a"+more, "bb"+more)), task)) {
					if e.Topic == pipeline.TopicSamples {
						groups = append(groups, e.Value.(*schemas.SampleGroup))
					}
				}
			}
			if len(groups) != 1 || groups[0].Reason != "" {
				t.Fatalf("groups %+v", groups)
			}
			got := map[string]string{}
			for _, s := range groups[0].Samples {
				for k, a := range s.Advantages.Values() {
					if s.Mask[k] == 1 {
						got[fmt.Sprintf("%d %s", s.RolloutIndex, s.Agent)] = fmt.Sprintf("%.2f", a)
					}
				}
			}
			if !maps.Equal(got, test.want) {
				t.Errorf("advantages %v, want %v", got, test.want)
			}
		})
	}
}

// A group scorer sees all agents' messages in order, knows whose each is, and its rewards replace the rollout's own.
func TestGroupOfAgents(t *testing.T) {
	g := &duelGroup{duel: newDuel(2)}
	traces := testPlayer(t, g, says(tokenizer(t), "x")).play(t.Context(), groupTask(), nil)
	for i, trace := range traces {
		scored(t, trace)
		if last := trace.Nodes[len(trace.Nodes)-2]; last.Agent != "right" || *last.Reward != float64(i) || trace.Nodes[1].Reward != nil {
			t.Errorf("rollout %d: %+v", i, trace.Nodes)
		}
	}
	if want := "left:begin, left|left:x|right:join, right|right:left said x|right:x|left:right said x"; g.saw != want {
		t.Errorf("it saw %s", g.saw)
	}
	g.stranger = true
	failed(t, testPlayer(t, g, says(tokenizer(t), "x")).play(t.Context(), groupTask(), nil)[0], errorEnvironment, `"nobody"`)
}

type duelGroup struct {
	*duel
	saw      string
	stranger bool
}

func (g *duelGroup) ScoreGroup(_ context.Context, _ json.RawMessage, group []env.Rollout) ([]env.Score, error) {
	scores := make([]env.Score, len(group))
	for i, r := range group {
		var parts []string
		for _, m := range r.Messages {
			parts = append(parts, m.Agent+":"+m.Content)
		}
		g.saw = strings.Join(parts, "|")
		agent := "right"
		if g.stranger {
			agent = "nobody"
		}
		scores[i] = env.Score{Rewards: env.Rewards{"r": env.Value(0)}, Agents: map[string]env.Rewards{agent: {"rank": env.Value(float64(i))}}}
	}
	return scores, nil
}
