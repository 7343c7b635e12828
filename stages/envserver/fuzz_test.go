package envserver

import (
	"context"
	"math"
	"testing"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
)

// FuzzModel plays a rollout with a model that answers anything: tokens nobody knows, log-probabilities of any kind and
// number, versions in any order, an endless or an empty answer. What comes out is a valid trace, or one that says which
// error it was, and never a reward for an answer that was none.
func FuzzModel(f *testing.F) {
	f.Add([]byte{104, 105, 0}, []byte{1, 2, 3}, int64(0), int64(3), "stop")
	f.Add([]byte{255, 1}, []byte{0}, int64(-1), int64(-1), "length")
	f.Add([]byte{}, []byte{}, int64(7), int64(math.MaxInt64), "")
	f.Add([]byte{250, 250, 250, 250}, []byte{200, 201, 202, 203}, int64(1), int64(2), "abort")
	f.Fuzz(func(t *testing.T, tokens, logprobs []byte, offset, version int64, finish string) {
		m := &model{answer: func(_ context.Context, call int, r inference.Request) (inference.Completion, error) {
			c := inference.Completion{FinishReason: finish, Versions: []schemas.VersionRun{{Offset: int(offset), Version: version}}}
			for _, x := range tokens {
				c.Tokens = append(c.Tokens, int32(int8(x))*int32(call*1000+1))
			}
			for _, x := range logprobs {
				c.Logprobs = append(c.Logprobs, []float32{-float32(x), float32(x), float32(math.NaN()), float32(math.Inf(-1))}[x>>6])
			}
			return c, nil
		}}
		trace := playOne(t, testPlayer(t, &game{reply: goOn}, m), testTask())
		sound(t, trace)
	})
}

// FuzzEnvironment plays a rollout in an environment that says anything.
func FuzzEnvironment(f *testing.F) {
	f.Add("user", "hello", 0.5, false)
	f.Add("", "\xff\xfe", math.NaN(), true)
	f.Add("assistant", "", math.Inf(1), true)
	f.Add("tool", string(make([]byte, 5000)), -1e308, false)
	f.Fuzz(func(t *testing.T, role, content string, reward float64, null bool) {
		g := &game{
			reply: func(_ context.Context, n int, _ env.Message) (env.Turn, error) {
				return env.Turn{Messages: []env.Message{{Role: env.Role(role), Content: content}}, Done: n > 2}, nil
			},
			score: func([]string) (env.Score, error) {
				s := env.Score{Rewards: env.Rewards{content: env.Value(reward)}, Metrics: map[string]float64{role: reward}}
				if null {
					s.Rewards[role] = env.NotApplicable(1)
				}
				return s, nil
			},
		}
		sound(t, playOne(t, testPlayer(t, g, says(tokenizer(t), "hi", "\x00", "")), testTask()))
	})
}

// sound checks that a trace can be written and read, and that an error is not a reward.
func sound(t *testing.T, trace *schemas.Trace) {
	t.Helper()
	if len(trace.Errors) > 0 && trace.Reward != nil {
		t.Fatalf("a failed rollout has the reward %v", *trace.Reward)
	}
	b, err := schemas.Encode(trace)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := schemas.Decode(b); err != nil {
		t.Fatal(err)
	}
}
