package envtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/prl-project/prl/stages/envserver/env"
)

// tooled is a toy with a tool, which may be broken in ways of its own.
type tooled struct{ toy }

func (e tooled) Start(ctx context.Context, task json.RawMessage, seed int64) (env.Episode, error) {
	ep, err := e.toy.Start(ctx, task, seed)
	if err != nil {
		return nil, err
	}
	return &shelf{episode: ep.(*episode)}, nil
}

type shelf struct {
	*episode
	called int
}

type takeArgs struct {
	Thing string   `json:"thing" enum:"book,cup"`
	Count int      `json:"count"`
	Of    []string `json:"of,omitempty"`
}

func (s *shelf) Take(_ context.Context, args takeArgs) (string, error) {
	s.called++
	switch {
	case s.is("fails at odd arguments") && args.Count < 0:
		return "", fmt.Errorf("%d things", args.Count)
	case args.Count < 0:
		return "", env.Refuse("%d things", args.Count)
	}
	return strings.Repeat(args.Thing, min(args.Count, 3)), nil
}

func (s *shelf) Score(ctx context.Context) (env.Score, error) {
	if s.is("cannot score without a call") && s.called == 0 && s.turns == 0 {
		return env.Score{}, errors.New("nothing was taken")
	}
	return s.episode.Score(ctx)
}

func TestChecksOfTools(t *testing.T) {
	for broken, by := range map[string]string{"fails at odd arguments": "Episodes", "cannot score without a call": "Calls", "": ""} {
		e := tooled{toy{broken: broken, calls: &atomic.Int64{}}}
		found := map[string]error{}
		for _, c := range checks {
			if err := c.check(e, []Player{OneOf("a", "b"), Noise, Typed}); err != nil {
				found[c.name] = err
			}
		}
		if by == "" && len(found) > 0 || by != "" && found[by] == nil {
			t.Errorf("%q: found %v, want %q", broken, found, by)
		}
	}
}

// Typed makes calls that fit, so that a tool is reached with whatever its types allow.
func TestTypedCallsFit(t *testing.T) {
	tools, err := env.Tools(&shelf{})
	if err != nil {
		t.Fatal(err)
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(tools[0].Schema, &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	rng, things, lists := rand.New(rand.NewPCG(1, 2)), map[any]bool{}, 0
	for range 300 {
		var args map[string]any
		if err := json.Unmarshal([]byte(text(value(rng, &schema, 0))), &args); err != nil {
			t.Fatal(err)
		}
		if err := resolved.Validate(args); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		things[args["thing"]] = true
		if args["of"] != nil {
			lists++
		}
	}
	if len(things) != 2 || lists == 0 || lists == 300 {
		t.Errorf("things %v, %d lists", things, lists)
	}
}

// No wrong call fits.
func TestWrongCallsAreWrong(t *testing.T) {
	s := &shelf{episode: &episode{}}
	tools, err := env.Tools(s)
	if err != nil {
		t.Fatal(err)
	}
	calls := wrongCalls(tools)
	if len(calls) < 20 {
		t.Errorf("%d calls", len(calls))
	}
	for _, call := range calls {
		m, err := env.Call(t.Context(), s, call)
		if err != nil || !strings.HasPrefix(m.Content, "error: ") {
			t.Errorf("%.50s(%.50s): %.100q, %v", call.Name, call.Arguments, m.Content, err)
		}
	}
	if s.called > 0 {
		t.Errorf("the tool was reached %d times", s.called)
	}
}

// Each agent's player gets its own conversation, and scripts run in each.
func TestAgentsAndScripts(t *testing.T) {
	e := pairs{toy{calls: &atomic.Int64{}}}
	r, err := Play(t.Context(), e, json.RawMessage(`{}`), 1, Script("one", "two"))
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, i := range r.Replies {
		said = append(said, r.Messages[i].Agent+":"+r.Messages[i].Content)
	}
	if got := strings.Join(said, " "); got != "a:one b:one a:two b:two a:two" {
		t.Errorf("said %s", got)
	}
}

type pairs struct{ toy }

func (p pairs) Info() env.Info { return env.Info{Name: "pairs", Version: "1", Train: 1, MaxTurns: 5} }

func (p pairs) Start(context.Context, json.RawMessage, int64) (env.Episode, error) {
	return &couple{episode: &episode{toy: p.toy}}, nil
}

type couple struct{ *episode }

func (*couple) Agents() []string { return []string{"a", "b"} }

func (*couple) PromptOf(string) []env.Message { return nil }

func (c *couple) Reply(context.Context, env.Message) (env.Turn, error) {
	c.turns++
	return env.Turn{Agent: []string{"a", "b"}[c.turns%2], Messages: []env.Message{env.User("?")}, Done: c.turns == 5}, nil
}
