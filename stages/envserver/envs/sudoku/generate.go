package sudoku

import "math/rand/v2"

// fill is a random solution.
func fill(s *shape, rng *rand.Rand) []byte {
	g, _ := newGrid(s, make([]byte, s.size*s.size))
	_, solution := g.solve(1, rng)
	return solution
}

// dig takes digits from a solution, in random order, while a player of the level can still solve it, until the given number of
// cells is empty (0 for as many as can be). It reports whether the puzzle is of the level: no easier one suffices.
func dig(s *shape, solution []byte, want level, empty int, rng *rand.Rand) (puzzle []byte, ok bool) {
	puzzle = append([]byte(nil), solution...)
	dug := 0
	for _, cell := range rng.Perm(len(puzzle)) {
		if empty > 0 && dug == empty {
			break
		}
		puzzle[cell] = 0
		g, _ := newGrid(s, puzzle)
		if solvable(&g, want) {
			dug++
		} else {
			puzzle[cell] = solution[cell]
		}
	}
	g, _ := newGrid(s, puzzle)
	return puzzle, (empty == 0 || dug == empty) && g.grade(eliminations) == want
}

// solvable reports whether a puzzle has one solution that a player of the level finds.
func solvable(g *grid, want level) bool {
	if want == search {
		n, _ := g.solve(2, nil)
		return n == 1
	}
	return g.grade(want) <= want
}
