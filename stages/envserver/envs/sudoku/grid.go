package sudoku

import (
	"math/bits"
	"math/rand/v2"
)

// shape is a size of grid: its cells, row by row, and how they depend on each other.
type shape struct {
	size  int      // digits, and cells of a row
	box   int      // rows and columns of a box
	units [][]int  // rows, columns and boxes: cells that have each digit once
	peers [][]int  // cells that share a unit with a cell
	sees  [][]bool // whether two cells share a unit
	all   uint16   // every digit as a candidate
}

var shapes = map[int]*shape{4: newShape(2), 9: newShape(3)}

func newShape(box int) *shape {
	n := box * box
	s := &shape{size: n, box: box, units: make([][]int, 3*n), peers: make([][]int, n*n), sees: make([][]bool, n*n), all: 1<<n - 1}
	unitsOf := make([][]int, n*n)
	for cell := range n * n {
		row, column := cell/n, cell%n
		unitsOf[cell] = []int{row, n + column, 2*n + row/box*box + column/box}
		for _, u := range unitsOf[cell] {
			s.units[u] = append(s.units[u], cell)
		}
	}
	for cell := range n * n {
		s.sees[cell] = make([]bool, n*n)
		for _, u := range unitsOf[cell] {
			for _, peer := range s.units[u] {
				if peer != cell && !s.sees[cell][peer] {
					s.sees[cell][peer] = true
					s.peers[cell] = append(s.peers[cell], peer)
				}
			}
		}
	}
	return s
}

// grid holds the digits of the cells, 0 where there is none, and the digits that are still candidates of those.
type grid struct {
	*shape
	digits []byte
	open   []uint16 // bit d-1 is digit d; 0 in a cell that has its digit
}

// newGrid is the grid of the given digits; false if two that are equal share a unit.
func newGrid(s *shape, digits []byte) (grid, bool) {
	g := grid{shape: s, digits: make([]byte, len(digits)), open: make([]uint16, len(digits))}
	for cell := range g.open {
		g.open[cell] = s.all
	}
	for cell, d := range digits {
		if d == 0 {
			continue
		}
		if g.open[cell]&(1<<(d-1)) == 0 {
			return g, false
		}
		g.place(cell, d)
	}
	return g, true
}

func (g *grid) place(cell int, digit byte) {
	g.digits[cell], g.open[cell] = digit, 0
	for _, peer := range g.peers[cell] {
		g.open[peer] &^= 1 << (digit - 1)
	}
}

func (g *grid) clone() grid {
	return grid{shape: g.shape, digits: append([]byte(nil), g.digits...), open: append([]uint16(nil), g.open...)}
}

// solve finds solutions by search until limit are found, and returns their number and the last of them. With a generator the
// digits are tried in random order.
func (g *grid) solve(limit int, rng *rand.Rand) (found int, solution []byte) {
	cell, fewest := -1, 100
	for c, open := range g.open {
		if n := bits.OnesCount16(open); g.digits[c] == 0 && n < fewest {
			cell, fewest = c, n
		}
	}
	if cell < 0 {
		return 1, g.digits
	}
	candidates := digitsOf(g.open[cell])
	if rng != nil {
		rng.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
	}
	for _, d := range candidates {
		next := g.clone()
		next.place(cell, d)
		n, s := next.solve(limit-found, rng)
		if found += n; n > 0 {
			solution = s
		}
		if found >= limit {
			break
		}
	}
	return found, solution
}

// digitsOf lists candidates in order.
func digitsOf(open uint16) []byte {
	digits := make([]byte, 0, 9)
	for ; open != 0; open &= open - 1 {
		digits = append(digits, byte(bits.TrailingZeros16(open)+1))
	}
	return digits
}
