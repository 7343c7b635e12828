package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
)

// judge rewards by what was said last: "none" has no reward, "other" never was, the rest is worth its length.
type judge struct{}

func (judge) Rescore(_ context.Context, task json.RawMessage, seed int64, messages []env.Message, ended bool) (env.Score, error) {
	last := messages[len(messages)-1].Content
	if string(task) != "{}" || seed != 9 || len(messages) != 2 || messages[0].Role != env.RoleUser || messages[0].Content != "say" {
		return env.Score{}, fmt.Errorf("task %s, seed %d, messages %+v", task, seed, messages)
	}
	score := env.Score{Rewards: env.Rewards{"length": env.Weighted(float64(len(last)), 2)}, Metrics: map[string]float64{"m": 1, "ended": env.Bool(ended)}, Stop: "judged"}
	switch last {
	case "none":
		score.Rewards = env.Rewards{"length": env.NotApplicable(1)}
	case "other":
		return env.Score{}, fmt.Errorf("reply 0: %w", env.ErrDiverged)
	case "broken":
		return env.Score{}, errors.New("the judge is broken")
	case "credit":
		score.CharRewards = []env.CharRewards{{1, 2, 3, 4, 5, 6, 7}}
	case "credits":
		score.CharRewards = []env.CharRewards{nil, nil}
	case "endless":
		score.Rewards = env.Rewards{"length": env.Value(math.Inf(1))}
	case "panic":
		panic("the judge is mad")
	case "silence":
		select {} // whatever becomes of its context
	}
	return score, nil
}

func judged(string) (Rescorer, error) {
	return Rescorer{Env: judge{}, Version: "2+x", TokenRewards: func(n *schemas.Node, c env.CharRewards) (schemas.Float32s, error) {
		values := make([]float32, len(n.Mask))
		values[len(values)-1] = float32(c[len(c)-1])
		return schemas.PackFloat32s(values), nil
	}}, nil
}

// said is a trace that version 4 made.
func said(group int64, text string, reward float64) *schemas.Trace {
	return &schemas.Trace{
		Env: "judge", GroupID: group, GroupSize: 1, Task: "{}", GroupSeed: 9, Reward: &reward, Rewards: map[string]*float64{"length": &reward},
		StopReason: "done", PolicyStart: new(int64(4)), Nodes: []schemas.Node{
			{Parent: -1, Role: "user", Content: "say"},
			{Parent: 0, Role: "assistant", Content: text, TokenIDs: schemas.PackInt32s([]int32{1, 2}), Mask: []byte{0, 1},
				Logprobs: schemas.PackFloat32s([]float32{0, -1}), TokenRewards: schemas.PackFloat32s([]float32{0, 9}), Temperature: 1},
		},
	}
}

func TestRescorer(t *testing.T) {
	r, _ := judged("")
	failed, cut := said(0, "four", 3), said(0, "four", 3)
	failed.Errors = []schemas.TraceError{{Type: "crashed"}}
	cut.Truncated, cut.StopReason = true, "max_tokens"
	tests := []struct {
		name  string
		trace *schemas.Trace
		want  func(t *schemas.Trace) // of a copy of the trace
	}{
		{"rewarded", said(0, "four", 3), func(t *schemas.Trace) {
			t.Reward, t.Rewards, t.Metrics, t.StopReason = new(8.0), map[string]*float64{"length": new(4.0)}, map[string]float64{"m": 1, "ended": 1}, "judged"
			t.Nodes[1].TokenRewards = nil
		}},
		{"no reward", said(0, "none", 3), func(t *schemas.Trace) {
			t.Reward, t.Rewards, t.Metrics, t.StopReason = nil, map[string]*float64{"length": nil}, map[string]float64{"m": 1, "ended": 1}, "judged"
			t.Nodes[1].TokenRewards = nil
		}},
		{"tokens rewarded", said(0, "credit", 3), func(t *schemas.Trace) {
			t.Reward, t.Rewards, t.Metrics, t.StopReason = new(12.0), map[string]*float64{"length": new(6.0)}, map[string]float64{"m": 1, "ended": 1}, "judged"
			t.Nodes[1].TokenRewards = schemas.PackFloat32s([]float32{0, 7})
		}},
		{"cut", cut, func(t *schemas.Trace) {
			t.Reward, t.Rewards, t.Metrics = new(8.0), map[string]*float64{"length": new(4.0)}, map[string]float64{"m": 1, "ended": 0}
			t.Nodes[1].TokenRewards = nil
		}},
		{"failed", failed, func(*schemas.Trace) {}},
		{"diverged", said(0, "other", 3), func(t *schemas.Trace) {
			t.Reward, t.Rewards, t.StopReason = nil, nil, ""
			t.Errors = []schemas.TraceError{{Type: "diverged", Message: "reply 0: " + env.ErrDiverged.Error()}}
			t.Nodes[1].TokenRewards = nil
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before, err := schemas.Encode(tt.trace)
			if err != nil {
				t.Fatal(err)
			}
			got, err := r.Rescore(t.Context(), tt.trace)
			if err != nil {
				t.Fatal(err)
			}
			if after, err := schemas.Encode(tt.trace); err != nil || string(after) != string(before) {
				t.Errorf("the recorded trace has changed: %v", err)
			}
			want := *tt.trace
			want.Nodes = append([]schemas.Node(nil), want.Nodes...)
			want.ScorerVersion = "2+x"
			tt.want(&want)
			if !reflect.DeepEqual(got, &want) {
				t.Errorf("%+v\nwant %+v", got, &want)
			}
		})
	}
}

