package env

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestDraw(t *testing.T) {
	draw := func(rng *rand.Rand) (string, string) {
		text := string([]byte{byte('a' + rng.IntN(26)), byte('a' + rng.IntN(26))})
		return text, text
	}
	seen := map[string]Split{}
	for index := range 2000 {
		for _, split := range []Split{Train, Eval} {
			text, err := Draw("pairs", split, index, 20, draw)
			if err != nil {
				t.Fatal(err)
			}
			if again, _ := Draw("pairs", split, index, 20, draw); again != text {
				t.Fatalf("task %d of %s is %q, then %q", index, split, text, again)
			}
			if other, ok := seen[text]; ok && other != split {
				t.Fatalf("%q is in both splits", text)
			}
			seen[text] = split
		}
	}
	held := 0
	for _, split := range seen {
		if split == Eval {
			held++
		}
	}
	if len(seen) < 600 || held < 100 || held > 170 {
		t.Errorf("%d of %d pairs are held out; there are 676, a fifth of them held out", held, len(seen))
	}
}

func TestDrawOfTooLittle(t *testing.T) {
	one := func(*rand.Rand) (string, string) { return "x", "x" }
	_, train := Draw("one", Train, 0, 50, one)
	_, eval := Draw("one", Eval, 0, 50, one)
	if (train == nil) == (eval == nil) {
		t.Fatalf("the only task is in: train %v, eval %v", train == nil, eval == nil)
	}
	for _, err := range []error{train, eval} {
		if err != nil && !strings.Contains(err.Error(), "eval_percent = 50") {
			t.Error(err)
		}
	}
}
