package catch

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/env/envtest"
)

func open(t *testing.T, change func(*Config)) *Catch {
	t.Helper()
	cfg := Defaults()
	change(&cfg)
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// reference moves towards the ball. It reads the compact message of a grid of at most ten columns and rows.
func reference(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
	seen := conversation[len(conversation)-1].Content
	switch {
	case seen[0] < seen[2]:
		return env.Assistant("l")
	case seen[0] > seen[2]:
		return env.Assistant("r")
	}
	return env.Assistant("s")
}

var random = envtest.OneOf("l", "s", "r")

func TestConformance(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"default":  func(*Config) {},
		"large":    func(c *Config) { c.Columns, c.Rows = 9, 12 },
		"held out": func(c *Config) { c.Columns, c.Rows, c.HoldOut = 5, 5, 5 },
		"full":     func(c *Config) { c.Prompt = "full" },
	} {
		t.Run(name, func(t *testing.T) { envtest.Run(t, open(t, change), random) })
	}
}

func TestReferenceCatchesEveryStart(t *testing.T) {
	for columns := 2; columns <= 10; columns++ {
		c := open(t, func(c *Config) {
			c.Columns, c.Rows, c.TrainTasks, c.EvalTasks = columns, columns, columns*columns, columns*columns
		})
		got, err := envtest.Mean(context.Background(), c, env.Eval, columns*columns, reference)
		if err != nil || got != 1 {
			t.Errorf("%d columns: reference player %v, %v; want 1", columns, got, err)
		}
	}
}

func TestRandomPlayerMeetsItsBaseline(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.EvalTasks = 3000 },
		func(c *Config) { c.Columns, c.Rows, c.HoldOut, c.EvalTasks = 4, 6, 3, 3000 },
	} {
		c := open(t, change)
		got, err := envtest.Mean(context.Background(), c, env.Eval, 3000, random)
		want := c.Baselines(env.Eval)["random"]
		if err != nil || math.Abs(got-want) > 0.03 {
			t.Errorf("%+v: random player %v, %v; baseline %v", c.cfg, got, err, want)
		}
	}
}

// All sequences of moves, played: blind is the best of them, and random is their mean.
func TestBaselinesAreThoseOfAllSequences(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.EvalTasks = 9 },
		func(c *Config) { c.Columns, c.Rows, c.HoldOut, c.EvalTasks = 4, 5, 5, 7 },
	} {
		c := open(t, change)
		best, sum := 0.0, 0.0
		moves := c.cfg.Rows - 1
		sequences := int(math.Pow(3, float64(moves)))
		for n := range sequences {
			sequence := ""
			for range moves {
				sequence += "lsr"[n%3 : n%3+1]
				n /= 3
			}
			turn := 0
			got, err := envtest.Mean(context.Background(), c, env.Eval, c.cfg.EvalTasks,
				func(*rand.Rand, []env.Message, []env.Tool) env.Message {
					turn++
					return env.Assistant(sequence[(turn-1)%moves : (turn-1)%moves+1])
				})
			if err != nil {
				t.Fatal(err)
			}
			best, sum = max(best, got), sum+got
		}
		got := c.Baselines(env.Eval)
		if math.Abs(got["blind"]-best) > 1e-9 || math.Abs(got["random"]-sum/float64(sequences)) > 1e-9 {
			t.Errorf("%+v: %v; best sequence %v, mean %v", c.cfg, got, best, sum/float64(sequences))
		}
	}
	if got := open(t, func(c *Config) { c.EvalTasks = 9 }).Baselines(env.Eval)["blind"]; math.Abs(got-1.0/3) > 1e-12 {
		t.Errorf("blind on all starts of three columns: %v, want 1/3", got)
	}
}

func TestRules(t *testing.T) {
	for _, test := range []struct {
		columns, rows, ball, paddle int
		moves                       string
		seen                        string // messages, joined by spaces
		caught, invalid             float64
	}{
		{3, 4, 0, 2, "lls", "002 011 020", 1, 0},
		{3, 4, 0, 2, "lss", "002 011 021", 0, 0},
		{3, 4, 2, 1, "rrr", "201 212 222", 1, 0}, // the wall stops the paddle
		{3, 4, 0, 0, "lll", "000 010 020", 1, 0},
		{3, 4, 1, 1, "?L5", "101 111 121", 1, 3}, // anything else stays
		{2, 2, 0, 1, "l", "001", 1, 0},
		{3, 11, 0, 2, "lrlrlrlrll", "000002 000101 000202 000301 000402 000501 000602 000701 000802 000901", 1, 0},
	} {
		c := open(t, func(c *Config) { c.Columns, c.Rows = test.columns, test.rows })
		task, _ := json.Marshal(start{test.ball, test.paddle})
		turn := 0
		r, err := envtest.Play(context.Background(), c, task, 0, func(*rand.Rand, []env.Message, []env.Tool) env.Message {
			turn++
			return env.Assistant(test.moves[turn-1 : turn])
		})
		if err != nil {
			t.Fatal(err)
		}
		var seen []string
		for _, m := range r.Messages {
			if m.Role == env.RoleUser {
				seen = append(seen, m.Content)
			}
		}
		if got := strings.Join(seen, " "); got != test.seen {
			t.Errorf("%+v: saw %q", test, got)
		}
		if got := *r.Score.Rewards.Total(); got != test.caught {
			t.Errorf("%+v: caught %v", test, got)
		}
		if got := r.Score.Metrics["invalid_moves"]; got != test.invalid {
			t.Errorf("%+v: invalid moves %v", test, got)
		}
	}
}

