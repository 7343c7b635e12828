package remote

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"

	"github.com/prl-project/prl/stages/inference"
)

// A dialect is how one make of server is spoken to. It has no state.
type dialect interface {
	// generate asks for one completion: r.MaxTokens is set, r.Policy is of no meaning.
	generate(ctx context.Context, c *client, r inference.Request) (answer, error)
	// probe asks for the log-probabilities of all tokens but the first, at temperature 1; the first one's is 0. The labels are
	// those of one token that is sampled behind them.
	probe(ctx context.Context, c *client, tokens []int32) ([]float32, []span, error)
	// health asks whether the server can work; what it is to be asked otherwise is of no use where this fails.
	health(ctx context.Context, c *client) error
	// longest asks how many tokens a sequence may have.
	longest(ctx context.Context, c *client) (int, error)
	// label asks under which label the server samples.
	label(ctx context.Context, c *client) (string, error)
	// pause freezes what runs, empties the caches, and returns when nothing is sampled any more.
	pause(ctx context.Context, c *client) error
	// relabel says under which label is sampled from now on. The server is paused.
	relabel(ctx context.Context, c *client, label string) error
	// load replaces the weights by those of a folder, as the server sees it, and then the label, which is loading, by that of
	// theirs: in one step, or not where it is another than loading by then. The server is paused.
	load(ctx context.Context, c *client, folder, loading, label string) error
	// resume lets what was frozen go on. It does nothing to a server that is not paused.
	resume(ctx context.Context, c *client) error
	// afterTemperature is what must be set for log-probabilities after temperature.
	afterTemperature() string
}

// span says under which label the tokens [Start, End) of a completion were sampled. It is the same for both makes.
type span struct {
	Version string `json:"version"`
	Start   int    `json:"start"`
	End     int    `json:"end"`
}

// answer is a completion as a server gives it.
type answer struct {
	prompt   []int32 // as the server saw it; nil where it does not say
	tokens   []int32
	logprobs []float64
	top      [][]inference.TopLogprob
	cached   int
	finish   string
	spans    []span
}

// errAborted is a completion that the server gave up.
var errAborted = errors.New("the server aborted the completion")

// errLabel is wrapped where a server samples under a label that it should not have: it has lost its weights.
var errLabel = errors.New("it samples with other weights than it was given: it was started anew, or another inference stage leads it, too")

// unusable is an answer that would be the same again.
type unusable struct{ error }

// Unwrap gives what is wrong with it.
func (u unusable) Unwrap() error { return u.error }

// checked holds an answer to what was asked.
func (a answer) checked(r inference.Request) (answer, error) {
	n := len(a.tokens)
	switch {
	case a.finish == "abort":
		return a, errAborted
	case n == 0:
		return a, errors.New("no tokens")
	case n > r.MaxTokens:
		return a, unusable{fmt.Errorf("%d tokens, %d were asked for", n, r.MaxTokens)}
	case len(a.logprobs) != n:
		return a, unusable{fmt.Errorf("%d log-probabilities for %d tokens", len(a.logprobs), n)}
	case a.finish != inference.FinishStop && a.finish != inference.FinishLength:
		return a, unusable{fmt.Errorf("finish reason %q", a.finish)}
	case a.finish == inference.FinishStop && !slices.Contains(r.StopTokens, a.tokens[n-1]):
		return a, unusable{fmt.Errorf("it stopped at token %d, which is none of the stop tokens %v: name it among them", a.tokens[n-1], r.StopTokens)}
	case r.TopLogprobs > 0 && len(a.top) != n:
		return a, unusable{fmt.Errorf("%d lists of the most probable tokens for %d tokens", len(a.top), n)}
	}
	for i, l := range a.logprobs {
		if !sound(l) {
			return a, unusable{fmt.Errorf("log-probability %d is %g", i, l)}
		}
	}
	return a, nil
}

// clamped is what vLLM says for a log-probability that is not finite.
const clamped = -9999

// sound says whether a number can be a log-probability, but for rounding.
func sound(l float64) bool {
	const rounding = 1e-3
	return !math.IsNaN(l) && l > clamped && l <= rounding
}

// float32Of is a sound log-probability without what rounding put above 0.
func float32Of(l float64) float32 { return float32(min(l, 0)) }

// mostProbable keeps the n most probable tokens, the most probable first, of a list that may have the sampled one, too.
func mostProbable(list []inference.TopLogprob, n int) []inference.TopLogprob {
	list = slices.DeleteFunc(slices.Clone(list), func(t inference.TopLogprob) bool { return !sound(float64(t.Logprob)) })
	slices.SortStableFunc(list, func(a, b inference.TopLogprob) int {
		switch {
		case a.Logprob != b.Logprob && a.Logprob > b.Logprob:
			return -1
		case a.Logprob != b.Logprob:
			return 1
		}
		return int(a.Token) - int(b.Token)
	})
	list = slices.CompactFunc(list, func(a, b inference.TopLogprob) bool { return a.Token == b.Token })
	return list[:min(n, len(list))]
}

// nonnegative is a seed that every server takes, the same for the same one: vLLM takes −1 for none.
func nonnegative(seed int64) int64 { return seed & math.MaxInt64 }

// modelCards are /v1/models of vLLM and SGLang.
type modelCards struct {
	Data []struct {
		ID          string `json:"id"`
		Parent      string `json:"parent"` // of an adapter
		MaxModelLen int    `json:"max_model_len"`
	} `json:"data"`
}

// longestOf asks /v1/models how long a sequence of a model may be; of the first one where name is empty.
func longestOf(ctx context.Context, c *client, name string) (int, error) {
	var cards modelCards
	if err := c.call(ctx, http.MethodGet, "/v1/models", nil, &cards); err != nil {
		return 0, err
	}
	var ids []string
	for _, card := range cards.Data {
		if card.Parent == "" && (name == "" || card.ID == name) {
			return card.MaxModelLen, nil
		}
		ids = append(ids, card.ID)
	}
	return 0, fmt.Errorf("%s has no model %q (inference.model), but %q", c.base, name, ids)
}
