package sudoku

import "math/bits"

// level is what it takes to solve a puzzle.
type level int

const (
	nakedSingles  level = iota // every cell in turn has one candidate only
	hiddenSingles              // ... or a digit has one cell only in some unit
	eliminations               // ... once candidates are ruled out by locked candidates and by naked and hidden pairs
	search                     // these techniques do not suffice
)

// levels are their names in the configuration.
var levels = []string{"easy", "medium", "hard", "expert"}

// step fills one cell by the easiest technique up to a level and returns it; a cell of -1 means that none applies. Candidates
// that were ruled out on the way stay so.
func (g *grid) step(limit level) (cell int, used level) {
	for {
		for c, open := range g.open {
			if bits.OnesCount16(open) == 1 {
				g.place(c, digitsOf(open)[0])
				return c, max(used, nakedSingles)
			}
		}
		if limit < hiddenSingles {
			return -1, limit
		}
		if c, d := g.hidden(); c >= 0 {
			g.place(c, d)
			return c, max(used, hiddenSingles)
		}
		if limit < eliminations || !g.locked() && !g.pairs() {
			return -1, limit
		}
		used = eliminations
	}
}

// hidden finds a digit that has only one cell in some unit.
func (g *grid) hidden() (cell int, digit byte) {
	for _, unit := range g.units {
		var once, twice uint16
		for _, c := range unit {
			twice |= once & g.open[c]
			once |= g.open[c]
		}
		once &^= twice
		if once == 0 {
			continue
		}
		for _, c := range unit {
			if only := g.open[c] & once; only != 0 {
				return c, digitsOf(only)[0]
			}
		}
	}
	return -1, 0
}

// locked rules out candidates: a cell that shares a unit with every cell of some unit that can have a digit cannot have it.
func (g *grid) locked() (changed bool) {
	for d := range g.size {
		digit := uint16(1) << d
		for _, unit := range g.units {
			var places []int
			for _, c := range unit {
				if g.open[c]&digit != 0 {
					places = append(places, c)
				}
			}
			if len(places) < 2 {
				continue
			}
			for c := range g.open {
				if g.open[c]&digit != 0 && g.seesAll(c, places) {
					g.open[c] &^= digit
					changed = true
				}
			}
		}
	}
	return changed
}

func (g *grid) seesAll(cell int, others []int) bool {
	for _, o := range others {
		if !g.sees[cell][o] {
			return false
		}
	}
	return true
}

// pairs rules out candidates: two cells of a unit that have the same two candidates take them from its others, and two digits
// that have the same two cells of a unit leave no room for others there.
func (g *grid) pairs() (changed bool) {
	for _, unit := range g.units {
		for i, a := range unit {
			for _, b := range unit[i+1:] {
				if g.open[a] == 0 || g.open[b] == 0 {
					continue
				}
				var elsewhere uint16
				for _, c := range unit {
					if c != a && c != b {
						elsewhere |= g.open[c]
					}
				}
				if bits.OnesCount16(g.open[a]|g.open[b]) == 2 { // naked
					both := g.open[a] | g.open[b]
					for _, c := range unit {
						if c != a && c != b && g.open[c]&both != 0 {
							g.open[c] &^= both
							changed = true
						}
					}
				} else if only := (g.open[a] & g.open[b]) &^ elsewhere; bits.OnesCount16(only) == 2 { // hidden
					if g.open[a] != only || g.open[b] != only {
						g.open[a], g.open[b] = only, only
						changed = true
					}
				}
			}
		}
	}
	return changed
}

// grade is the hardest technique up to a limit that solving takes, the easiest first at every step; search if they do not
// suffice. A puzzle that they solve has no other solution.
func (g *grid) grade(limit level) level {
	work := g.clone()
	hardest := nakedSingles
	for {
		cell, used := work.step(limit)
		if cell < 0 {
			for _, d := range work.digits {
				if d == 0 {
					return search
				}
			}
			return hardest
		}
		hardest = max(hardest, used)
	}
}
