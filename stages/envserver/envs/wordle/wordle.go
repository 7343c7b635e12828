// Package wordle is the environment "wordle": find a five-letter English word in six guesses.
//
// Every reply is one guess. A word gets a mark per letter: g (green: right here), y (yellow: elsewhere), . (grey: not in the
// answer, or not as often). Text that is not a word of the list is refused; a refused guess tells nothing and uses up its turn.
// mode = "hard" also refuses guesses that do not use every hint so far: green letters in place, yellow ones somewhere. shown = n is
// an easier game, with n = 1 that of the television show Lingo: the first n letters of the answer are shown from the start, and
// words that do not begin with them are refused. The episode ends when the word is found or no guess is left. Upper case and space
// around the guess do not matter.
//
// Words: 6,372 five-letter words of SCOWL 2020.12.07 (Kevin Atkinson; the licence is in LICENSE.scowl), slurs and vulgar words
// left out, from the most common ones (SCOWL level 10) to those of large dictionaries (level 70). Answers are drawn from levels
// up to 35: 3,450 words that most readers know. words = n keeps only the n most common (by level; within a level the order is a
// fixed shuffle: there are 600 words of level 10, 765 of 20, 2,085 of 35), answers = n draws from the n most common of those:
// words = 200 is a game for a model that has to learn to spell from nothing.
//
// Held out: a hash of the word puts about one answer in five into the eval split, whatever the other options are; the splits are
// disjoint. Words of the eval split are words all the same: a training game accepts them as guesses.
//
// Compact prompt: the first message is ".....", with letters for those that are shown; then each message is the guess with ? for a
// yellow letter and . for a grey one ("c.a?."), or "x" for a refused guess. The reply is the guess. Full prompt: the rules as system
// message, and sentences with the marks; the guess may stand in <guess></guess> (the last one counts) after any text. With tool =
// true guesses come as calls of the tool Guess, and anything else is refused.
//
// Reward components, each from 0 to 1, with weights from the configuration: "solved"; "green" and "yellow", the shares of the
// letters behind the shown ones that the last accepted guess has in place, and elsewhere (so what is known is worth keeping; the
// solution is all green); "valid", the share of guesses that were words and within the rules; "spelling", the mean share of a guess
// that begins some word, one that begins as shown (weight 0: a figure to look at, unless it is given one to lead a model that does
// not know a word). Metrics: "turns", "not_words", "refused" (words that do not begin as shown or break a rule of hard mode).
//
// char_rewards = true also says which characters earned what: a letter gets the weight of spelling while it continues the
// beginning of a word; in an accepted guess, behind the shown letters, also that of green, every time, or that of yellow, unless
// the letter was tried in the same place before. The end of the reply gets the weights of valid and solved, text around the guess 0.
//
// The seed plays no part: a game depends on task and guesses alone. The demonstration is the answer.
package wordle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Config holds the options of wordle.
type Config struct {
	Mode    string `toml:"mode" json:"mode"`       // "easy" (default) or "hard"
	Guesses int    `toml:"guesses" json:"guesses"` // 1 to 100; default 6
	Words   int    `toml:"words" json:"words"`     // number of words, most common first; default 0: all
	Answers int    `toml:"answers" json:"answers"` // number of those that can be answers; default 0: all up to SCOWL level 35
	Shown   int    `toml:"shown" json:"shown"`     // number of the answer's first letters that are shown, 0 to 4; default 0
	// EvalPercent is the share of the answers that is held out, 1 to 50; default 20.
	EvalPercent int     `toml:"eval_percent" json:"eval_percent"`
	Prompt      string  `toml:"prompt" json:"prompt"`             // "compact" (default) or "full"
	Tool        bool    `toml:"tool" json:"tool"`                 // guesses are tool calls; default false
	CharRewards bool    `toml:"char_rewards" json:"char_rewards"` // rewards of single characters besides; default false
	Weights     Weights `toml:"weights" json:"weights"`
}

// Weights are what the reward components count; at least 0.
type Weights struct {
	Solved   float64 `toml:"solved" json:"solved"`     // for finding the answer; default 1
	Green    float64 `toml:"green" json:"green"`       // for the share of letters in their place; default 0.2
	Yellow   float64 `toml:"yellow" json:"yellow"`     // for the share of letters in another place; default 0.1
	Valid    float64 `toml:"valid" json:"valid"`       // for the share of guesses that are words; default 0.1
	Spelling float64 `toml:"spelling" json:"spelling"` // for the share of a guess that begins a word; default 0
}

// Defaults is the configuration of the game as people play it, with compact messages.
func Defaults() Config {
	return Config{
		Mode: "easy", Guesses: 6, EvalPercent: 20, Prompt: "compact",
		Weights: Weights{Solved: 1, Green: 0.2, Yellow: 0.1, Valid: 0.1},
	}
}

