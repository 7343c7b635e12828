package reversetext

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/prl-project/prl/stages/envserver/env"
)

// reverse is the text backwards, by code points.
func reverse(text string) []rune {
	r := []rune(text)
	slices.Reverse(r)
	return r
}

// agreement is the number of equal positions over the longer length; the truth is not empty.
func agreement(answer, truth []rune) float64 {
	right := 0
	for i := range min(len(answer), len(truth)) {
		right += int(env.Bool(answer[i] == truth[i]))
	}
	return float64(right) / float64(max(len(answer), len(truth)))
}

// charRewards are those of a reply as it was sent; space around the answer gets 0.
func charRewards(reply string, truth []rune) env.CharRewards {
	rewards := make(env.CharRewards, utf8.RuneCountInString(reply)+1)
	first := utf8.RuneCountInString(reply) - utf8.RuneCountInString(strings.TrimLeftFunc(reply, unicode.IsSpace))
	answer := []rune(strings.TrimSpace(reply))
	for i, c := range answer {
		if i < len(truth) {
			rewards[first+i] = env.Bool(c == truth[i])
		}
	}
	rewards[len(rewards)-1] = env.Bool(len(answer) == len(truth))
	return rewards
}
