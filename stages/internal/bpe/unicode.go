package bpe

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// class is what patterns tell characters apart by.
type class uint8

const (
	other class = iota
	letter
	number
	space
)

var ascii = func() (t [utf8.RuneSelf]class) {
	for r := range t {
		t[r] = slowClassOf(rune(r))
	}
	return t
}()

func classOf(r rune) class {
	if r < utf8.RuneSelf {
		return ascii[r]
	}
	return slowClassOf(r)
}

func slowClassOf(r rune) class {
	switch {
	case unicode.IsSpace(r):
		return space
	case unicode.IsLetter(r) || unicode.Is(newLetters, r):
		return letter
	case unicode.Is(unicode.N, r) || unicode.Is(newNumbers, r):
		return number
	}
	return other
}

// The library's patterns know Unicode 16; package unicode knows 15. These letters and numbers came between.
var (
	newLetters = table(0x1c89, 0x1c8a, 0xa7cb, 0xa7cd, 0xa7da, 0xa7dc, 0x105c0, 0x105f3, 0x10d4a, 0x10d65, 0x10d6f, 0x10d85, 0x10ec2, 0x10ec4,
		0x11380, 0x11389, 0x1138b, 0x1138b, 0x1138e, 0x1138e, 0x11390, 0x113b5, 0x113b7, 0x113b7, 0x113d1, 0x113d1, 0x113d3, 0x113d3,
		0x11bc0, 0x11be0, 0x13460, 0x143fa, 0x16100, 0x1611d, 0x16d40, 0x16d6c, 0x18cff, 0x18cff, 0x1e5d0, 0x1e5ed, 0x1e5f0, 0x1e5f0,
		0x2ebf0, 0x2ee5d)
	newNumbers = table(0x10d40, 0x10d49, 0x116d0, 0x116e3, 0x11bf0, 0x11bf9, 0x16130, 0x16139, 0x16d70, 0x16d79, 0x1ccf0, 0x1ccf9, 0x1e5f1, 0x1e5fa)
)

// The library's normalizer is older than Unicode 10: to it these marks, and two halves of a letter, are characters that
// nothing composes with and that nothing is ordered around.
var inert = table(0x7fd, 0x7fd, 0x898, 0x89f, 0x8ca, 0x8d3, 0x9fe, 0x9fe, 0xc3c, 0xc3c, 0xd3b, 0xd3c, 0xeba, 0xeba, 0x1715, 0x1715,
	0x1abf, 0x1ace, 0x1df6, 0x1dfa, 0xa82c, 0xa82c, 0x10d24, 0x10d27, 0x10eab, 0x10eac, 0x10efd, 0x10eff, 0x10f46, 0x10f50, 0x10f82, 0x10f85,
	0x11070, 0x11070, 0x1133b, 0x1133b, 0x1145e, 0x1145e, 0x11839, 0x1183a, 0x11930, 0x11930, 0x11935, 0x11935, 0x1193d, 0x1193e, 0x11943, 0x11943,
	0x119e0, 0x119e0, 0x11a34, 0x11a34, 0x11a47, 0x11a47, 0x11a99, 0x11a99, 0x11d42, 0x11d42, 0x11d44, 0x11d45, 0x11d97, 0x11d97, 0x11f41, 0x11f42,
	0x16ff0, 0x16ff1, 0x1e08f, 0x1e08f, 0x1e130, 0x1e136, 0x1e2ae, 0x1e2ae, 0x1e2ec, 0x1e2ef, 0x1e4ec, 0x1e4ef)

// table is the characters of some ranges, given by their ends in order.
func table(ends ...uint32) *unicode.RangeTable {
	t := &unicode.RangeTable{}
	for i := 0; i < len(ends); i += 2 {
		if ends[i+1] < 1<<16 {
			t.R16 = append(t.R16, unicode.Range16{Lo: uint16(ends[i]), Hi: uint16(ends[i+1]), Stride: 1})
		} else {
			t.R32 = append(t.R32, unicode.Range32{Lo: ends[i], Hi: ends[i+1], Stride: 1})
		}
	}
	return t
}

// normalize is NFC as the library has it.
func normalize(text string) string {
	at := strings.IndexFunc(text, isInert)
	if at < 0 {
		return norm.NFC.String(text)
	}
	var b strings.Builder
	for ; at >= 0; at = strings.IndexFunc(text, isInert) {
		_, size := utf8.DecodeRuneInString(text[at:])
		b.WriteString(norm.NFC.String(text[:at]))
		b.WriteString(text[at : at+size])
		text = text[at+size:]
	}
	b.WriteString(norm.NFC.String(text))
	return b.String()
}

func isInert(r rune) bool { return r >= 0x7fd && unicode.Is(inert, r) }
