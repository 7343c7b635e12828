package progress

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Visible is text of elsewhere (models, environments, brokers) without what would move a terminal's cursor or hide other text.
func Visible(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return '·'
		}
		return r
	}, s)
}

// cells is how many columns of a terminal a character takes, as far as it matters that a line is not too long.
func cells(r rune) int {
	if r >= 0x1100 && (r < 0x2000 || r > 0x2e7f) {
		return 2
	}
	return 1
}

// Cells is how many columns of a terminal a line takes.
func Cells(line string) (n int) {
	for _, r := range line {
		n += cells(r)
	}
	return n
}

// Clip cuts a line to a terminal's width; 0 is any.
func Clip(line string, width int) string {
	at := 0
	for i, r := range line {
		if at += cells(r); width > 0 && at > width {
			return line[:i]
		}
	}
	return line
}

// Wrap breaks text at its spaces into at most so many lines of a terminal's width; 0 is any.
func Wrap(text string, width, most int) []string {
	if width <= 0 {
		return []string{text}
	}
	var lines []string
	for len(lines) < most-1 {
		line := Clip(text, width)
		if line == text {
			break
		}
		if at := strings.LastIndexByte(line, ' '); at > len(line)/2 {
			line = line[:at]
		}
		if line == "" { // a character wider than the terminal
			break
		}
		lines = append(lines, line)
		text = strings.TrimLeft(text[len(line):], " ")
	}
	if cut := text; Clip(text, width) != text {
		text = "…"
		if width > 1 {
			text = Clip(cut, width-1) + text
		}
	}
	return append(lines, text)
}

// Spark draws values in at most n characters.
func Spark(values []float64, n int) string {
	levels := []rune("▁▂▃▄▅▆▇█")
	if len(values) == 0 || n < 1 {
		return ""
	}
	low, high := slices.Min(values), slices.Max(values)
	var b strings.Builder
	for i := range min(n, len(values)) {
		from, to := i*len(values)/min(n, len(values)), (i+1)*len(values)/min(n, len(values))
		var m mean
		for _, x := range values[from:to] {
			m.add(x)
		}
		level := 0
		if high > low {
			level = int((m.value() - low) / (high - low) * float64(len(levels)-1))
		}
		b.WriteRune(levels[level])
	}
	return b.String()
}

// Count writes a large number short: 12.3k.
func Count(n float64) string {
	switch {
	case n >= 1e6:
		return fmt.Sprintf("%.1fM", n/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.1fk", n/1e3)
	}
	return fmt.Sprintf("%.0f", n)
}

// MissingEnvs says which environments no server has announced, and how one is started.
func MissingEnvs(names []string) string {
	word := "environment"
	if len(names) > 1 {
		word += "s"
	}
	return fmt.Sprintf("a server of the %s %s (prl-stage --stage envserver --env %s)", word, strings.Join(names, ", "), names[0])
}
