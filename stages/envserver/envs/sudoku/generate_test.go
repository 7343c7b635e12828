package sudoku

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
)

// count is the number of solutions up to a limit, by nothing but the rules: the first open cell, every digit.
func count(puzzle []byte, size, box, limit int) int {
	cell := slices.Index(puzzle, 0)
	if cell < 0 {
		return 1
	}
	found := 0
digits:
	for d := byte(1); int(d) <= size && found < limit; d++ {
		row, column := cell/size, cell%size
		for i := range size {
			if puzzle[row*size+i] == d || puzzle[i*size+column] == d ||
				puzzle[(row/box*box+i/box)*size+column/box*box+i%box] == d {
				continue digits
			}
		}
		puzzle[cell] = d
		found += count(puzzle, size, box, limit-found)
		puzzle[cell] = 0
	}
	return found
}

// Every puzzle has one solution, by an independent count, and its level is what solving takes.
func TestPuzzles(t *testing.T) {
	for _, test := range []struct {
		size, box int
		level     string
	}{{4, 2, "easy"}, {9, 3, "easy"}, {9, 3, "medium"}, {9, 3, "hard"}, {9, 3, "expert"}} {
		s := open(t, func(c *Config) { c.Size, c.Level = test.size, test.level })
		want := level(slices.Index(levels, test.level))
		for i := range 4 { // counting takes its time
			data, err := s.Task(env.Train, i)
			if err != nil {
				t.Fatal(err)
			}
			var got task
			if err := json.Unmarshal(data, &got); err != nil {
				t.Fatal(err)
			}
			puzzle, ok := s.shape.parse(got.Puzzle)
			if !ok {
				t.Fatalf("%s", data)
			}
			if n := count(slices.Clone(puzzle), test.size, test.box, 2); n != 1 {
				t.Errorf("%s has %d solutions", data, n)
			}
			g, _ := newGrid(s.shape, puzzle)
			if used := g.grade(eliminations); used != want {
				t.Errorf("%s takes %v, want %v", data, used, want)
			}
			if want > nakedSingles {
				if used := g.grade(want - 1); used != search {
					t.Errorf("%s: techniques below its level solve it", data)
				}
			}
		}
	}
}

// The techniques are sound: what they fill is the solution, as search finds it.
func TestTechniquesAreSound(t *testing.T) {
	s := shapes[9]
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		puzzle, _ := dig(s, fill(s, rng), search, 0, rng)
		g, _ := newGrid(s, puzzle)
		n, solution := g.solve(2, nil)
		if n != 1 {
			t.Fatalf("%s has %d solutions", text(puzzle), n)
		}
		for {
			cell, how := g.step(eliminations)
			if cell < 0 {
				break
			}
			if g.digits[cell] != solution[cell] {
				t.Fatalf("%s: %s fills cell %d with %d, solution %s", text(puzzle), levels[how], cell, g.digits[cell], text(solution))
			}
		}
	}
}

// What the package comment says of 4 × 4 grids, for puzzles from which no digit can be taken.
func TestSmallGridsAreEasy(t *testing.T) {
	s := shapes[4]
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 0))
		puzzle, _ := dig(s, fill(s, rng), search, 0, rng)
		g, _ := newGrid(s, puzzle)
		if used := g.grade(eliminations); used != nakedSingles {
			t.Fatalf("%s takes %s", text(puzzle), levels[used])
		}
	}
}

func TestKnownPuzzle(t *testing.T) {
	s := shapes[9]
	puzzle, _ := s.parse("53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79")
	g, ok := newGrid(s, puzzle)
	n, solution := g.solve(2, nil)
	const want = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
	if !ok || n != 1 || text(solution) != want {
		t.Errorf("%v, %d solutions, %s", ok, n, text(solution))
	}
}
