package inference

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
)

// said feeds tokens to a text and returns what came of each, the last of which is what came at the end.
func said(x *text, tokens []int32) (pieces []string, taken int) {
	for _, t := range tokens {
		if x.ended {
			break
		}
		pieces, taken = append(pieces, x.add(t)), taken+1
	}
	return append(pieces, x.end()), taken
}

func TestTextHoldsBack(t *testing.T) {
	tok, err := lm.NewTokenizer("")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text    string
		stop    []string
		include bool
		want    string // what comes of each byte, and at the end, parted by |
	}{
		{text: "abc", want: "a|b|c|"},
		{text: "é€x", want: "|é|||€|x|"},
		{text: "a\xc3", want: "a||\uFFFD"},
		{text: "a\xc3b", want: "a||\uFFFDb|"},
		{text: "a\uFFFDb", want: "a||||\uFFFDb|"},
		{text: "so END it", stop: []string{"END"}, want: "s|o| ||||"},
		{text: "so END it", stop: []string{"END"}, include: true, want: "s|o| |||END|"},
		{text: "EEN ENEND", stop: []string{"END"}, want: "|E||EN |||EN|||"},
		{text: "aab", stop: []string{"ab"}, want: "|a||"},
		{text: "abcd", stop: []string{"cd", "bc"}, want: "a|||"},
		{text: "abcx", stop: []string{"abcd", "bcx"}, want: "|||a|"},
		{text: "EN", stop: []string{"END"}, want: "||EN"},
	} {
		x := &text{decode: tok.Decode, stop: c.stop, include: c.include}
		pieces, _ := said(x, tok.Encode(c.text))
		if got := strings.Join(pieces, "|"); got != c.want {
			t.Errorf("%q until %q: %q, want %q", c.text, c.stop, got, c.want)
		}
	}
}

// TestTextIsWhatTheTokensSay: the text is that of all tokens up to the first stop string in it, at every token it is the
// part of it that is certain, and no token is taken behind the one that completes the stop string.
func TestTextIsWhatTheTokensSay(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tok, err := lm.NewTokenizer("")
	if err != nil {
		t.Fatal(err)
	}
	few := []string{"a", "b", "ab", "é", "\xff", "\xe2\x82", "\xac", "\n", "</s>"}
	for range 5000 {
		var all strings.Builder
		for range rng.IntN(20) {
			all.WriteString(few[rng.IntN(len(few))])
		}
		tokens := tok.Encode(all.String())
		var stop []string
		for range rng.IntN(3) {
			s := few[rng.IntN(4)] + few[rng.IntN(4)] + few[rng.IntN(4)]
			stop = append(stop, s[:1+rng.IntN(2)]) // may end within a character, and then never comes
		}
		first := func(s string) int {
			at := -1
			for _, x := range stop {
				if i := strings.Index(s, x); i >= 0 && (at < 0 || i < at) {
					at = i
				}
			}
			return at
		}
		want, taken := tok.Decode(tokens), len(tokens)
		for n := range tokens {
			if s := tok.Decode(tokens[:n+1]); first(s) >= 0 {
				want, taken = s[:first(s)], n+1
				break
			}
		}
		x := &text{decode: tok.Decode, stop: stop}
		var got strings.Builder
		for n, token := range tokens {
			if x.ended {
				break
			}
			got.WriteString(x.add(token))
			if s := tok.Decode(tokens[:n+1]); got.String()+x.tail() != s {
				t.Fatalf("%q until %q: %q, and %q is held back of %q", tokens, stop, got.String(), x.tail(), s)
			}
		}
		got.WriteString(x.end())
		_, n := said(&text{decode: tok.Decode, stop: stop}, tokens)
		if got.String() != want || n != taken {
			t.Fatalf("%q until %q: %q of %d tokens, want %q of %d", tokens, stop, got.String(), n, want, taken)
		}
	}
}

// TestAnswerIsTheSameInAnyPieces: text, tokens, versions and reason do not depend on how many tokens come at once.
func TestAnswerIsTheSameInAnyPieces(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	tok, err := lm.NewTokenizer("")
	if err != nil {
		t.Fatal(err)
	}
	for range 500 {
		var c Completion
		for i := range 30 {
			c.Tokens, c.Logprobs = append(c.Tokens, tok.Encode("abé")[rng.IntN(4)]), append(c.Logprobs, -float32(i))
			c.Top = append(c.Top, []TopLogprob{{int32(i), 0}})
		}
		c.Versions = []schemas.VersionRun{{Offset: 0, Version: 3}, {Offset: 10, Version: 4}, {Offset: 20, Version: 5}}
		c.FinishReason = FinishLength
		fresh := func() *answer {
			return &answer{request: Request{StopTokens: []int32{tok.Encode("b")[0]}[:rng.IntN(2)]}, text: text{decode: tok.Decode, stop: []string{"aab", "bb", "éa"}[:rng.IntN(4)]}}
		}
		whole := fresh()
		piecewise := &answer{request: whole.request, text: whole.text}
		whole.end(whole.take(c), c.FinishReason)
		said := ""
		for n := 0; n < len(c.Tokens) && !piecewise.text.ended; {
			n = min(len(c.Tokens), n+1+rng.IntN(5))
			part := c
			part.Tokens, part.Logprobs, part.Top, part.FinishReason = c.Tokens[:n], c.Logprobs[:n], c.Top[:n], ""
			p := piecewise.take(part)
			said += p.text
		}
		said += piecewise.end(piece{answer: piecewise}, c.FinishReason).text
		if v := whole.out.Versions; len(v) != min(3, 1+(len(whole.out.Tokens)-1)/10) {
			t.Fatalf("%d tokens of versions %v", len(whole.out.Tokens), v)
		}
		if said != whole.said.String() || !slices.Equal(piecewise.out.Tokens, whole.out.Tokens) || !slices.Equal(piecewise.out.Logprobs, whole.out.Logprobs) ||
			len(piecewise.out.Top) != len(whole.out.Tokens) || !slices.Equal(piecewise.out.Versions, whole.out.Versions) ||
			piecewise.out.FinishReason != whole.out.FinishReason || piecewise.reason != whole.reason {
			t.Fatalf("in pieces %q %+v, at once %q %+v", said, piecewise.out, whole.said.String(), whole.out)
		}
	}
}
