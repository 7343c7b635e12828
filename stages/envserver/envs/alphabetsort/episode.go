package alphabetsort

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// What stands behind a new name.
const (
	compactMark = "+"
	fullMark    = " // new name!"
)

// episode is one conversation.
type episode struct {
	cfg     Config
	task    task
	answers [][]string // lines of the answer of each turn so far
}

// Prompt implements [env.Episode].
func (e *episode) Prompt() []env.Message { return []env.Message{env.User(e.show(0))} }

// show is what the policy sees of a turn.
func (e *episode) show(turn int) string {
	names := e.task.Turns[turn]
	if e.cfg.Prompt == "compact" {
		return e.task.By + " " + strings.Join(names, " ")
	}
	if turn == 0 {
		return fmt.Sprintf("Put these names into alphabetical order by %s name, one a line, between <alphabetical_sorted> and "+
			"</alphabetical_sorted>: %s", strings.ToUpper(e.task.By), strings.Join(names, ", "))
	}
	return fmt.Sprintf("Here are more names: %s\nPut ALL names, those from before and these, into alphabetical order by %s name, one a line, "+
		"between <combined_alphabetical_sorted> and </combined_alphabetical_sorted>. Write \"%s\" behind each name that is new in this message.",
		strings.Join(names, ", "), strings.ToUpper(e.task.By), strings.TrimSpace(fullMark))
}

// Reply implements [env.Episode].
func (e *episode) Reply(_ context.Context, reply env.Message) (env.Turn, error) {
	e.answers = append(e.answers, e.read(reply.Content))
	if turn := len(e.answers); turn < len(e.task.Turns) {
		return env.Turn{Messages: []env.Message{env.User(e.show(turn))}}, nil
	}
	return env.Turn{Done: true}, nil
}

// read is the lines of the answer in a reply.
func (e *episode) read(reply string) []string {
	if e.cfg.Prompt == "compact" {
		return strings.Fields(reply)
	}
	tag := "alphabetical_sorted>"
	if len(e.answers) > 0 {
		tag = "combined_" + tag
	}
	open := strings.LastIndex(reply, "<"+tag)
	if open < 0 {
		return nil
	}
	text, _, closed := strings.Cut(reply[open+1+len(tag):], "</"+tag)
	if !closed {
		return nil
	}
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// mark is what stands behind a new name.
func (e *episode) mark() string {
	if e.cfg.Prompt == "compact" {
		return compactMark
	}
	return fullMark
}

// Score implements [env.Episode].
func (e *episode) Score(context.Context) (env.Score, error) {
	var sorted, exact float64
	for turn, answer := range e.answers {
		s := similarity(answer, e.task.truth(turn, e.mark()))
		sorted += math.Pow(s, e.cfg.Power)
		exact += env.Bool(s == 1)
	}
	turns := float64(len(e.task.Turns))
	return env.Score{
		Rewards: env.Rewards{"sorted": env.Value(sorted / turns)},
		Metrics: map[string]float64{"exact": exact / turns, "turns": float64(len(e.answers))},
	}, nil
}

// similarity is twice the length of the longest common subsequence of lines over the number of both; the truth is not empty. Of
// an answer of more than twice the lines of the truth the rest is only counted.
func similarity(answer, truth []string) float64 {
	seen := answer[:min(len(answer), 2*len(truth))]
	longest := make([]int, len(truth)+1) // of the answer so far and the first lines of the truth
	for _, line := range seen {
		diagonal := 0
		for i, want := range truth {
			above := longest[i+1]
			if strings.EqualFold(line, want) {
				longest[i+1] = diagonal + 1
			} else {
				longest[i+1] = max(above, longest[i])
			}
			diagonal = above
		}
	}
	return 2 * float64(longest[len(truth)]) / float64(len(answer)+len(truth))
}