// Validate returns every conflict, each with what to change.
func (c Config) Validate() error {
	var errs []error
	if c.Mode != "easy" && c.Mode != "hard" {
		errs = append(errs, fmt.Errorf("mode = %q: want easy or hard", c.Mode))
	}
	if c.Guesses < 1 || c.Guesses > 100 {
		errs = append(errs, fmt.Errorf("guesses = %d: want 1 to 100", c.Guesses))
	}
	if c.Words < 0 || c.Words > len(dictionary) {
		errs = append(errs, fmt.Errorf("words = %d: want 1 to %d, or 0 for all", c.Words, len(dictionary)))
	}
	if limit := c.words(); c.Answers < 0 || c.Answers > limit {
		errs = append(errs, fmt.Errorf("answers = %d: want 1 to the number of words, %d, or 0 for the common ones", c.Answers, limit))
	}
	if c.Shown < 0 || c.Shown >= length {
		errs = append(errs, fmt.Errorf("shown = %d: want 0 to %d", c.Shown, length-1))
	}
	errs = append(errs, env.CheckPercent(c.EvalPercent), env.CheckPrompt(c.Prompt))
	if c.Tool && c.CharRewards {
		errs = append(errs, errors.New("tool and char_rewards: a tool call has no characters to reward; leave one out"))
	}
	for _, w := range []float64{c.Weights.Solved, c.Weights.Green, c.Weights.Yellow, c.Weights.Valid, c.Weights.Spelling} {
		if !(w >= 0 && w <= math.MaxFloat32) {
			errs = append(errs, fmt.Errorf("weights: %v: want a number of at least 0", w))
		}
	}
	return errors.Join(errs...)
}

// words is the number of words the configuration keeps.
func (c Config) words() int {
	if c.Words == 0 {
		return len(dictionary)
	}
	return c.Words
}

// Wordle is the environment.
type Wordle struct {
	cfg     Config
	lexicon *lexicon
	answers map[env.Split][]string
	// baselines are computed when they are first asked for.
	baselines map[env.Split]func() map[string]float64
}

// New makes the environment of a configuration; an error if that is not valid or leaves a split without an answer.
func New(cfg Config) (*Wordle, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	words := dictionary[:cfg.words()]
	n := cfg.Answers
	if n == 0 {
		n = min(common, len(words))
	}
	train, eval := env.HoldOut(words[:n], cfg.EvalPercent)
	if len(train) == 0 || len(eval) == 0 {
		return nil, fmt.Errorf("words = %d, answers = %d: %d training and %d eval answers; allow more of them", cfg.Words, cfg.Answers, len(train), len(eval))
	}
	w := &Wordle{cfg: cfg, lexicon: newLexicon(words), answers: map[env.Split][]string{env.Train: train, env.Eval: eval}}
	w.baselines = map[env.Split]func() map[string]float64{
		env.Train: sync.OnceValue(func() map[string]float64 { return w.measure(train) }),
		env.Eval:  sync.OnceValue(func() map[string]float64 { return w.measure(eval) }),
	}
	return w, nil
}

// Info implements [env.Environment].
func (w *Wordle) Info() env.Info {
	return env.Info{
		Name: "wordle", Version: "1", Train: len(w.answers[env.Train]), Eval: len(w.answers[env.Eval]), Disjoint: true,
		MaxTurns: w.cfg.Guesses, CutReplies: true,
	}
}

// task is the JSON of a task.
type task struct {
	Answer string `json:"answer"`
}

// Task implements [env.Environment]: {"answer": "..."}.
func (w *Wordle) Task(split env.Split, index int) (json.RawMessage, error) {
	if err := env.CheckIndex(w.Info(), split, index); err != nil {
		return nil, err
	}
	return json.Marshal(task{w.answers[split][index]})
}

// Start implements [env.Environment]. The answer of a task from elsewhere need not be a word of the list.
func (w *Wordle) Start(_ context.Context, data json.RawMessage, _ int64) (env.Episode, error) {
	t, err := decode(data)
	if err != nil {
		return nil, err
	}
	g := &game{cfg: w.cfg, lexicon: w.lexicon, answer: t.Answer}
	if w.cfg.Tool {
		return &toolGame{game: g}, nil
	}
	return &chatGame{game: g}, nil
}

// Rescore implements [env.Rescorer].
func (w *Wordle) Rescore(ctx context.Context, task json.RawMessage, seed int64, messages []env.Message, ended bool) (env.Score, error) {
	return env.Rescore(ctx, w, task, seed, messages, ended)
}

// Demonstrate implements [env.Demonstrator].
func (w *Wordle) Demonstrate(data json.RawMessage, _ int64) (string, error) {
	t, err := decode(data)
	return t.Answer, err
}

func decode(data json.RawMessage) (t task, err error) {
	if err := json.Unmarshal(data, &t); err != nil {
		return t, fmt.Errorf("decode task: %w", err)
	}
	if !wellFormed(t.Answer) {
		return t, fmt.Errorf("task %s: the answer is not five letters a to z", data)
	}
	return t, nil
}
