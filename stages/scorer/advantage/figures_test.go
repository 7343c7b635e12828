package advantage

import (
	"maps"
	"math"
	"strings"
	"testing"
)

const null = "null"

// members are single-agent rollouts with these rewards.
func members(rewards ...any) []Member {
	var list []Member
	for i, r := range rewards {
		m := Member{Rollout: i, Sampled: 2}
		if v, ok := r.(float64); ok {
			m.Reward = &v
		}
		list = append(list, m)
	}
	return list
}

func algorithm(t testing.TB, name string, change func(*Options)) Algorithm {
	t.Helper()
	o := DefaultOptions()
	if change != nil {
		change(&o)
	}
	a, _, err := New(name, o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func credits(a Algorithm, list []Member) []Credit {
	return a.Credits(Group{Env: "e", Members: list, Averages: Averages{}})
}

func normalize(o *Options) { o.NormalizeStd = true }

// TestFigures holds every algorithm that goes by rewards to figures computed by hand.
func TestFigures(t *testing.T) {
	excluded := float32(math.Inf(1)) // stands for it in the table
	const third = float32(1.0 / 3)
	for _, tt := range []struct {
		algorithm string
		name      string
		rewards   []any
		change    func(*Options)
		want      []float32
	}{
		{GRPO, "two", []any{0.0, 1.0}, nil, []float32{-0.5, 0.5}},
		{GRPO, "three", []any{0.0, 0.0, 3.0}, nil, []float32{-1, -1, 2}},
		{GRPO, "std", []any{0.0, 4.0}, normalize, []float32{-1, 1}},
		{GRPO, "std of four", []any{1.0, 1.0, 1.0, 5.0}, normalize, []float32{-0.57735026, -0.57735026, -0.57735026, 1.7320508}},
		{GRPO, "all equal", []any{0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1}, nil, make([]float32, 8)},
		{GRPO, "all equal, std", []any{0.1, 0.1, 0.1}, normalize, make([]float32, 3)},
		{GRPO, "one", []any{0.7}, normalize, []float32{0}},
		{GRPO, "null is outside the baseline", []any{0.0, null, 1.0}, nil, []float32{-0.5, excluded, 0.5}},
		{GRPO, "all null", []any{null, null}, nil, []float32{excluded, excluded}},
		{GRPO, "largest", []any{math.MaxFloat64, -math.MaxFloat64}, nil, []float32{math.MaxFloat32, -math.MaxFloat32}},
		{GRPO, "largest, std", []any{math.MaxFloat64, -math.MaxFloat64}, normalize, []float32{1, -1}},
		{GRPO, "smallest, std", []any{0.0, math.SmallestNonzeroFloat64 * 4}, normalize, []float32{-1, 1}},

		{MaxRL, "one of four", []any{1.0, 0.0, 0.0, 0.0}, nil, []float32{3, -1, -1, -1}},
		{MaxRL, "three of four", []any{1.0, 1.0, 1.0, 0.0}, nil, []float32{third, third, third, -1}},
		{MaxRL, "mean of zero", []any{-1.0, 1.0}, nil, []float32{0, 0}},
		{MaxRL, "mean below zero", []any{-3.0, 1.0}, nil, []float32{0, 0}},
		{MaxRL, "all equal", []any{0.1, 0.1, 0.1}, nil, make([]float32, 3)},
		{MaxRL, "null", []any{0.0, null, 1.0}, nil, []float32{-1, excluded, 1}},
		{MaxRL, "largest", []any{math.MaxFloat64, 0.0, 0.0}, nil, []float32{2, -1, -1}},

		{RLOO, "three", []any{0.0, 0.0, 3.0}, nil, []float32{-1.5, -1.5, 3}},
		{RLOO, "one of four", []any{1.0, 0.0, 0.0, 0.0}, nil, []float32{1, -third, -third, -third}},
		{RLOO, "one", []any{0.7}, nil, []float32{0}},
		{RLOO, "one beside nulls", []any{null, 0.7, null}, nil, []float32{excluded, 0, excluded}},
		{RLOO, "all equal", []any{0.1, 0.1, 0.1}, nil, make([]float32, 3)},

		{RAE, "average", []any{1.0, 0.0, 1.0}, nil, []float32{1, -0.05, 0.9525}},
		{RAE, "half", []any{1.0, 1.0, 1.0}, func(o *Options) { o.RAEDecay = 0.5 }, []float32{1, 0.5, 0.25}},
		{RAE, "null moves nothing", []any{1.0, null, 0.0}, nil, []float32{1, excluded, -0.05}},
		{RAE, "largest", []any{math.MaxFloat64, -math.MaxFloat64}, nil, []float32{math.MaxFloat32, -math.MaxFloat32}},

		{HierarchicalGRPO, "one agent", []any{0.0, 0.0, 3.0}, nil, []float32{-1, -1, 2}},
		{Echo, "three", []any{0.0, 0.0, 3.0}, nil, []float32{-1, -1, 2}},
		{Echo, "null", []any{0.0, null, 1.0}, nil, []float32{-0.5, excluded, 0.5}},
	} {
		t.Run(tt.algorithm+"/"+tt.name, func(t *testing.T) {
			for i, c := range credits(algorithm(t, tt.algorithm, tt.change), members(tt.rewards...)) {
				if c.RL == (tt.want[i] == excluded) || c.RL && math.Abs(float64(c.All-tt.want[i])) > 1e-7*math.Abs(float64(tt.want[i])) {
					t.Errorf("member %d: %+v, want %v", i, c, tt.want[i])
				}
				if answers := tt.algorithm == Echo && c.RL; (c.Answers == 0.1) != answers || c.CE != 0 || c.RefKL != 0 {
					t.Errorf("member %d has other weights: %+v", i, c)
				}
			}
		})
	}
}

// Distillation and imitation want no rewards: every member is trained, a null one and one alone too.
func TestImitation(t *testing.T) {
	for name, want := range map[string]Credit{OPD: {RefKL: 1}, OPSD: {RefKL: 1}, SFT: {CE: 1}} {
		for i, c := range credits(algorithm(t, name, nil), members(1.0, null, 1.0)) {
			if c.RL || c.All != 0 || c.Tokens != nil || c.RefKL != want.RefKL || c.CE != want.CE || c.Answers != 0 {
				t.Errorf("%s: member %d: %+v", name, i, c)
			}
		}
	}
}

// A weight of the reference stands beside the policy gradient, for whom it trains.
func TestReference(t *testing.T) {
	a, needs, err := New(RLOO, func() Options { o := DefaultOptions(); o.RefKL = 0.25; return o }())
	if err != nil || !needs.Teacher {
		t.Fatalf("needs %+v, %v", needs, err)
	}
	got := credits(a, members(0.0, null, 1.0))
	if got[0].RefKL != 0.25 || got[0].All != -1 || got[1].RefKL != 0 || got[2].RefKL != 0.25 {
		t.Errorf("%+v", got)
	}
}

func TestLengthPenalty(t *testing.T) {
	list := members(1.0, 1.0)
	list[0].Size, list[1].Size = Size{Output: 10, Total: 30, Turns: 1}, Size{Output: 20, Total: 30, Turns: 2}
	penalty := func(o *Options) { o.LengthPenalty.On = true }
	// Shares 0.25·10/20 + 0.1·20/20 + 0.1·1/2 = 0.275 and 0.25 + 0.1·10/20 + 0.1 = 0.4 of a mean of 1.
	for _, name := range []string{GRPO, Echo} {
		if got := credits(algorithm(t, name, penalty), list); math.Abs(float64(got[0].All)-0.0625) > 1e-7 || got[1].All != -got[0].All {
			t.Errorf("%s: %+v", name, got)
		}
	}
	// Nothing sampled, nothing said: the maxima are at least 1.
	list[0].Size, list[1].Size = Size{}, Size{}
	if got := credits(algorithm(t, GRPO, penalty), list); got[0].All != 0 || got[1].All != 0 {
		t.Errorf("%+v", got)
	}
	// A mean of zero penalises nobody.
	list = members(-1.0, 1.0)
	list[0].Size, list[1].Size = Size{Output: 1}, Size{Output: 1000}
	if got := credits(algorithm(t, GRPO, penalty), list); got[0].All != -1 || got[1].All != 1 {
		t.Errorf("%+v", got)
	}
}

// Agents are compared with their like: all of a group, or where they are named those of one episode.
func TestAgents(t *testing.T) {
	of := func(rollout int, agent string, reward float64) Member {
		return Member{Rollout: rollout, Agent: agent, Reward: &reward}
	}
	list := []Member{
		of(0, "proposer", 0.5), of(0, "solver", 1), of(0, "solver", 1), of(0, "solver", 0),
		of(1, "proposer", 1.5), of(1, "solver", 9),
		of(2, "judge", 7),
	}
	third := float32(1.0 / 3)
	for _, tt := range []struct {
		name   string
		change func(*Options)
		want   []float32
	}{
		{GRPO, nil, []float32{-0.5, -1.75, -1.75, -2.75, 0.5, 6.25, 0}},
		{HierarchicalGRPO, nil, []float32{-0.5, third, third, -2 * third, 0.5, 0, 0}},
		{HierarchicalGRPO, func(o *Options) { o.EpisodeAgents = []string{"proposer"} }, []float32{0, -1.75, -1.75, -2.75, 0, 6.25, 0}},
		{RAE, nil, []float32{0.5, 1, 0.95, -0.0975, 1.475, 8.907375, 7}},
	} {
		for i, c := range credits(algorithm(t, tt.name, tt.change), list) {
			if math.Abs(float64(c.All-tt.want[i])) > 1e-6 {
				t.Errorf("%s: member %d (%s of rollout %d): %v, want %v", tt.name, i, list[i].Agent, list[i].Rollout, c.All, tt.want[i])
			}
		}
	}
}

// The averages of rae outlive the group, by environment.
func TestAverages(t *testing.T) {
	a, averages := algorithm(t, RAE, nil), Averages{}
	for i, want := range []float32{1, 0.95, 1} {
		env := []string{"x", "x", "y"}[i]
		if got := a.Credits(Group{Env: env, Members: members(1.0), Averages: averages})[0].All; math.Abs(float64(got-want)) > 1e-7 {
			t.Errorf("group %d, of %s: %v, want %v", i, env, got, want)
		}
	}
	again, err := ReadAverages(averages.Append(nil))
	if err != nil || !maps.Equal(again, averages) || len(again) != 2 {
		t.Errorf("%v came back as %v, %v", averages, again, err)
	}
}

func TestPerToken(t *testing.T) {
	nan := float32(math.NaN())
	g := members(1.0, 0.0, 0.0, null)
	for i, r := range [][]float32{{1, 1, 4}, {0, nan}, nil, {50, 50, 50}} {
		g[i].TokenRewards, g[i].Sampled = r, max(len(r), 2)
	}
	third := float32(1.0 / 3)
	for name, want := range map[string][][]float32{
		GRPO:  {{0.5, 0, 0}, {-0.5, -third}, {-third, -third}},
		RLOO:  {{1, 0, 0}, {-1, -0.5}, {-0.5, -0.5}},
		MaxRL: {{1, 0, 0}, {-1, -1}, {-1, -1}},
		RAE:   {{1, 1, 1}, {-0.05, -0.05}, {-0.0475, -0.0475}},
	} {
		got := credits(algorithm(t, name, nil), g)
		for i := range want {
			for k, w := range want[i] {
				if a := got[i].At(k); math.Abs(float64(a-w)) > 1e-7 {
					t.Errorf("%s: member %d, token %d: %v, want %v", name, i, k, a, w)
				}
			}
		}
		if got[3].RL {
			t.Errorf("%s: a null reward is trained on", name)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Options)
		want   string
	}{
		{"ppo", nil, `advantage = "ppo": one of echo, grpo, hierarchical_grpo, max_rl, opd, opsd, rae, rloo, sft`},
		{RLOO, normalize, "normalize_std = true: rloo does not"},
		{SFT, func(o *Options) { o.LengthPenalty.On = true }, "length_penalty.on = true: sft has"},
		{GRPO, func(o *Options) { o.LengthPenalty.Turns = -1 }, "length_penalty = 0.25, 0.1, -1"},
		{RAE, func(o *Options) { o.RAEDecay = 1 }, "rae_decay = 1"},
		{Echo, func(o *Options) { o.EchoAlpha = 0 }, "echo_alpha = 0"},
		{Echo, func(o *Options) { o.EchoAlpha = 1e-60 }, "echo_alpha = 1e-60"},
		{Echo, func(o *Options) { o.EchoRoles = nil }, "echo_roles is empty"},
		{GRPO, func(o *Options) { o.RefKL = math.NaN() }, "ref_kl = NaN"},
		{OPD, func(o *Options) { o.RefKL = 1 }, "ref_kl = 1: opd has no policy gradient"},
	} {
		o := DefaultOptions()
		if tt.change != nil {
			tt.change(&o)
		}
		if _, _, err := New(tt.name, o); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}
