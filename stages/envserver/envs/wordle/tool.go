package wordle

import (
	"context"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// toolGame takes guesses as calls of the tool Guess.
type toolGame struct{ *game }

// GuessArgs are the arguments of the tool Guess.
type GuessArgs struct {
	_    struct{} `tool:"Guess the secret word."`
	Word string   `json:"word" jsonschema:"a five-letter English word"`
}

// Guess is the tool.
func (g *toolGame) Guess(_ context.Context, args GuessArgs) (string, error) {
	h, refusal := g.guess(lower(strings.TrimSpace(args.Word)))
	if refusal != "" {
		return "", env.Refuse("%s", refusal)
	}
	if g.cfg.Prompt == "compact" {
		return h.board(), nil
	}
	return g.answerTo(h, ""), nil
}

// Done implements [env.Finisher].
func (g *toolGame) Done() bool { return g.over() }

// Prompt implements [env.Episode].
func (g *toolGame) Prompt() []env.Message {
	if g.cfg.Prompt == "compact" {
		return []env.Message{env.User(g.opening())}
	}
	return []env.Message{
		env.System(g.rules() + " Guess with the tool Guess."),
		env.User(g.opening()),
	}
}

// Reply implements [env.Episode]: a reply without a call is a guess that is no word.
func (g *toolGame) Reply(context.Context, env.Message) (env.Turn, error) {
	_, _ = g.guess("")
	if g.over() {
		return env.Turn{Done: true}, nil
	}
	return env.Turn{Messages: []env.Message{env.User(g.answerTo(hint{}, "call the tool Guess"))}}, nil
}
