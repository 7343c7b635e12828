package filter

import (
	"math"
	"strings"
	"testing"

	"github.com/prl-project/prl/schemas"
)

// said is a message of which all tokens were sampled with the log-probabilities.
func said(logprobs ...float32) *schemas.Node {
	n := &schemas.Node{Logprobs: schemas.PackFloat32s(logprobs)}
	for i := range logprobs {
		n.Mask = append(n.Mask, 1)
		n.TokenIDs = append(n.TokenIDs, schemas.PackInt32s([]int32{int32(i)})...)
	}
	return n
}

// told is a message of n tokens that were not sampled.
func told(n int) *schemas.Node {
	return &schemas.Node{Mask: make([]byte, n), TokenIDs: make([]byte, 4*n), Logprobs: make([]byte, 4*n)}
}

func branch(path ...*schemas.Node) Sample {
	s := Sample{Sample: &schemas.Sample{}, Trace: &schemas.Trace{}, Path: path}
	for _, n := range path {
		s.TokenIDs = append(s.TokenIDs, n.TokenIDs...)
		s.Logprobs = append(s.Logprobs, n.Logprobs...)
	}
	return s
}

func TestZeroAdvantage(t *testing.T) {
	for _, tt := range []struct {
		name               string
		advantages, ce, kl []float32
		want               bool
	}{
		{"zero", []float32{0, 0}, nil, nil, true},
		{"negative zero", []float32{0, float32(math.Copysign(0, -1))}, nil, nil, true},
		{"smallest", []float32{0, 1e-40}, nil, nil, false},
		{"empty", nil, nil, nil, true},
		{"another loss", []float32{0, 0}, []float32{0, 0.1}, nil, false},
		{"a teacher", []float32{0, 0}, nil, []float32{1, 0}, false},
		{"weights of zero", []float32{0}, []float32{0}, []float32{0}, true},
	} {
		s := Sample{Sample: &schemas.Sample{
			Advantages: schemas.PackFloat32s(tt.advantages), CeWeights: schemas.PackFloat32s(tt.ce), RefKlWeights: schemas.PackFloat32s(tt.kl)}}
		if got := (ZeroAdvantage{}).Takes(s); got != tt.want {
			t.Errorf("%s: takes it: %v", tt.name, got)
		}
	}
}

// A token is gibberish where its id is above the bound and its log-probability is below -ln 1000 - 2 = -8.907755.
func TestGibberish(t *testing.T) {
	f := Gibberish{Mode: Drop, TokenAbove: 1, Offset: 2, VocabSize: 1000}
	common, rare, likely := said(0, -8.91), said(0, 0, -8.908), said(0, 0, -8.907)
	asked := told(3)
	asked.TokenIDs, asked.Logprobs = rare.TokenIDs, rare.Logprobs
	for name, tt := range map[string]struct {
		s    Sample
		want bool
	}{
		"common":      {branch(told(2), common), false},
		"rare":        {branch(told(2), rare), true},
		"likely":      {branch(told(2), likely), false},
		"not sampled": {branch(asked), false},
	} {
		if got := f.Takes(tt.s); got != tt.want {
			t.Errorf("%s: takes it: %v", name, got)
		}
	}
}

// A stretch goes on over what was not sampled, and ends with a token that was not certain: ln 0.99 = -0.01005.
func TestRepetition(t *testing.T) {
	f := Repetition{Mode: Drop, Window: 4, Probability: 0.99}
	for name, tt := range map[string]struct {
		s    Sample
		want bool
	}{
		"four":               {branch(told(1), said(0, 0, -0.01, 0)), true},
		"over a message":     {branch(said(0, 0), told(2), said(0, 0)), true},
		"three":              {branch(said(0, 0, 0), told(9)), false},
		"broken":             {branch(said(0, 0, -0.0101, 0, 0), told(9)), false},
		"again after broken": {branch(said(0, -1, 0, 0, 0, 0)), true},
		"nothing sampled":    {branch(told(9)), false},
	} {
		if got := f.Takes(tt.s); got != tt.want {
			t.Errorf("%s: takes it: %v", name, got)
		}
	}
}

func TestOfTheRollout(t *testing.T) {
	half := 0.5
	long, cut := branch(told(9), said(0, 0), told(1), said(0)), branch()
	cut.Trace.Truncated = true
	for _, tt := range []struct {
		name string
		f    Filter
		s    Sample
		want bool
	}{
		{"whole group", Errored{}, Sample{}, false},
		{"partial group", Errored{}, Sample{Failed: 1}, true},
		{"ended", Truncated{}, branch(), false},
		{"cut", Truncated{}, cut, true},
		{"three of three", Length{MinTokens: 3, MaxTokens: 3}, long, false},
		{"three of four", Length{MinTokens: 4}, long, true},
		{"three of two", Length{MaxTokens: 2}, long, true},
		{"three, no limit above", Length{MinTokens: 1}, long, false},
		{"in range", RewardRange{Min: 0.5, Max: 0.5}, Sample{Reward: &half}, false},
		{"below", RewardRange{Min: 0.6, Max: math.Inf(1)}, Sample{Reward: &half}, true},
		{"above", RewardRange{Min: math.Inf(-1), Max: 0.4}, Sample{Reward: &half}, true},
		{"no reward", RewardRange{Min: 0, Max: 1}, Sample{}, true},
	} {
		if got := tt.f.Takes(tt.s); got != tt.want {
			t.Errorf("%s, %s: takes it: %v", tt.f.Name(), tt.name, got)
		}
	}
}

func TestConfig(t *testing.T) {
	active, err := DefaultConfig().Filters()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range active {
		got = append(got, f.Name()+" "+string(f.Does()))
	}
	if want := "zero_advantage drop, errored monitor, repetition monitor"; strings.Join(got, ", ") != want {
		t.Errorf("%v, want %s", got, want)
	}
	for want, change := range map[string]func(*Config){
		`zero_advantage.mode = "": drop, monitor or off`:      func(c *Config) { c.ZeroAdvantage.Mode = "" },
		"gibberish.vocab_size = 0: ":                          func(c *Config) { c.Gibberish.Mode = Monitor },
		"gibberish.token_above = -1: ":                        func(c *Config) { c.Gibberish = Gibberish{Mode: Drop, VocabSize: 9, TokenAbove: -1} },
		"gibberish.offset = +Inf: ":                           func(c *Config) { c.Gibberish = Gibberish{Mode: Drop, VocabSize: 9, Offset: math.Inf(1)} },
		"repetition.window = 0: ":                             func(c *Config) { c.Repetition.Window = 0 },
		"repetition.probability = 1: ":                        func(c *Config) { c.Repetition.Probability = 1 },
		`length.mode = "drop": set`:                           func(c *Config) { c.Length.Mode = Drop },
		"length.min_tokens = 3 is above max_tokens = 2":       func(c *Config) { c.Length = Length{Drop, 3, 2} },
		"length.max_tokens = -1: ":                            func(c *Config) { c.Length = Length{Drop, 3, -1} },
		`reward_range.mode = "drop": set`:                     func(c *Config) { c.RewardRange.Mode = Drop },
		"reward_range.min = NaN is above max = 1, or one of ": func(c *Config) { c.RewardRange = RewardRange{Drop, math.NaN(), 1} },
	} {
		c := DefaultConfig()
		change(&c)
		if _, err := c.Filters(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	c := DefaultConfig()
	c.Gibberish.Mode, c.Repetition = Off, Repetition{Mode: Off}
	if _, err := c.Filters(); err != nil {
		t.Errorf("a filter that is off: %v", err)
	}
}
