package env_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Sums asks for the sum of two digits.
type Sums struct{}

func (Sums) Info() env.Info {
	return env.Info{Name: "sums", Version: "1", Train: 80, Eval: 20, Disjoint: true, MaxTurns: 1}
}

func (Sums) Task(split env.Split, index int) (json.RawMessage, error) {
	n := index + index/4 // of every five sums, four are for training ...
	if split == env.Eval {
		n = 5*index + 4 // ... and the fifth is held out
	}
	return json.Marshal(sum{A: n / 10, B: n % 10})
}

func (Sums) Start(_ context.Context, task json.RawMessage, _ int64) (env.Episode, error) {
	s := &sum{}
	return s, json.Unmarshal(task, s)
}

type sum struct {
	A, B  int
	right bool
}

func (s *sum) Prompt() []env.Message { return []env.Message{env.User(fmt.Sprintf("%d+%d", s.A, s.B))} }

func (s *sum) Reply(_ context.Context, reply env.Message) (env.Turn, error) {
	s.right = reply.Content == strconv.Itoa(s.A+s.B)
	return env.Turn{Done: true}, nil
}

func (s *sum) Score(context.Context) (env.Score, error) {
	return env.Score{Rewards: env.Rewards{"right": env.Value(env.Bool(s.right))}}, nil
}

// A complete environment, and one of its episodes as a runner plays it.
func Example() {
	ctx := context.Background()
	task, _ := Sums{}.Task(env.Eval, 1)
	session, _ := env.Begin(ctx, Sums{}, task, 0)
	fmt.Println(string(task), session.Prompt()[0].Content)
	turn, _ := session.Reply(ctx, env.Assistant("9"))
	score, _ := session.Score(ctx)
	fmt.Println(turn.Done, *score.Rewards.Total(), score.Stop)
	// Output:
	// {"A":0,"B":9} 0+9
	// true 1 done
}
