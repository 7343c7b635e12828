package sudoku

import (
	"fmt"
	"regexp"
	"strings"
)

// text is digits in a line, with . for an open cell.
func text(digits []byte) string {
	b := make([]byte, len(digits))
	for i, d := range digits {
		b[i] = '.'
		if d != 0 {
			b[i] = '0' + d
		}
	}
	return string(b)
}

// parse is the inverse of text; false if the line does not have a digit or . for each cell.
func (s *shape) parse(line string) ([]byte, bool) {
	if len(line) != s.size*s.size {
		return nil, false
	}
	digits := make([]byte, len(line))
	for i := range line {
		switch c := line[i]; {
		case c >= '1' && int(c-'0') <= s.size:
			digits[i] = c - '0'
		case c != '.':
			return nil, false
		}
	}
	return digits, true
}

// write is a move as the policy writes it.
func (g *game) write(m move) string {
	row, column := m.cell/g.shape.size+1, m.cell%g.shape.size+1
	if g.cfg.Prompt == "full" {
		return fmt.Sprintf("r%dc%d=%d", row, column, m.digit)
	}
	return fmt.Sprintf("%d%d%d", row, column, m.digit)
}

var (
	compactMove = regexp.MustCompile(`^([1-9])([1-9])([1-9])$`)
	fullMove    = regexp.MustCompile(`(?i)\br([1-9])\s*c([1-9])\s*=\s*([1-9])\b`)
)

// readMove is the move in a reply.
func (g *game) readMove(reply string) (move, bool) {
	pattern := compactMove
	if g.cfg.Prompt == "full" {
		pattern = fullMove
	}
	all := pattern.FindAllStringSubmatch(strings.TrimSpace(reply), -1)
	if len(all) == 0 {
		return move{}, false
	}
	last := all[len(all)-1]
	row, column, digit := int(last[1][0]-'0'), int(last[2][0]-'0'), last[3][0]-'0'
	if n := g.shape.size; row > n || column > n || int(digit) > n {
		return move{}, false
	}
	return move{(row-1)*g.shape.size + column - 1, digit}, true
}

// readGrid is the grid in a reply. In the full prompt lines, frames and spaces do not matter; _ and 0 are open cells, too.
func (g *game) readGrid(reply string) ([]byte, bool) {
	if g.cfg.Prompt == "compact" {
		return g.shape.parse(strings.TrimSpace(reply))
	}
	const open, shut = "<grid>", "</grid>"
	if i := strings.LastIndex(reply, open); i >= 0 {
		reply, _, _ = strings.Cut(reply[i+len(open):], shut)
	}
	cells := strings.Map(func(r rune) rune {
		switch {
		case r >= '1' && r <= '9':
			return r
		case r == '.' || r == '_' || r == '0':
			return '.'
		}
		return -1
	}, reply)
	return g.shape.parse(cells)
}
