package sudoku

import (
	"context"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/env/envtest"
)

func open(t testing.TB, change func(*Config)) *Sudoku {
	t.Helper()
	cfg := Defaults()
	cfg.TrainTasks = 40 // hard puzzles take time to make
	change(&cfg)
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// board reads the grid off what was said last.
func board(s *Sudoku, conversation []env.Message) grid {
	said := conversation[len(conversation)-1].Content
	if s.cfg.Prompt == "full" {
		said = strings.ReplaceAll(said, "\n", "")
	}
	digits, _ := s.shape.parse(said[:s.cfg.Size*s.cfg.Size])
	g, _ := newGrid(s.shape, digits)
	return g
}

// reference solves the grid it sees: the cell that the easiest technique fills, or all of it.
func reference(s *Sudoku) envtest.Player {
	return func(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
		g := board(s, conversation)
		next := g.clone()
		if cell, _ := next.step(eliminations); s.cfg.Mode == "move" && cell >= 0 {
			return env.Assistant((&game{cfg: s.cfg, shape: s.shape}).write(move{cell, next.digits[cell]}))
		}
		_, solution := g.solve(1, nil)
		return env.Assistant("<grid>"[:6*int(env.Bool(s.cfg.Prompt == "full"))] + text(solution))
	}
}

// random says a random digit in a random open cell, or in all of them.
func random(s *Sudoku) envtest.Player {
	return func(rng *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
		g := board(s, conversation)
		if s.cfg.Mode == "grid" {
			for i, d := range g.digits {
				if d == 0 {
					g.digits[i] = byte(1 + rng.IntN(s.cfg.Size))
				}
			}
			return env.Assistant(text(g.digits))
		}
		from := (&game{shape: s.shape, grid: g.digits, left: strings.Count(text(g.digits), ".")}).openCell(rng)
		return s.say(g, func(cell int) byte {
			if cell != from {
				return 0
			}
			return byte(1 + rng.IntN(s.cfg.Size))
		})
	}
}

// say is the move in the first open cell for which there is a digit.
func (s *Sudoku) say(g grid, digit func(cell int) byte) env.Message {
	for cell, d := range g.digits {
		if d != 0 {
			continue
		}
		if d := digit(cell); d != 0 {
			return env.Assistant((&game{cfg: s.cfg, shape: s.shape}).write(move{cell, d}))
		}
	}
	return env.Assistant("")
}

var variants = map[string]func(*Config){
	"default":  func(*Config) {},
	"grid":     func(c *Config) { c.Mode, c.Hints = "grid", true },
	"full":     func(c *Config) { c.Prompt, c.Hints, c.Empty = "full", true, 6 },
	"nine":     func(c *Config) { c.Size, c.Level, c.EvalTasks = 9, "medium", 20 },
	"fullgrid": func(c *Config) { c.Size, c.Prompt, c.Mode, c.EvalTasks = 9, "full", "grid", 20 },
}

func TestConformance(t *testing.T) {
	for name, change := range variants {
		t.Run(name, func(t *testing.T) {
			s := open(t, change)
			envtest.Run(t, s, random(s), reference(s))
		})
	}
}

func TestTable(t *testing.T) {
	for label, change := range map[string]func(*Config){
		"`sudoku`":             func(*Config) {},
		"`sudoku` 9 × 9, hard": func(c *Config) { c.Size, c.Level, c.EvalTasks = 9, "hard", 24 },
	} {
		s := open(t, change)
		envtest.Row(t, "../../README.md", label, s, s.Info().Eval, reference(s), random(s))
	}
}

func TestPlayers(t *testing.T) {
	for name, change := range variants {
		s := open(t, func(c *Config) { change(c); c.EvalTasks = 40 })
		got, err := envtest.Mean(context.Background(), s, env.Eval, 40, reference(s))
		if err != nil || math.Abs(got-1.2) > 1e-9 {
			t.Errorf("%s: the reference player has %v, %v; want 1.2", name, got, err)
		}
		got, err = envtest.Mean(context.Background(), s, env.Eval, 40, random(s))
		if want := s.Baselines(env.Eval)["random"]; err != nil || math.Abs(got-want) > 0.05 || got > 0.3 {
			t.Errorf("%s: the random player has %v, %v; baseline %v", name, got, err, want)
		}
		if blind := s.Baselines(env.Eval)["blind"]; blind <= 0 || blind > 0.5 {
			t.Errorf("%s: blind %v", name, blind)
		}
	}
}

// The blind baseline is what a player gets who says its moves without looking: here the first is one that is right most often.
func TestBlindBaselineIsPlayed(t *testing.T) {
	s := open(t, func(c *Config) { c.Mistakes, c.EvalTasks = 1, 60 })
	best := 0.0
	for cell := range 16 {
		for digit := byte(1); digit <= 4; digit++ {
			said := (&game{cfg: s.cfg, shape: s.shape}).write(move{cell, digit})
			got, err := envtest.Mean(context.Background(), s, env.Eval, 60, envtest.OneOf(said))
			if err != nil {
				t.Fatal(err)
			}
			best = max(best, got)
		}
	}
	if blind := s.Baselines(env.Eval)["blind"]; blind < best {
		t.Errorf("blind %v is less than always saying the same move, %v", blind, best)
	}
}

func TestMoves(t *testing.T) {
	const puzzle = "1..4341...4.4..1"
	s := open(t, func(*Config) {})
	digits, _ := s.shape.parse(puzzle)
	g, _ := newGrid(s.shape, digits)
	n, solved := g.solve(2, nil)
	if n != 1 {
		t.Fatalf("%d solutions", n)
	}
	right := func(cell int) string { return (&game{cfg: s.cfg, shape: s.shape}).write(move{cell, solved[cell]}) }
	wrong := func(cell int) string {
		return (&game{cfg: s.cfg, shape: s.shape}).write(move{cell, solved[cell]%4 + 1})
	}
	e, err := s.Start(t.Context(), []byte(`{"puzzle":"`+puzzle+`"}`), 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := e.Prompt()[0].Content; got != puzzle {
		t.Errorf("prompt %q", got)
	}
	filled := []byte(puzzle)
	filled[1] = '0' + solved[1]
	for i, step := range []struct{ reply, want string }{
		{right(1), string(filled)},
		{" " + wrong(2) + "\n", string(filled) + " x" + wrong(2)},
		{wrong(2), string(filled) + " x" + wrong(2)}, // tried before: a mistake again
		{wrong(7), ""},
	} {
		turn, err := e.Reply(t.Context(), env.Assistant(step.reply))
		if err != nil || turn.Done != (step.want == "") || !turn.Done && turn.Messages[0].Content != step.want {
			t.Fatalf("step %d, %q: %+v, %v; want %q", i, step.reply, turn, err, step.want)
		}
	}
	score, err := e.Score(t.Context())
	if err != nil || score.Stop != "lost" || score.Metrics["mistakes"] != 3 || math.Abs(*score.Rewards["filled"].Value-1./8) > 1e-9 {
		t.Errorf("%+v, %v", score, err)
	}
}

func TestReplies(t *testing.T) {
	for _, test := range []struct {
		prompt, mode, reply string
		mistake, unreadable float64
	}{
		{"compact", "move", "111", 1, 0}, // a cell that has its digit
		{"compact", "move", "151", 1, 1}, // no such column
		{"compact", "move", "12", 1, 1},
		{"compact", "move", "r1c2=2", 1, 1},
		{"full", "move", "I think r1c3=1, no: R1 C2 = 2.", 0, 0},
		{"full", "move", "122", 1, 1},
		{"compact", "grid", "....", 1, 1},
		{"compact", "grid", strings.Repeat(".", 16), 1, 0},
		{"full", "grid", "<grid>1111</grid> no <grid>\n1 2|. _\n....\n....\n....</grid>", 1, 0},
	} {
		s := open(t, func(c *Config) { c.Prompt, c.Mode = test.prompt, test.mode })
		e, err := s.Start(t.Context(), []byte(`{"puzzle":"1..4341...4.4..1"}`), 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Reply(t.Context(), env.Assistant(test.reply)); err != nil {
			t.Fatal(err)
		}
		m, err := e.Score(t.Context())
		if err != nil || m.Metrics["mistakes"] != test.mistake || m.Metrics["unreadable"] != test.unreadable {
			t.Errorf("%+v: %v, %v", test, m.Metrics, err)
		}
	}
}

// The hint names a cell that the easiest technique fills, and the message of a mistake alone has one.
func TestHints(t *testing.T) {
	s := open(t, func(c *Config) { c.Hints = true })
	e, err := s.Start(t.Context(), []byte(`{"puzzle":"12.43412214343.."}`), 0)
	if err != nil {
		t.Fatal(err)
	}
	turn, err := e.Reply(t.Context(), env.Assistant("nonsense"))
	if want := "12.43412214343.. ?13"; err != nil || turn.Messages[0].Content != want {
		t.Fatalf("%+v %v, want %q", turn, err, want)
	}
	turn, err = e.Reply(t.Context(), env.Assistant("133"))
	if want := "12343412214343.."; err != nil || turn.Messages[0].Content != want {
		t.Errorf("%+v %v, want %q", turn, err, want)
	}
}

func TestBadPuzzles(t *testing.T) {
	s := open(t, func(*Config) {})
	for want, puzzle := range map[string]string{
		"not 16":      "1...",
		"twice":       "11.4..2..3..4..1",
		"few":         "1...............",
		"exactly one": "1..4.41.........",
	} {
		if _, err := s.Start(t.Context(), []byte(`{"puzzle":"`+puzzle+`"}`), 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", puzzle, err, want)
		}
	}
}

func TestValidate(t *testing.T) {
	for option, change := range map[string]func(*Config){
		"size":         func(c *Config) { c.Size = 6 },
		"level":        func(c *Config) { c.Level = "hard" },
		"empty":        func(c *Config) { c.Empty = 17 },
		"change empty": func(c *Config) { c.Size, c.Level, c.Empty = 9, "medium", 2 },
		"mode":         func(c *Config) { c.Mode = "" },
		"mistakes":     func(c *Config) { c.Mistakes = 0 },
		"eval_tasks":   func(c *Config) { c.EvalTasks = 0 },
		"eval_percent": func(c *Config) { c.EvalPercent = 51 },
		"prompt":       func(c *Config) { c.Prompt = "" },
		"weights":      func(c *Config) { c.Weights.Solved = math.NaN() },
	} {
		cfg := Defaults()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("wrong %s: %v", option, err)
		}
	}
}

// TestDemonstration plays what is demonstrated.
func TestDemonstration(t *testing.T) {
	for _, change := range variants {
		s := open(t, change)
		data, err := s.Task(env.Eval, 3)
		if err != nil {
			t.Fatal(err)
		}
		shown, err := s.Demonstrate(data, 0)
		if err != nil {
			t.Fatal(err)
		}
		turn := 0
		r, err := envtest.Play(t.Context(), s, data, 0, func(*rand.Rand, []env.Message, []env.Tool) env.Message {
			turn++
			return env.Assistant(strings.Fields(shown)[turn-1])
		})
		if err != nil || r.Score.Stop != "solved" || r.Score.Metrics["mistakes"] != 0 {
			t.Errorf("%q: %+v, %v", shown, r.Score, err)
		}
	}
}

func FuzzReply(f *testing.F) {
	f.Add("123", false)
	f.Add("<grid>1234</grid>r1c1=9", true)
	games := map[bool]*Sudoku{}
	for _, full := range []bool{false, true} {
		games[full] = open(f, func(c *Config) {
			if full {
				c.Prompt, c.Mode = "full", "grid"
			}
		})
	}
	f.Fuzz(func(t *testing.T, reply string, full bool) {
		_, err := envtest.Play(context.Background(), games[full], []byte(`{"puzzle":"1..4341...4.4..1"}`), 0,
			func(*rand.Rand, []env.Message, []env.Tool) env.Message { return env.Assistant(reply) })
		if err != nil {
			t.Fatal(err)
		}
	})
}
