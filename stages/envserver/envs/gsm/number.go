package gsm

import (
	"math/big"
	"regexp"
	"strings"
)

// A number as people and models write it: a sign, and a mixed fraction, a LaTeX fraction, a simple fraction or a decimal with
// or without commas between groups of three digits. At most forty digits stand together, so that nobody can ask for a huge one.
const (
	digits  = `(?:\d{1,3}(?:,\d{3})+|\d{1,40})`
	decimal = `(?:` + digits + `(?:\.\d{1,40})?|\.\d{1,40})`
)

var (
	number = regexp.MustCompile(`([-+−–]?)\s?[$€£¥₹]?\s?(?:` +
		`(\d{1,40})\s+(\d{1,40})\s?/\s?(\d{1,40})|` + // 2 1/2
		`\\d?frac\{([-−]?\d{1,40})\}\{(\d{1,40})\}|` + // \frac{1}{2}
		`(` + decimal + `)\s?/\s?(` + decimal + `)|` + // 1/2
		`(` + decimal + `)` +
		`)`)
	marked = regexp.MustCompile(`(?is)####\s*([^\n]*)`)
	boxed  = regexp.MustCompile(`\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}`)
	spaced = strings.NewReplacer("\u00a0", " ", "\u202f", " ", "\u2009", " ", `\$`, "$", `\,`, "", `\!`, "", "{,}", ",")
)

// findNumber is the exact value of the first or the last number in a text; false if there is none. What stands around it, such as
// units, percent and currency signs, does not change it: "50%" is 50.
func findNumber(text string, last bool) (*big.Rat, bool) {
	text = spaced.Replace(text)
	all := number.FindAllStringSubmatchIndex(text, -1)
	for i := range all {
		at := all[i]
		if last {
			at = all[len(all)-1-i]
		}
		if v, ok := value(text, at); ok {
			return v, true
		}
	}
	return nil, false
}

// value is that of a match. Its sign is one only where no digit, letter or bracket stands right before it: "7-3" is no -3.
func value(text string, at []int) (*big.Rat, bool) {
	group := func(n int) string {
		if at[2*n] < 0 {
			return ""
		}
		return text[at[2*n]:at[2*n+1]]
	}
	v := new(big.Rat)
	switch {
	case group(2) != "": // mixed
		fraction, ok := quotient(group(3), group(4))
		if !ok {
			return nil, false
		}
		whole, _ := rat(group(2))
		v.Add(whole, fraction)
	case group(5) != "":
		fraction, ok := quotient(group(5), group(6))
		if !ok {
			return nil, false
		}
		v = fraction
	case group(7) != "":
		fraction, ok := quotient(group(7), group(8))
		if !ok {
			return nil, false
		}
		v = fraction
	default:
		plain, ok := rat(group(9))
		if !ok {
			return nil, false
		}
		v = plain
	}
	if sign := group(1); sign != "" && sign != "+" && !follows(text[:at[0]]) {
		v.Neg(v)
	}
	return v, true
}

// follows reports whether a minus behind the text would be one between two things.
func follows(before string) bool {
	if before == "" {
		return false
	}
	c := before[len(before)-1]
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == ')' || c == ']' || c == '}' || c == '%'
}

func quotient(above, below string) (*big.Rat, bool) {
	a, ok1 := rat(above)
	b, ok2 := rat(below)
	if !ok1 || !ok2 || b.Sign() == 0 {
		return nil, false
	}
	return a.Quo(a, b), true
}

func rat(text string) (*big.Rat, bool) {
	text = strings.NewReplacer(",", "", "−", "-").Replace(text)
	return new(big.Rat).SetString(text)
}

// answer is the number that a reply ends in: the one behind the last "####", else in the last \boxed{}, else, unless strict, the
// last number of all.
func answer(reply string, strict bool) (*big.Rat, bool) {
	if all := marked.FindAllStringSubmatch(reply, -1); len(all) > 0 {
		return findNumber(all[len(all)-1][1], false)
	}
	if strict {
		return nil, false
	}
	if all := boxed.FindAllStringSubmatch(reply, -1); len(all) > 0 {
		return findNumber(all[len(all)-1][1], false)
	}
	return findNumber(reply, true)
}

// truth is the number of an answer field: behind "####" where it has that, else the only number of the field, maybe with a unit.
func truth(field string) (*big.Rat, bool) {
	if all := marked.FindAllStringSubmatch(field, -1); len(all) > 0 {
		return findNumber(all[len(all)-1][1], false)
	}
	first, ok := findNumber(field, false)
	last, _ := findNumber(field, true)
	return first, ok && first.Cmp(last) == 0
}
