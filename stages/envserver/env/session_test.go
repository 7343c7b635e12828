package env

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// scripted is an environment and its episode in one; hooks that are nil do something harmless.
type scripted struct {
	maxTurns int
	start    func() (Episode, error)
	prompt   []Message
	reply    func(Message) (Turn, error)
	score    func() (Score, error)
	closed   int
}

func (s *scripted) Info() Info {
	return Info{Name: "scripted", Version: "1", Train: 1, MaxTurns: s.maxTurns}
}

func (s *scripted) Task(Split, int) (json.RawMessage, error) { return json.RawMessage(`{}`), nil }

func (s *scripted) Start(context.Context, json.RawMessage, int64) (Episode, error) {
	if s.start != nil {
		return s.start()
	}
	return s, nil
}

func (s *scripted) Prompt() []Message { return s.prompt }

func (s *scripted) Reply(_ context.Context, m Message) (Turn, error) {
	if s.reply != nil {
		return s.reply(m)
	}
	return Turn{Messages: []Message{User("go on")}}, nil
}

func (s *scripted) Score(context.Context) (Score, error) {
	if s.score != nil {
		return s.score()
	}
	return Score{}, nil
}

func (s *scripted) Close() error { s.closed++; return nil }

func script() *scripted { return &scripted{maxTurns: 3, prompt: []Message{User("?")}} }

