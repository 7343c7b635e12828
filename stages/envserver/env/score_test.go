package env

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unicode/utf8"
)

func TestTotal(t *testing.T) {
	for name, test := range map[string]struct {
		rewards Rewards
		want    any
	}{
		"none":            {nil, nil},
		"nothing applies": {Rewards{"a": NotApplicable(1)}, nil},
		"one":             {Rewards{"a": Value(0.5)}, 0.5},
		"weights":         {Rewards{"a": Weighted(0.5, 2), "b": Weighted(1, -0.25), "c": NotApplicable(10)}, 0.75},
		"weight zero":     {Rewards{"a": Weighted(0.5, 0)}, 0.0},
	} {
		got := test.rewards.Total()
		if (got == nil) != (test.want == nil) || got != nil && *got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// The order of a map must not show in the last bits of the total.
func TestTotalIsTheSameBits(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	r := Rewards{}
	for i := range 20 {
		r[fmt.Sprint(i)] = Weighted(rng.NormFloat64(), rng.NormFloat64()*1e6)
	}
	want := *r.Total()
	for range 100 {
		if got := *r.Total(); got != want {
			t.Fatalf("%v, then %v", want, got)
		}
	}
}

func TestTokens(t *testing.T) {
	for _, test := range []struct {
		content string
		rewards CharRewards
		widths  []int
		want    []float64
	}{
		{"abc", CharRewards{1, 2, 3, 4}, []int{1, 1, 1, 0}, []float64{1, 2, 3, 4}},
		{"abc", CharRewards{1, 2, 3, 4}, []int{1, 1, 1}, []float64{1, 2, 3}}, // cut: nobody ended it
		{"abc", CharRewards{1, 2, 3, 4}, []int{2, 1, 0}, []float64{3, 3, 4}},
		{"abc", CharRewards{1, 2, 3, 4}, []int{3, 0, 0}, []float64{6, 4, 0}},             // template after the end token
		{"abc", CharRewards{1, 2, 3, 4}, []int{0, 1, 0, 2, 0}, []float64{0, 1, 0, 5, 4}}, // special tokens within
		{"é✓", CharRewards{1, 2, 3}, []int{1, 1, 1, 1, 1, 0}, []float64{0, 1, 0, 0, 2, 3}},
		{"é✓", CharRewards{1, 2, 3}, []int{1, 3, 1, 0}, []float64{0, 1, 2, 3}},
		{"\xff\xfe", CharRewards{1, 2, 3}, []int{1, 1, 0}, []float64{1, 2, 3}},
		{"", CharRewards{5}, []int{0}, []float64{5}},
		{"abc", nil, []int{1, 1, 1, 0}, []float64{0, 0, 0, 0}},
	} {
		got, err := test.rewards.Tokens(test.content, test.widths)
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%v of %q over %v: %v, %v; want %v", test.rewards, test.content, test.widths, got, err, test.want)
		}
	}
	for _, widths := range [][]int{{1, 1}, {4}, {-1, 4}, {1, 1, 1, 1}} {
		if got, err := (CharRewards{1, 2, 3, 4}).Tokens("abc", widths); err == nil {
			t.Errorf("widths %v: %v", widths, got)
		}
	}
	if _, err := (CharRewards{1, 2}).Tokens("abc", []int{3}); err == nil {
		t.Error("too few rewards pass")
	}
}

// Whatever the tokens are, nothing of the reward is lost or counted twice.
func FuzzTokens(f *testing.F) {
	f.Add("héllo ✓", uint64(1))
	f.Add("\xf0\x9f\x98", uint64(2))
	f.Fuzz(func(t *testing.T, content string, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		rewards := make(CharRewards, utf8.RuneCountInString(content)+1)
		want := 0.0
		for i := range rewards {
			rewards[i] = float64(rng.IntN(100))
			want += rewards[i]
		}
		var widths []int
		for left := len(content); left > 0; {
			w := rng.IntN(min(left, 5) + 1)
			widths, left = append(widths, w), left-w
		}
		got, err := rewards.Tokens(content, append(widths, 0))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range got {
			want -= r
		}
		if want != 0 {
			t.Fatalf("%v of %q over %v: %v", rewards, content, widths, got)
		}
	})
}

type groupScorer func([]Rollout) ([]Score, error)

func (g groupScorer) ScoreGroup(_ context.Context, _ json.RawMessage, group []Rollout) ([]Score, error) {
	return g(group)
}

func TestScoreGroup(t *testing.T) {
	group := []Rollout{
		{Messages: []Message{User("?"), Assistant("a")}, Replies: []int{1}, Score: Score{Stop: "won"}},
		{Messages: []Message{User("?"), Assistant("bc")}, Replies: []int{1}, Score: Score{Stop: "lost"}},
	}
	run := func(g groupScorer) ([]Score, error) { return ScoreGroup(context.Background(), g, nil, group) }
	scores, err := run(func(r []Rollout) ([]Score, error) {
		return []Score{{Rewards: Rewards{"longer": Value(0)}}, {CharRewards: []CharRewards{{1, 2, 3}}, Stop: "best"}}, nil
	})
	if err != nil || scores[0].Stop != "won" || scores[1].Stop != "best" {
		t.Errorf("%+v, %v", scores, err)
	}
	shown := []Rollout{{Messages: []Message{User("?"), Assistant("an example"), User("?"), Assistant("a")}, Replies: []int{3}}}
	if _, err := ScoreGroup(context.Background(), groupScorer(func([]Rollout) ([]Score, error) {
		return []Score{{CharRewards: []CharRewards{{1, 2}}}}, nil
	}), nil, shown); err != nil {
		t.Errorf("a prompt with a message of the policy's role: %v", err)
	}
	for name, g := range map[string]groupScorer{
		"fails":     func([]Rollout) ([]Score, error) { return nil, errors.New("no judge") },
		"too few":   func([]Rollout) ([]Score, error) { return make([]Score, 1), nil },
		"bad chars": func([]Rollout) ([]Score, error) { return []Score{{CharRewards: []CharRewards{{1}}}, {}}, nil },
		"panics":    func(r []Rollout) ([]Score, error) { return make([]Score, len(r[2].Messages)), nil },
	} {
		_, err := run(g)
		var p *PanicError
		if err == nil || errors.As(err, &p) != (name == "panics") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHoldOut(t *testing.T) {
	var texts []string
	for i := range 5000 {
		texts = append(texts, fmt.Sprint("text ", i))
	}
	train, eval := HoldOut(texts, 20)
	if share := float64(len(eval)) / 5000; len(train)+len(eval) != 5000 || share < 0.18 || share > 0.22 {
		t.Errorf("%d and %d texts", len(train), len(eval))
	}
	few, fewEval := HoldOut(texts[:100], 20)
	for _, text := range few {
		if !slices.Contains(train, text) {
			t.Errorf("%q changes its split", text)
		}
	}
	for _, text := range fewEval {
		if !slices.Contains(eval, text) {
			t.Errorf("%q changes its split", text)
		}
	}
	if texts[0] != "text 0" {
		t.Error("the argument is reordered")
	}
}

// The splits of every environment hang on these figures.
func TestHashNeverChanges(t *testing.T) {
	for text, want := range map[string]uint64{"": 0xefd01f60ba992926, "crane": 0xd740b3f045d20f21} {
		if got := Hash(text); got != want {
			t.Errorf("%q: %#x, want %#x", text, got, want)
		}
	}
}

func TestCheckIndex(t *testing.T) {
	i := Info{Name: "x", Train: 2, Eval: 1}
	for _, test := range []struct {
		split Split
		index int
		ok    bool
	}{{Train, 0, true}, {Train, 1, true}, {Train, 2, false}, {Eval, 1, false}, {Eval, 0, true}, {Train, -1, false}, {"test", 0, false}} {
		if err := CheckIndex(i, test.split, test.index); (err == nil) != test.ok {
			t.Errorf("%s %d: %v", test.split, test.index, err)
		}
	}
}