// A trace that cannot be given rewards fails alone, for good and with a type that says why; one that a stop came between
// does not.
func TestRescorerFails(t *testing.T) {
	branched := said(0, "four", 3)
	branched.Nodes = append(branched.Nodes, schemas.Node{Parent: 0, Role: "assistant", Content: "five"})
	r, _ := judged("")
	r.MaxAttempts = 3
	for _, tt := range []struct {
		trace     *schemas.Trace
		kind, why string
	}{
		{branched, errorBranched, "has branches"},
		{said(0, "other", 1), errorDiverged, "otherwise than it was recorded"},
		{said(0, "broken", 1), errorRescore, "is broken"},
		{said(0, "panic", 1), errorRescore, "the judge is mad"},
		{said(0, "silence", 1), errorRescore, "no score in 1ms"},
		{said(0, "credits", 1), errorScore, "character rewards for 2 replies of 1"},
		{said(0, "endless", 1), errorScore, "not finite"},
	} {
		r.Timeout = time.Minute
		if tt.trace.Nodes[1].Content == "silence" {
			r.Timeout = time.Millisecond
		}
		got, err := r.Rescore(t.Context(), tt.trace)
		if err != nil {
			t.Errorf("%s: %v", tt.kind, err)
			continue
		}
		if len(got.Errors) != 1 || got.Errors[0].Type != tt.kind || !strings.Contains(got.Errors[0].Message, tt.why) {
			t.Errorf("errors %+v, want %s: %s", got.Errors, tt.kind, tt.why)
		}
		if got.Attempt != 3 || got.Reward != nil || got.Rewards != nil || len(got.Nodes[1].TokenRewards) > 0 {
			t.Errorf("%s: attempt %d, reward %v, %v", tt.kind, got.Attempt, got.Reward, got.Nodes[1].TokenRewards)
		}
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if _, err := r.Rescore(stopped, said(0, "silence", 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
}

// first gives the credit to the end of the first reply.
type first struct{}

func (first) Rescore(context.Context, json.RawMessage, int64, []env.Message, bool) (env.Score, error) {
	return env.Score{Rewards: env.Rewards{"r": env.Value(1)}, CharRewards: []env.CharRewards{{0, 0, 5}}}, nil
}

// A message of the policy's role that is part of the prompt is no reply.
func TestRescorerPrompt(t *testing.T) {
	r, _ := judged("")
	r.Env = first{}
	trace := said(0, "ok", 1)
	shown := schemas.Node{Parent: -1, Role: "assistant", Content: "an example", TokenIDs: schemas.PackInt32s([]int32{7}), Mask: []byte{0}, Logprobs: schemas.PackFloat32s([]float32{0})}
	trace.Nodes = []schemas.Node{shown, trace.Nodes[0], trace.Nodes[1]}
	trace.Nodes[1].Parent, trace.Nodes[2].Parent = 0, 1
	got, err := r.Rescore(t.Context(), trace)
	if err != nil || len(got.Errors) > 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	if len(got.Nodes[0].TokenRewards) > 0 || !reflect.DeepEqual(got.Nodes[2].TokenRewards, schemas.PackFloat32s([]float32{0, 5})) {
		t.Errorf("token rewards %v and %v", got.Nodes[0].TokenRewards, got.Nodes[2].TokenRewards)
	}
}

func TestRescore(t *testing.T) {
	failed := said(5, "four", 1)
	failed.Errors, failed.Reward, failed.PolicyStart = []schemas.TraceError{{Type: "crashed"}}, nil, nil
	younger := said(6, "four", 1)
	younger.PolicyStart = new(int64(7))
	src := memory{pipeline.TopicTraces: {}}
	broken := said(7, "broken", 1)
	broken.PolicyStart = new(int64(2))
	start := time.UnixMilli(1000)
	for i, trace := range []*schemas.Trace{said(0, "a", 2), said(1, "bb", 5), said(2, "ccc", 6), said(3, "none", 1), said(4, "other", 1), failed, younger, broken} {
		p := int32(trace.GroupID % 2)
		src[pipeline.TopicTraces][p] = append(src[pipeline.TopicTraces][p], Record{
			Ref: pipeline.Ref{Topic: pipeline.TopicTraces, Partition: p, Offset: int64(i)}, Time: start.Add(time.Duration(i) * time.Second),
			decode: func(context.Context) (schemas.Record, error) { return trace, nil },
		})
	}
	src[pipeline.TopicTraces][1] = append(src[pipeline.TopicTraces][1], unreadable(pipeline.TopicTraces, 1, 8, ""))
	for name, tt := range map[string]struct {
		selected Selection
		groups   []int64 // in the order in which they are written
	}{
		"all":          {Everything(), []int64{0, 2, 4, 6, 1, 3, 5, 7}},
		"from version": {Selection{FromVersion: 5, ToVersion: -1}, []int64{6}},
		"to version":   {Selection{ToVersion: 4}, []int64{0, 2, 4, 1, 3, 7}},
		"offsets":      {Selection{FromOffset: 2, ToOffset: 4, ToVersion: -1}, []int64{2, 3}},
		"times":        {Selection{From: start.Add(5 * time.Second), To: start.Add(6 * time.Second), ToVersion: -1}, []int64{5}},
	} {
		t.Run(name, func(t *testing.T) {
			var groups []int64
			compared, err := Rescore(t.Context(), src, RescoreConfig{
				Topic: pipeline.TopicTraces, Select: tt.selected, Rescorer: judged, Write: func(_ context.Context, made []pipeline.Emission) error {
					for _, e := range made {
						groups = append(groups, e.Value.(*schemas.Trace).GroupID)
					}
					return nil
				},
			})
			if err != nil || !reflect.DeepEqual(groups, tt.groups) {
				t.Errorf("groups %v, want %v (%v)", groups, tt.groups, err)
			}
			if name != "all" {
				return
			}
			e := compared.Envs["judge"]
			was, is := e.Reward.means()
			if e.Traces != 8 || e.Failed != 1 || e.Lost[errorDiverged] != 1 || e.Lost[errorRescore] != 1 || compared.Refused != 1 || e.Changed != 3 || e.Reward.n != 4 || was != 3.5 || is != 5 {
				t.Errorf("%+v: %v, %v\n%v", e, was, is, compared)
			}
			// of (2, 2), (5, 4), (6, 6), (1, 8)
			if c := e.Reward.correlation(); math.Abs(c-(-0.1084652289)) > 1e-9 {
				t.Errorf("correlation %v", c)
			}
			for _, want := range []string{"that would have gone another way", "that their environment could not score", "group 7, rollout 0: the judge is broken", "1 recorded traces cannot be read"} {
				if !strings.Contains(compared.String(), want) {
					t.Errorf("%v\nwant: %s", compared, want)
				}
			}
		})
	}
	if _, err := Rescore(t.Context(), src, RescoreConfig{Topic: pipeline.TopicSamples}); err == nil {
		t.Error("samples have no rewards to give anew")
	}
	none := func(string) (Rescorer, error) { return Rescorer{}, errors.New("no Rescore") }
	if _, err := Rescore(t.Context(), src, RescoreConfig{Topic: pipeline.TopicTraces, Select: Everything(), Rescorer: none}); err == nil || !strings.Contains(err.Error(), "no Rescore") {
		t.Errorf("an environment without: %v", err)
	}
}

// unreadable is a record that nobody can decode.
func unreadable(topic string, partition int32, offset int64, key string) Record {
	return Record{Ref: pipeline.Ref{Topic: topic, Partition: partition, Offset: offset}, Key: key, decode: func(context.Context) (schemas.Record, error) {
		return nil, errors.New("garbage")
	}}
}

// flat rewards everything alike.
type flat struct{}

func (flat) Rescore(context.Context, json.RawMessage, int64, []env.Message, bool) (env.Score, error) {
	return env.Score{Rewards: env.Rewards{"flat": env.Value(1)}}, nil
}
