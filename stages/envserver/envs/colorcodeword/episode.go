package colorcodeword

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// episode is one conversation.
type episode struct {
	cfg     Config
	task    task
	images  []env.Image // of the turns
	answers []string    // of each turn so far
}

// Prompt implements [env.Episode].
func (e *episode) Prompt() []env.Message {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(e.task.Key)) {
		pairs = append(pairs, name+"="+e.task.Key[name])
	}
	text := strings.Join(pairs, " ")
	if e.cfg.Prompt == "full" {
		text = "Each colour stands for a letter: " + strings.Join(pairs, ", ") + ". Read the squares of the image from left to right. Which word do they " +
			"spell? Answer with <codeword>WORD</codeword>. More images may follow; then answer with the letters of all images from the first one on."
	}
	return []env.Message{{Role: env.RoleUser, Content: text, Images: e.images[:1:1]}}
}

// Reply implements [env.Episode].
func (e *episode) Reply(_ context.Context, reply env.Message) (env.Turn, error) {
	e.answers = append(e.answers, e.read(reply.Content))
	turn := len(e.answers)
	if turn == len(e.task.Turns) {
		return env.Turn{Done: true}, nil
	}
	m := env.Message{Role: env.RoleUser, Images: e.images[turn : turn+1 : turn+1]}
	if e.cfg.Prompt == "full" {
		m.Content = fmt.Sprintf("Here is image %d. Which word do all squares spell so far?", turn+1)
	}
	return env.Turn{Messages: []env.Message{m}}, nil
}

// read is the answer in a reply.
func (e *episode) read(reply string) string {
	if e.cfg.Prompt == "full" {
		const opening, closing = "<codeword>", "</codeword>"
		at := strings.LastIndex(reply, opening)
		if at < 0 {
			return ""
		}
		text, _, closed := strings.Cut(reply[at+len(opening):], closing)
		if !closed {
			return ""
		}
		reply = text
	}
	return strings.ToUpper(strings.TrimSpace(reply))
}

// Score implements [env.Episode].
func (e *episode) Score(context.Context) (env.Score, error) {
	var right, exact float64
	for turn, answer := range e.answers {
		word := e.task.word(turn)
		right += similarity(answer, word)
		exact += env.Bool(answer == word)
	}
	turns := float64(len(e.task.Turns))
	return env.Score{
		Rewards: env.Rewards{"codeword": env.Value(right / turns)},
		Metrics: map[string]float64{"exact": exact / turns, "turns": float64(len(e.answers))},
	}, nil
}

// similarity is the share of letters that are the same in the same place, of those of the longer text. word is not empty.
func similarity(answer, word string) float64 {
	same := 0
	for i := range min(len(answer), len(word)) {
		if answer[i] == word[i] {
			same++
		}
	}
	return float64(same) / float64(max(len(answer), len(word)))
}
