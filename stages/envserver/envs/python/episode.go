package python

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// longestCode is what is run of a reply, in bytes.
const longestCode = 1 << 18

// episode is one problem and the attempts at it.
type episode struct {
	cfg      Config
	sandbox  *sandbox
	task     task
	attempts int
	passed   int  // tests, in the last attempt
	late     int  // attempts that were stopped by the time limit
	ran      bool // the last attempt was run
}

// Prompt implements [env.Episode].
func (e *episode) Prompt() []env.Message {
	if e.cfg.Prompt == "compact" {
		return []env.Message{env.User(e.task.Prompt)}
	}
	return []env.Message{
		env.System("Solve the problem in Python 3, with its standard library only. Put the whole code into one block that begins with ```python " +
			"and ends with ```. It is called with hidden tests."),
		env.User(e.task.Prompt),
	}
}

// Reply implements [env.Episode]: an attempt. Only what keeps the code from being run at all is an error.
func (e *episode) Reply(ctx context.Context, reply env.Message) (env.Turn, error) {
	e.attempts++
	e.passed, e.ran = 0, false
	said, err := e.try(ctx, codeIn(reply.Content))
	if err != nil {
		return env.Turn{}, err
	}
	if e.passed == len(e.task.Tests) || e.attempts == e.cfg.Attempts {
		return env.Turn{Done: true}, nil
	}
	return env.Turn{Messages: []env.Message{env.User(said)}}, nil
}

// try runs code and says what became of it: how many tests pass, and what the first that does not was.
func (e *episode) try(ctx context.Context, code string) (said string, err error) {
	switch {
	case !strings.Contains(code, e.task.Function):
		return fmt.Sprintf("There is no function %s in the code.", e.task.Function), nil
	case len(code) > longestCode:
		return fmt.Sprintf("The code is longer than %d bytes.", longestCode), nil
	}
	calls := make([]json.RawMessage, len(e.task.Tests))
	for i, t := range e.task.Tests {
		if calls[i], err = json.Marshal(t.Args); err != nil {
			return "", fmt.Errorf("encode test %d: %w", i, err)
		}
	}
	o, err := e.sandbox.run(ctx, code, e.task.Function, calls)
	if err != nil {
		return "", fmt.Errorf("run code: %w", err)
	}
	e.ran = true
	if o.stopped == "time" {
		e.late++
	}
	first := -1
	for i, t := range e.task.Tests {
		if o.returned[i] != nil && equal(o.returned[i], t.Want) {
			e.passed++
		} else if first < 0 {
			first = i
		}
	}
	if first < 0 {
		return "", nil
	}
	args := strings.TrimSuffix(strings.TrimPrefix(string(calls[first]), "["), "]")
	said = fmt.Sprintf("%d of %d tests pass. %s(%s) ", e.passed, len(calls), e.task.Function, cut(args))
	if o.returned[first] != nil {
		said += "returned " + cut(string(o.returned[first]))
	} else {
		said += "failed: " + o.errors[first]
	}
	if o.printed != "" {
		said += "\nPrinted: " + cut(o.printed)
	}
	return said, nil
}

// cut keeps what a message should have of a text.
func cut(text string) string {
	const most = 300
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

var block = regexp.MustCompile("(?s)```(?:python|py)?[ \t]*\n(.*?)(?:```|$)")

// codeIn is the last block of code in a reply, or all of a reply without one.
func codeIn(reply string) string {
	if all := block.FindAllStringSubmatch(reply, -1); len(all) > 0 {
		return all[len(all)-1][1]
	}
	return reply
}

// Score implements [env.Episode].
func (e *episode) Score(context.Context) (env.Score, error) {
	solved := e.passed == len(e.task.Tests)
	s := env.Score{
		Rewards: env.Rewards{
			"solved": env.Weighted(env.Bool(solved), e.cfg.Weights.Solved),
			"tests":  env.Weighted(float64(e.passed)/float64(len(e.task.Tests)), e.cfg.Weights.Tests),
		},
		Metrics: map[string]float64{"attempts": float64(e.attempts), "timeouts": float64(e.late), "ran": env.Bool(e.ran)},
		Stop:    "failed",
	}
	if solved {
		s.Stop = "solved"
	}
	return s, nil
}
