package emitter

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestWeightedRoundRobinDrawsByWeight(t *testing.T) {
	for name, envs := range map[string][]MixEnv{
		"ratios": {{Name: "a", Ratio: ratio(0.5), TrainTasks: 9}, {Name: "b", Ratio: ratio(0), TrainTasks: 1000}, {Name: "c", Ratio: ratio(1.5), TrainTasks: 1}},
		"tasks":  {{Name: "a", TrainTasks: 250}, {Name: "b"}, {Name: "c", TrainTasks: 750}},
	} {
		t.Run(name, func(t *testing.T) {
			weights, err := WeightedRoundRobin{}.Weights(envs)
			if err != nil {
				t.Fatal(err)
			}
			const draws = 20000
			rng, count := rand.New(rand.NewPCG(7, 7)), [3]int{}
			for range draws {
				count[WeightedRoundRobin{}.Pick(weights, rng)]++
			}
			if count[1] != 0 {
				t.Errorf("an environment of weight 0 was drawn %d times", count[1])
			}
			if got, sigma := float64(count[0])/draws, math.Sqrt(0.25*0.75/draws); math.Abs(got-0.25) > 4*sigma {
				t.Errorf("drawn %v, want 0.25 ± %v", got, 4*sigma)
			}
		})
	}
}

func TestWeightedRoundRobinRefuses(t *testing.T) {
	for want, envs := range map[string][]MixEnv{
		"no environments":        nil,
		"1 of 2 environments":    {{Name: "a", Ratio: ratio(1), TrainTasks: 1}, {Name: "b", TrainTasks: 1}},
		"has weight 0":           {{Name: "a", Ratio: ratio(0), TrainTasks: 1}},
		"has no training tasks":  {{Name: "a", Ratio: ratio(1)}},
		"every environment has ": {{Name: "a"}, {Name: "b"}},
	} {
		if _, err := (WeightedRoundRobin{}).Weights(envs); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", envs, err, want)
		}
	}
}

func threeEnvs() []MixEnv {
	return []MixEnv{{Name: "a", Ratio: ratio(1), TrainTasks: 1}, {Name: "b", Ratio: ratio(3), TrainTasks: 1}, {Name: "c", Ratio: ratio(0), TrainTasks: 1}}
}

func newMix(kind string) EnvMixStrategy {
	cfg := DefaultConfig()
	cfg.Mix = kind
	return mixes[kind](cfg)
}

// shares of the first two of threeEnvs.
func shares(t *testing.T, m EnvMixStrategy) (a, b float64) {
	t.Helper()
	w, err := m.Weights(threeEnvs())
	if err != nil {
		t.Fatal(err)
	}
	if w[2] != 0 {
		t.Errorf("an environment of ratio 0 has weight %v", w[2])
	}
	return w[0] / (w[0] + w[1]), w[1] / (w[0] + w[1])
}

func near(got, want, within float64) bool { return math.Abs(got-want) <= within }

func TestMixesBeginWithTheRatios(t *testing.T) {
	for kind := range mixes {
		if a, b := shares(t, newMix(kind)); !near(a, 0.25, 1e-12) || !near(b, 0.75, 1e-12) {
			t.Errorf("%s: shares %v and %v", kind, a, b)
		}
		if _, err := newMix(kind).Weights(nil); err == nil || !strings.Contains(err.Error(), "no environments") {
			t.Errorf("%s: error %v without environments", kind, err)
		}
	}
}

