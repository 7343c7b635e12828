package inference

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"
)

// canonical is a completion as a server writes it.
func canonical(t testing.TB, tokens int) []byte {
	t.Helper()
	c := generateChoice{TokenIDs: make([]int32, tokens), FinishReason: FinishStop, Logprobs: &logprobs{}, Versions: []versionSpan{{0, 7}, {3, 8}}}
	for i := range c.TokenIDs {
		c.TokenIDs[i] = int32(i * 70)
		c.Logprobs.Content = append(c.Logprobs.Content, tokenLogprob{Token: tokenName(c.TokenIDs[i]), Logprob: -float32(math.Exp(float64(-i)))})
	}
	text, err := json.Marshal(generateReply{RequestID: "gen-1", Choices: []generateChoice{c}})
	if err != nil {
		t.Fatal(err)
	}
	return append(text, '\n')
}

// same fails where what was read in two ways differs. Tokens are named in one of two.
func same(t *testing.T, text []byte, got, want generateReply) {
	t.Helper()
	for _, r := range []*generateReply{&got, &want} {
		for i := range r.Choices {
			if r.Choices[i].Logprobs == nil {
				continue
			}
			for k := range r.Choices[i].Logprobs.Content {
				if l := &r.Choices[i].Logprobs.Content[k]; l.TokenID != nil {
					l.Token, l.TokenID = tokenName(*l.TokenID), nil
				}
			}
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s\n%+v, encoding/json reads\n%+v", text, got, want)
	}
}

// FuzzReadReply: what is read fast is what encoding/json reads.
func FuzzReadReply(f *testing.F) {
	f.Add(canonical(f, 5))
	for _, text := range []string{
		`{}`, `{"choices":[]}`, `{"choices":[{"index":01}]}`, `{"choices":[{"token_ids":[1,2,]}]}`, `{"choices":[,{}]}`, `{"choices":[{"token_ids":[-0]}]}`,
		`{"choices":[{"logprobs":{"content":[{"token":"token_id:5","logprob":-0.5}]}}]}`, `{"choices":[{"logprobs":{"content":[{"token":"token_id:05","logprob":-1e-7}]}}]}`,
		`{"choices":[{"logprobs":{"content":[{"token":"token_id:5","logprob":1e99}]}}]}`, `{"choices":[{"logprobs":{"content":[{"logprob":-.5,"token":"token_id:-5"}]}}]}`,
		`{"choices":[{"logprobs":{}}],"prompt_token_ids":[3]}`, `{"request_id":"a\"b","request_id":"é"}`, `{"choices":[{"logprobs":{"content":[{"token":"token_id:1","token":"token_id:2"}]}}]}`,
		`{"choices":[{"index":1}],"choices":[{}]}`, `{"choices":[{"token_ids":[1],"logprobs":{"content":[{"token":"token_id:5"}]},"logprobs":{}}]}`,
		`{"choices":[{"token_ids":[1,1,1],"logprobs":{"content":[],"content":[]}}]}`,
		`{"choices":[{"policy_versions":[{"offset":1,"version":9223372036854775808}]}]}`, `{"choices":[{"logprobs":{"content":[{"token":"token_id:-0","logprob":0}]}}]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, ok := readReply(text)
		if !ok {
			return
		}
		var want generateReply
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatalf("%s was read, encoding/json: %v", text, err)
		}
		same(t, text, got, want)
	})
}

// What a server of this package writes is read fast, whichever fields it has, and without an allocation for each token.
func TestCostOfAReply(t *testing.T) {
	cost := func(tokens int) float64 {
		text := canonical(t, tokens)
		var want generateReply
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		got, ok := readReply(text)
		if !ok {
			t.Fatalf("%s is not read fast", text)
		}
		same(t, text, got, want)
		return testing.AllocsPerRun(10, func() {
			if _, ok := readReply(text); !ok {
				t.Fatal("not read")
			}
		})
	}
	if few, many := cost(10), cost(1000); many > few+4 {
		t.Errorf("%.0f allocations for 10 tokens, %.0f for 1000", few, many)
	}
}