func TestBothSplitsHaveAllStarts(t *testing.T) {
	c := open(t, func(*Config) {})
	for _, split := range []env.Split{env.Train, env.Eval} {
		seen := map[string]bool{}
		for i := range 9 {
			task, err := c.Task(split, i)
			if err != nil {
				t.Fatal(err)
			}
			seen[string(task)] = true
		}
		if len(seen) != 9 {
			t.Errorf("%s: the first nine tasks have %d starts, want all 9", split, len(seen))
		}
	}
}

func TestValidate(t *testing.T) {
	for option, change := range map[string]func(*Config){
		"columns":    func(c *Config) { c.Columns = 1 },
		"rows":       func(c *Config) { c.Rows = c.Columns - 1 },
		"hold_out":   func(c *Config) { c.HoldOut = 9 },
		"eval_tasks": func(c *Config) { c.EvalTasks = 0 },
		"prompt":     func(c *Config) { c.Prompt = "long" },
	} {
		cfg := Defaults()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("wrong %s: %v", option, err)
		}
	}
}

func TestBadTask(t *testing.T) {
	c := open(t, func(*Config) {})
	for _, task := range []string{`{"ball":3,"paddle":0}`, `{"ball":0,"paddle":-1}`} {
		if _, err := c.Start(context.Background(), json.RawMessage(task), 0); err == nil {
			t.Errorf("task %s starts", task)
		}
	}
}

func ExampleCatch() {
	c, _ := New(Defaults())
	s, _ := env.Begin(context.Background(), c, json.RawMessage(`{"ball":0,"paddle":2}`), 0)
	fmt.Println(s.Prompt()[0].Content)
	turn, _ := s.Reply(context.Background(), env.Assistant("l"))
	fmt.Println(turn.Messages[0].Content)
	// Output:
	// 002
	// 011
}

// TestDemonstration plays what is demonstrated for every start: what was seen is what the policy sees, and the ball is caught.
func TestDemonstration(t *testing.T) {
	for _, cfg := range []Config{Defaults(), {Columns: 12, Rows: 15, TrainTasks: 200, EvalTasks: 1, Prompt: "compact"}} {
		c, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for i := range cfg.Columns * cfg.Columns {
			task, err := c.Task(env.Train, i)
			if err != nil {
				t.Fatal(err)
			}
			text, err := c.Demonstrate(task, int64(i))
			if err != nil {
				t.Fatal(err)
			}
			e, err := c.Start(t.Context(), task, 0)
			if err != nil {
				t.Fatal(err)
			}
			seen := e.Prompt()[0].Content
			parts := strings.Fields(text)
			for k := 0; k < len(parts); k += 2 {
				if parts[k] != seen {
					t.Fatalf("task %s: turn %d of %q, the policy sees %s", task, k/2, text, seen)
				}
				turn, err := e.Reply(t.Context(), env.Assistant(parts[k+1]))
				if err != nil {
					t.Fatal(err)
				}
				if turn.Done != (k+2 == len(parts)) {
					t.Fatalf("task %s: done is %v at turn %d of %q", task, turn.Done, k/2, text)
				}
				if !turn.Done {
					seen = turn.Messages[0].Content
				}
			}
			if s, err := e.Score(t.Context()); err != nil || *s.Rewards.Total() != 1 {
				t.Fatalf("task %s: %q scores %v %v", task, text, s, err)
			}
		}
	}
	c, err := New(Defaults())
	if err != nil {
		t.Fatal(err)
	}
	if text, err := c.Demonstrate([]byte(`{"ball":2,"paddle":0}`), 0); text != "200 r 211 r 222 s" || err != nil {
		t.Errorf("%q %v", text, err)
	}
	if _, err := c.Demonstrate([]byte(`{"ball":9}`), 0); err == nil {
		t.Error("a task that does not fit is demonstrated")
	}
}