func TestProgressIsFollowed(t *testing.T) {
	m := newMix(MixProgress)
	learn := func(env string, reward float64, n int) {
		for range n {
			m.Learn(env, Result{Rewards: []float64{reward - 0.1, reward + 0.1}})
		}
	}
	learn("a", 0.5, 200)
	learn("b", 0.5, 200)
	if a, _ := shares(t, m); !near(a, 0.25, 1e-9) {
		t.Errorf("share %v of a while nothing changes, want its ratio", a)
	}
	learn("a", 0.8, 10)
	risen, _ := shares(t, m)
	if risen < 0.7 {
		t.Errorf("share %v of the one environment that changes", risen)
	}
	if _, b := shares(t, m); b < 0.2*0.75 {
		t.Errorf("share %v of b, below its floor of %v", b, 0.2*0.75)
	}
	learn("a", 0.8, 2000)
	if a, _ := shares(t, m); !near(a, 0.25, 1e-3) {
		t.Errorf("share %v of a long after the change", a)
	}
	learn("b", 0.2, 10) // forgetting is a change, too
	if _, b := shares(t, m); b < 0.9 {
		t.Errorf("share %v of the environment that is being forgotten", b)
	}
	m.Learn("a", Result{}) // no reward: nothing is learnt
	if _, b := shares(t, m); b < 0.9 {
		t.Errorf("share %v after a group without rewards", b)
	}
}

func TestProgressDoesNotDependOnTheUnitOfRewards(t *testing.T) {
	m := newMix(MixProgress)
	for i := range 100 {
		r := math.Sqrt(float64(i))
		m.Learn("a", Result{Rewards: []float64{r}})
		m.Learn("b", Result{Rewards: []float64{1000 * r}})
	}
	if a, _ := shares(t, m); !near(a, 0.25, 1e-9) {
		t.Errorf("share %v", a)
	}
}

func TestUnknownEnvironmentCountsAsTheOthersDo(t *testing.T) {
	for _, kind := range []string{MixProgress, MixTokens} {
		m := newMix(kind)
		for i := range 50 {
			m.Learn("a", Result{Rewards: []float64{float64(i)}, Tokens: 700})
		}
		if a, _ := shares(t, m); !near(a, 0.25, 1e-9) {
			t.Errorf("%s: share %v", kind, a)
		}
	}
}

func TestTokenSharesAreTheRatios(t *testing.T) {
	m, rng := newMix(MixTokens), rand.New(rand.NewPCG(1, 2))
	tokens := [2]float64{}
	for i := range 40_000 {
		w, err := m.Weights(threeEnvs())
		if err != nil {
			t.Fatal(err)
		}
		env, n := m.Pick(w, rng), int64(0)
		switch env {
		case 0: // long, and getting longer
			n = 5000 + rng.Int64N(2000) + int64(i)/10
		case 1:
			n = 50 + rng.Int64N(100)
		}
		tokens[env] += float64(n)
		m.Learn(threeEnvs()[env].Name, Result{Tokens: n})
	}
	if share := tokens[0] / (tokens[0] + tokens[1]); !near(share, 0.25, 0.02) {
		t.Errorf("%.3f of the tokens are of an environment of ratio 0.25", share)
	}
	for range 1000 {
		m.Learn("a", Result{})
	}
	if a, _ := shares(t, m); math.IsNaN(a) || math.IsInf(a, 0) {
		t.Errorf("share %v of groups without a token", a)
	}
}

func TestMixStateIsRefusedWhereItMakesNoSense(t *testing.T) {
	m := newMix(MixTokens)
	m.Learn("a", Result{Tokens: 5})
	m.Learn("b", Result{Tokens: 5})
	good := m.State()
	for name, c := range map[string]struct {
		kind  string
		state []byte
	}{
		"cut short":      {MixProgress, good[:len(good)-1]},
		"an env twice":   {MixProgress, append(append([]byte{}, good...), good...)},
		"not a number":   {MixProgress, append([]byte("\x01a"), 0, 0, 0, 0, 0, 0, 0xf8, 0x7f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)},
		"no tokens":      {MixTokens, append([]byte("\x01a"), make([]byte, 24)...)},
		"not its own":    {MixWeighted, good},
		"without a name": {MixTokens, []byte{0}},
	} {
		if err := newMix(c.kind).Restore(c.state); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if err := newMix(MixTokens).Restore(good); err != nil {
		t.Error(err)
	}
}