func begin(t *testing.T, e Environment) *Session {
	t.Helper()
	s, err := Begin(context.Background(), e, json.RawMessage(`{}`), 0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMaxTurnsCuts(t *testing.T) {
	s := begin(t, script())
	for i := range 3 {
		turn, err := s.Reply(context.Background(), Assistant("a"))
		if err != nil || turn.Done != (i == 2) || turn.Truncated != (i == 2) {
			t.Fatalf("reply %d: %+v, %v", i, turn, err)
		}
	}
	score, err := s.Score(context.Background())
	if err != nil || score.Stop != "max_turns" {
		t.Errorf("%+v, %v", score, err)
	}
}

func TestDoneEpisodeGetsNoCall(t *testing.T) {
	calls := 0
	e := script()
	e.reply = func(Message) (Turn, error) { calls++; return Turn{Truncated: true}, nil }
	e.score = func() (Score, error) { calls++; return Score{Stop: "won"}, nil }
	s := begin(t, e)
	turn, err := s.Reply(context.Background(), Assistant("a"))
	if err != nil || !turn.Done {
		t.Fatalf("a truncated turn ends the episode: %+v, %v", turn, err)
	}
	if _, err := s.Reply(context.Background(), Assistant("a")); err != ErrDone {
		t.Errorf("reply after the end: %v", err)
	}
	if score, err := s.Score(context.Background()); err != nil || score.Stop != "won" {
		t.Errorf("%+v, %v", score, err)
	}
	if _, err := s.Score(context.Background()); err != ErrDone {
		t.Errorf("second score: %v", err)
	}
	if calls != 2 {
		t.Errorf("%d calls of the episode, want 2", calls)
	}
}

func TestScoreEndsAnEpisode(t *testing.T) {
	s := begin(t, script())
	if score, err := s.Score(context.Background()); err != nil || score.Stop != "done" {
		t.Fatalf("%+v, %v", score, err)
	}
	if _, err := s.Reply(context.Background(), Assistant("a")); err != ErrDone {
		t.Error(err)
	}
}

func TestPanicsAndErrorsAreTheInfrastructures(t *testing.T) {
	cause := errors.New("no disk")
	for name, breakIt := range map[string]func(*scripted){
		"start panics":       func(s *scripted) { s.start = func() (Episode, error) { panic("boom") } },
		"start fails":        func(s *scripted) { s.start = func() (Episode, error) { return nil, cause } },
		"no episode":         func(s *scripted) { s.start = func() (Episode, error) { return nil, nil } },
		"no prompt":          func(s *scripted) { s.prompt = nil },
		"no turns":           func(s *scripted) { s.maxTurns = 0 },
		"reply panics":       func(s *scripted) { s.reply = func(Message) (Turn, error) { panic("boom") } },
		"reply fails":        func(s *scripted) { s.reply = func(Message) (Turn, error) { return Turn{}, cause } },
		"reply is empty":     func(s *scripted) { s.reply = func(Message) (Turn, error) { return Turn{}, nil } },
		"score panics":       func(s *scripted) { s.score = func() (Score, error) { panic("boom") } },
		"score fails":        func(s *scripted) { s.score = func() (Score, error) { return Score{}, cause } },
		"reward is NaN":      func(s *scripted) { s.score = scored(Score{Rewards: Rewards{"r": Value(math.NaN())}}) },
		"weight is Inf":      func(s *scripted) { s.score = scored(Score{Rewards: Rewards{"r": NotApplicable(math.Inf(1))}}) },
		"sum overflows":      func(s *scripted) { s.score = scored(Score{Rewards: Rewards{"r": Weighted(math.MaxFloat64, 2)}}) },
		"metric is Inf":      func(s *scripted) { s.score = scored(Score{Metrics: map[string]float64{"m": math.Inf(-1)}}) },
		"too few chars":      func(s *scripted) { s.score = scored(Score{CharRewards: []CharRewards{{1}}}) },
		"too many replies":   func(s *scripted) { s.score = scored(Score{CharRewards: []CharRewards{nil, nil}}) },
		"char reward is NaN": func(s *scripted) { s.score = scored(Score{CharRewards: []CharRewards{{0, math.NaN()}}}) },
	} {
		e := script()
		breakIt(e)
		s, err := Begin(context.Background(), e, json.RawMessage(`{}`), 0)
		if err == nil {
			_, err = s.Reply(context.Background(), Assistant("a"))
		}
		if err == nil {
			_, err = s.Score(context.Background())
		}
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		var p *PanicError
		if got := errors.As(err, &p); got != strings.Contains(name, "panics") {
			t.Errorf("%s: %v", name, err)
		} else if got && !strings.Contains(p.Stack, "session_test.go") {
			t.Errorf("%s: the stack does not name the place:\n%s", name, p.Stack)
		}
		if strings.Contains(name, "fails") && !errors.Is(err, cause) {
			t.Errorf("%s: %v does not wrap its cause", name, err)
		}
		if s != nil {
			if _, again := s.Reply(context.Background(), Assistant("b")); again == nil {
				t.Errorf("%s: the episode goes on after an error", name)
			}
		}
	}
}

func scored(s Score) func() (Score, error) { return func() (Score, error) { return s, nil } }

func TestClose(t *testing.T) {
	e := script()
	s := begin(t, e)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if e.closed != 1 {
		t.Errorf("closed %d times", e.closed)
	}
	if _, err := s.Reply(context.Background(), Assistant("a")); err != ErrDone {
		t.Errorf("reply after Close: %v", err)
	}
	if _, err := s.Score(context.Background()); err != ErrDone {
		t.Errorf("score after Close: %v", err)
	}
	e = script()
	e.prompt = nil
	if _, err := Begin(context.Background(), e, json.RawMessage(`{}`), 0); err == nil || e.closed != 1 {
		t.Errorf("an episode that could not begin: %v, closed %d times", err, e.closed)
	}
}

// counter has a tool that ends the episode.
type counter struct {
	scripted
	count int
}

func (c *counter) Add(_ context.Context, args struct {
	N int `json:"n"`
}) (string, error) {
	c.count += args.N
	return "ok", nil
}

func (c *counter) Done() bool { return c.count >= 3 }

func TestToolCallsOfOneReply(t *testing.T) {
	e := &counter{scripted: *script()}
	e.start = func() (Episode, error) { return e, nil }
	add := func(id, n string) ToolCall { return ToolCall{ID: id, Name: "Add", Arguments: `{"n":` + n + `}`} }
	s := begin(t, e)
	turn, err := s.Reply(context.Background(), Message{ToolCalls: []ToolCall{add("a", "1"), add("b", "true"), {ID: "c", Name: "Sub"}}})
	if err != nil || len(turn.Messages) != 3 || turn.Done {
		t.Fatalf("%+v, %v", turn, err)
	}
	for i, m := range turn.Messages {
		if m.Role != RoleTool || m.ToolCallID != []string{"a", "b", "c"}[i] || strings.HasPrefix(m.Content, "error: ") != (i > 0) {
			t.Errorf("answer %d: %+v", i, m)
		}
	}
	turn, err = s.Reply(context.Background(), Message{ToolCalls: []ToolCall{add("d", "2"), add("e", "100")}})
	if err != nil || len(turn.Messages) != 1 || !turn.Done || turn.Truncated || e.count != 3 {
		t.Errorf("the second call comes after the end: %+v, %v, count %d", turn, err, e.count)
	}
}

// Rewards of characters are for the calls of Reply; the session puts them where those replies are among all.
func TestCharRewardsAreMovedToTheirReplies(t *testing.T) {
	e := &counter{scripted: *script()}
	e.start = func() (Episode, error) { return e, nil }
	e.score = scored(Score{CharRewards: []CharRewards{{1, 2, 3}}})
	s := begin(t, e)
	for _, m := range []Message{{Content: "words", ToolCalls: []ToolCall{{Name: "Add"}}}, Assistant("ab")} {
		if _, err := s.Reply(context.Background(), m); err != nil {
			t.Fatal(err)
		}
	}
	score, err := s.Score(context.Background())
	if err != nil || len(score.CharRewards) != 2 || score.CharRewards[0] != nil || !slices.Equal(score.CharRewards[1], CharRewards{1, 2, 3}) {
		t.Errorf("%+v, %v", score, err)
	}
}

func TestWithoutToolsEveryReplyGoesToTheEpisode(t *testing.T) {
	got := ""
	e := script()
	e.reply = func(m Message) (Turn, error) { got = m.Content; return Turn{Done: true}, nil }
	s := begin(t, e)
	_, err := s.Reply(context.Background(), Message{Content: "words", ToolCalls: []ToolCall{{Name: "Add"}}})
	if err != nil || got != "words" {
		t.Errorf("%q, %v", got, err)
	}
}
