package envserver

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/internal/lm"
)

// The rewards of a recorded reply's tokens are those that it got while it was played, special tokens and the end included.
func TestRecordedTokenRewards(t *testing.T) {
	tokenizer, err := lm.NewTokenizer("abc")
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(tokenizer)
	if err != nil {
		t.Fatal(err)
	}
	again, err := TokenRewards("", data)
	if err != nil {
		t.Fatal(err)
	}
	text, eos := tokenizer.Encode("cab"), tokenizer.EOS()
	for name, tt := range map[string]struct {
		tokens []int32
		finish string
	}{
		"ended":         {append(slices.Clone(text), eos), inference.FinishStop},
		"cut":           {text, inference.FinishLength},
		"special token": {[]int32{text[0], tokenizer.Pad(), text[1], text[2], eos}, inference.FinishStop},
		"empty":         {[]int32{eos}, inference.FinishStop},
	} {
		t.Run(name, func(t *testing.T) {
			c := conversation{renderer: speech(t, "", tokenizer)}
			if err := c.open([]env.Message{env.User("b")}, nil); err != nil {
				t.Fatal(err)
			}
			p, err := c.prompt()
			if err != nil {
				t.Fatal(err)
			}
			c.say(p, inference.Completion{Tokens: tt.tokens, Logprobs: make([]float32, len(tt.tokens)), FinishReason: tt.finish}, 1)
			rewards := make(env.CharRewards, utf8.RuneCountInString(c.nodes[1].Content)+1)
			for i := range rewards {
				rewards[i] = float64(i + 1)
			}
			if err := c.reward(0, rewards); err != nil {
				t.Fatal(err)
			}
			got, err := again(&c.nodes[1], rewards)
			if err != nil || len(got) == 0 || !bytes.Equal(got, c.nodes[1].TokenRewards) {
				t.Errorf("%v, played %v (%v)", got.Values(), c.nodes[1].TokenRewards.Values(), err)
			}
		})
	}
	if got, err := again(&schemas.Node{}, nil); got != nil || err != nil {
		t.Errorf("without rewards: %v, %v", got, err)
	}
	if _, err := TokenRewards("", []byte("{}")); err == nil {
		t.Error("no tokenizer")
	}
}
