// Package reversetext is the environment "reverse-text": the policy is shown a piece of English text and answers it backwards.
//
// The text is real: words, or with phrase_words > 1 runs of consecutive words within a sentence, of "Alice's Adventures in
// Wonderland" (Lewis Carroll, 1865; public domain, see LICENSE.alice), in lower case, letters only (words with an apostrophe and
// Roman chapter numbers are left out; a phrase does not cross punctuation). Every distinct piece of min_length to max_length
// characters is one task; by default there are some 1,400 words.
//
// Held out: a hash of the text alone decides which split it is in, so the splits are disjoint, and a piece stays in its split
// whatever the other options are. With phrases, an eval phrase may share words with training phrases.
//
// Reward "positions" is the number of positions at which answer and truth agree, divided by the longer of the two lengths: 1
// for the truth only, 0 for an empty answer. Space around the answer is ignored. Character rewards: 1 for a character that is
// right at its position, else 0; the end gets 1 if the answer is as long as the truth. Metrics: "exact" (1 or 0) and "length"
// (1 if the length is right).
//
// Compact prompt: the text alone. Full prompt: an instruction as system message before it. One turn. The seed plays no part.
//
// Demonstration: the text and its answer, "alice ecila".
package reversetext

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Config holds the options of reverse-text.
type Config struct {
	MinLength   int `toml:"min_length" json:"min_length"`     // characters, at least 1; default 3
	MaxLength   int `toml:"max_length" json:"max_length"`     // characters, min_length to 1000; default 6
	PhraseWords int `toml:"phrase_words" json:"phrase_words"` // longest run of words, 1 (default) to 50
	EvalPercent int `toml:"eval_percent" json:"eval_percent"` // share of the texts that is held out, 1 to 50; default 20
	// Prompt is "compact" (default) or "full".
	Prompt string `toml:"prompt" json:"prompt"`
}

// Defaults is the configuration of single words of three to six letters.
func Defaults() Config {
	return Config{MinLength: 3, MaxLength: 6, PhraseWords: 1, EvalPercent: 20, Prompt: "compact"}
}

// Validate returns every conflict, each with what to change.
func (c Config) Validate() error {
	var errs []error
	if c.MinLength < 1 || c.MaxLength < c.MinLength || c.MaxLength > 1000 {
		errs = append(errs, fmt.Errorf("min_length = %d, max_length = %d: want 1 <= min_length <= max_length <= 1000", c.MinLength, c.MaxLength))
	}
	if c.PhraseWords < 1 || c.PhraseWords > 50 {
		errs = append(errs, fmt.Errorf("phrase_words = %d: want 1 to 50", c.PhraseWords))
	}
	errs = append(errs, env.CheckPercent(c.EvalPercent), env.CheckPrompt(c.Prompt))
	return errors.Join(errs...)
}

// ReverseText is the environment.
type ReverseText struct {
	cfg   Config
	texts map[env.Split][]string
}

// New makes the environment of a configuration; an error if that is not valid or leaves a split without a text.
func New(cfg Config) (*ReverseText, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	train, eval := env.HoldOut(pieces(alice, cfg), cfg.EvalPercent)
	if len(train) == 0 || len(eval) == 0 {
		return nil, fmt.Errorf("min_length = %d, max_length = %d, phrase_words = %d: %d training and %d eval texts; widen the lengths",
			cfg.MinLength, cfg.MaxLength, cfg.PhraseWords, len(train), len(eval))
	}
	return &ReverseText{cfg: cfg, texts: map[env.Split][]string{env.Train: train, env.Eval: eval}}, nil
}

// Info implements [env.Environment].
func (r *ReverseText) Info() env.Info {
	return env.Info{
		Name: "reverse-text", Version: "1", Train: len(r.texts[env.Train]), Eval: len(r.texts[env.Eval]), Disjoint: true, MaxTurns: 1,
	}
}

// task is the JSON of a task.
type task struct {
	Text string `json:"text"`
}

// Task implements [env.Environment]: {"text": "..."}.
func (r *ReverseText) Task(split env.Split, index int) (json.RawMessage, error) {
	if err := env.CheckIndex(r.Info(), split, index); err != nil {
		return nil, err
	}
	return json.Marshal(task{r.texts[split][index]})
}

// Start implements [env.Environment].
func (r *ReverseText) Start(_ context.Context, data json.RawMessage, _ int64) (env.Episode, error) {
	t, err := decode(data)
	if err != nil {
		return nil, err
	}
	return &episode{full: r.cfg.Prompt == "full", text: t.Text}, nil
}

// Rescore implements [env.Rescorer].
func (r *ReverseText) Rescore(ctx context.Context, task json.RawMessage, seed int64, messages []env.Message, ended bool) (env.Score, error) {
	return env.Rescore(ctx, r, task, seed, messages, ended)
}

// Demonstrate implements [env.Demonstrator].
func (r *ReverseText) Demonstrate(data json.RawMessage, _ int64) (string, error) {
	t, err := decode(data)
	if err != nil {
		return "", err
	}
	return t.Text + " " + string(reverse(t.Text)), nil
}

func decode(data json.RawMessage) (t task, err error) {
	if err := json.Unmarshal(data, &t); err != nil {
		return t, fmt.Errorf("decode task: %w", err)
	}
	if t.Text == "" {
		return t, fmt.Errorf("task %s has no text", data)
	}
	return t, nil
}

// episode is one answer.
type episode struct {
	full     bool
	text     string
	answered bool
	answer   string
}

// Prompt implements [env.Episode].
func (e *episode) Prompt() []env.Message {
	if !e.full {
		return []env.Message{env.User(e.text)}
	}
	return []env.Message{
		env.System("Write the user's text backwards, character by character. Answer with the reversed text and nothing else."),
		env.User(e.text),
	}
}

// Reply implements [env.Episode].
func (e *episode) Reply(_ context.Context, reply env.Message) (env.Turn, error) {
	e.answered, e.answer = true, reply.Content
	return env.Turn{Done: true}, nil
}

// Score implements [env.Episode].
func (e *episode) Score(context.Context) (env.Score, error) {
	truth := reverse(e.text)
	answer := []rune(strings.TrimSpace(e.answer))
	sameLength := len(answer) == len(truth)
	s := env.Score{
		Rewards: env.Rewards{"positions": env.Value(agreement(answer, truth))},
		Metrics: map[string]float64{"exact": env.Bool(slices.Equal(answer, truth)), "length": env.Bool(sameLength)},
	}
	if e.answered {
		s.CharRewards = []env.CharRewards{charRewards(e.answer, truth)}
	}
	return s, nil
}
