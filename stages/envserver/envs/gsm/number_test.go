package gsm

import (
	"math/big"
	"strings"
	"testing"
)

func TestFindNumber(t *testing.T) {
	for text, want := range map[string]string{
		"42": "42", " 42. ": "42", "-7": "-7", "−7": "-7", "+7": "7", "1,234": "1234", "1,234,567.50": "2469135/2", "12,34": "12", "0.1": "1/10",
		".5": "1/2", "3/4": "3/4", "-3/4": "-3/4", "2 1/2": "5/2", "-2 1/2": "-5/2", `\frac{3}{4}`: "3/4", `-\dfrac{3}{4}`: "-3/4", "6/3": "2",
		"$1,000": "1000", "-$5": "-5", "$-5": "-5", "€ 3.20": "16/5", "50%": "50", "12 apples": "12", "3 m": "3", `\$12`: "12", "1{,}000": "1000",
		"0.30000000000000000000000000000000000001": "30000000000000000000000000000000000001/100000000000000000000000000000000000000",
		"10,000,000,000,000,000,000,000":           "10000000000000000000000", "007": "7", "1 000": "1", "3/0 or 5": "5", "0": "0", "-0": "0",
	} {
		w, _ := new(big.Rat).SetString(want)
		if got, ok := findNumber(text, false); !ok || got.Cmp(w) != 0 {
			t.Errorf("%q: %v %v, want %s", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "none", "$", "-", "1/0", "five", "."} {
		if got, ok := findNumber(text, false); ok {
			t.Errorf("%q: %v", text, got)
		}
	}
	// so many digits are several numbers, and none takes long
	if _, ok := findNumber(strings.Repeat("9", 100000), true); !ok {
		t.Error("no number in many digits")
	}
}

func TestAnswer(t *testing.T) {
	for _, test := range []struct {
		reply, want string
		strict      bool
	}{
		{"3 + 4 = 7\n#### 7", "7", true}, {"#### 7\nNo:\n####  $1,008 dollars in 3 days", "1008", true}, {"the answer is 7", "", true},
		{`so \boxed{\frac{1}{2}} of 12`, "1/2", false}, {`\boxed{5} #### 6`, "6", false}, {"3 apples and 4 pears make 7 fruits.", "7", false},
		{"10-3", "3", false}, {"(2)-3", "3", false}, {"is -3", "-3", false}, {"from 3–5", "5", false}, {"nothing", "", false}, {"#### none, 5", "5", false},
		{"####", "", false}, {"It costs $1,234.50.", "2469/2", false}, {"7 #### x", "", false},
	} {
		got, ok := answer(test.reply, test.strict)
		if test.want == "" {
			if ok {
				t.Errorf("%q: %v", test.reply, got)
			}
			continue
		}
		w, _ := new(big.Rat).SetString(test.want)
		if !ok || got.Cmp(w) != 0 {
			t.Errorf("%q: %v %v, want %s", test.reply, got, ok, test.want)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add("#### 1,000.5/3", true)
	f.Add(`\boxed{-\frac{1}{0}} 2 1/2`, false)
	f.Fuzz(func(t *testing.T, reply string, strict bool) {
		if v, ok := answer(reply, strict); ok && v == nil {
			t.Fatal("a number that is none")
		}
	})
}
