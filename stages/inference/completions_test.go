package inference

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/internal/lm"
)

const pathCompletions = "/v1/completions"

// TestCompletionsAreWhatIsSampled: prompts of all four kinds, several choices: each is what the prompt alone gives with the
// choice's seed, bit for bit, whole and streamed.
func TestCompletionsAreWhatIsSampled(t *testing.T) {
	_, hs := serve(t, nil)
	m, tok := testModel(t, 0)
	for _, c := range []struct {
		prompt  string
		prompts [][]int32
		n       int
	}{
		{`"abc"`, [][]int32{tok.Encode("abc")}, 1},
		{`[10,11]`, [][]int32{{10, 11}}, 3},
		{`["abc","a"]`, [][]int32{tok.Encode("abc"), tok.Encode("a")}, 2},
		{`[[10],[11,12]]`, [][]int32{{10}, {11, 12}}, 1},
	} {
		body := fmt.Sprintf(`{"model":"test","prompt":%s,"temperature":0.8,"seed":7,"n":%d,"max_tokens":12,"logprobs":2`, c.prompt, c.n)
		status, data := post(t, hs.URL+pathCompletions, body+"}")
		if status != 200 {
			t.Fatalf("%d %s", status, data)
		}
		got := decode[textReply[completionChoice]](t, data)
		if len(got.Choices) != len(c.prompts)*c.n || got.Object != "text_completion" || got.Model != "test" || !strings.HasPrefix(got.ID, "cmpl-") {
			t.Fatalf("%s", data)
		}
		stream := joined(t, eventsOf(t, hs.URL+pathCompletions, body+`,"stream":true}`))
		var prompt, sampled int
		for i, choice := range got.Choices {
			tokens := c.prompts[i/c.n]
			want := alone(t, Request{Tokens: tokens, MaxTokens: 12, Temperature: 0.8, Seed: choiceSeed(7, i%c.n), StopTokens: []int32{tok.EOS()}}, 64, []*lm.Model{m}, []int64{0}, []int{0})
			sampled += len(want.Tokens)
			if i%c.n == 0 {
				prompt += len(tokens)
			}
			if choice.Index != i || choice.Text != tok.Decode(want.Tokens) || *choice.FinishReason != want.FinishReason || choice.StopReason != nil ||
				!slices.Equal(choice.PromptTokenIDs, tokens) || len(choice.Versions) != 1 {
				t.Errorf("choice %d: %+v", i, choice)
			}
			sameBits(t, "whole", Completion{Tokens: choice.TokenIDs, Logprobs: choice.Logprobs.TokenLogprobs, Versions: want.Versions, FinishReason: *choice.FinishReason}, want)
			if !reflect.DeepEqual(stream[i], choice) {
				t.Errorf("choice %d, streamed:\n%+v, whole\n%+v", i, stream[i], choice)
			}
			for k, top := range choice.Logprobs.TopLogprobs {
				if lp, ok := top[choice.Logprobs.Tokens[k]]; !ok || lp != want.Logprobs[k] || len(top) < 2 || len(top) > 3 {
					t.Errorf("top of token %d: %v", k, top)
				}
			}
		}
		if u := got.Usage; u.PromptTokens != prompt || u.CompletionTokens != sampled || u.TotalTokens != prompt+sampled {
			t.Errorf("%d + %d tokens: usage %+v", prompt, sampled, u)
		}
	}
}

func TestChoicesDiffer(t *testing.T) {
	_, hs := serve(t, nil)
	_, data := post(t, hs.URL+pathCompletions, `{"prompt":"abc","temperature":2,"n":8,"max_tokens":10,"seed":1,"ignore_eos":true}`)
	seen := map[string]bool{}
	for _, c := range decode[textReply[completionChoice]](t, data).Choices {
		seen[fmt.Sprint(c.TokenIDs)] = true
	}
	if len(seen) != 8 {
		t.Errorf("%d of 8 choices are different", len(seen))
	}
}

func TestCompletionsDefaults(t *testing.T) {
	_, hs := serveScripted(t, scripted{say: always("a text of more than sixteen characters")})
	_, data := post(t, hs.URL+pathCompletions, `{"prompt":"x"}`)
	got := decode[textReply[completionChoice]](t, data)
	if c := got.Choices[0]; c.Text != "a text of more t" || *c.FinishReason != FinishLength || c.Logprobs != nil || got.Model != "test" {
		t.Errorf("%s", data)
	}
	_, data = post(t, hs.URL+pathCompletions, `{"prompt":"x","return_token_ids":false,"max_tokens":100}`)
	if strings.Contains(string(data), "token_ids") || *decode[textReply[completionChoice]](t, data).Choices[0].FinishReason != FinishStop {
		t.Errorf("%s", data)
	}
}

// TestStopStrings: the text ends before the stop string, the tokens behind the one that completed it; nothing of it is
// streamed.
func TestStopStrings(t *testing.T) {
	_, hs := serveScripted(t, scripted{say: always("one ÉND two END three")})
	ids := func(s string) int { return len([]byte(s)) }
	for _, c := range []struct {
		params, text, finish string
		reason               any
		tokens               int
	}{
		{`"stop":"END"`, "one ÉND two ", FinishStop, "END", ids("one ÉND two END")},
		{`"stop":["nothing","two E"]`, "one ÉND ", FinishStop, "two E", ids("one ÉND two E")},
		{`"stop":["END"],"include_stop_str_in_output":true`, "one ÉND two END", FinishStop, "END", ids("one ÉND two END")},
		{`"stop":["É"]`, "one ", FinishStop, "É", ids("one É")},
		{`"stop":["threes"]`, "one ÉND two END three", FinishStop, nil, ids("one ÉND two END three") + 1},
		{`"stop":[]`, "one ÉND two END three", FinishStop, nil, ids("one ÉND two END three") + 1},
		{`"stop":null,"max_tokens":4`, "one ", FinishLength, nil, 4},
		{`"stop":["END"],"max_tokens":5`, "one \uFFFD", FinishLength, nil, 5},
		{`"stop_token_ids":[` + fmt.Sprint(8+'w') + `]`, "one ÉND t", FinishStop, float64(8 + 'w'), ids("one ÉND tw")},
		{`"include_stop_str_in_output":true,"stop_token_ids":[` + fmt.Sprint(8+'w') + `]`, "one ÉND tw", FinishStop, float64(8 + 'w'), ids("one ÉND tw")},
	} {
		body := `{"prompt":"x","logprobs":0,"max_tokens":100,` + c.params
		if strings.Contains(c.params, "max_tokens") {
			body = `{"prompt":"x","logprobs":0,` + c.params
		}
		_, data := post(t, hs.URL+pathCompletions, body+"}")
		got := decode[textReply[completionChoice]](t, data)
		whole := got.Choices[0]
		if whole.Text != c.text || *whole.FinishReason != c.finish || whole.StopReason != c.reason || len(whole.TokenIDs) != c.tokens ||
			len(whole.Logprobs.Tokens) != c.tokens || got.Usage.CompletionTokens != c.tokens {
			t.Errorf("%s: %d tokens, %s", c.params, len(whole.TokenIDs), data)
		}
		events := eventsOf(t, hs.URL+pathCompletions, body+`,"stream":true}`)
		if got := joined(t, events)[0]; !reflect.DeepEqual(got, whole) {
			t.Errorf("%s, streamed:\n%+v, whole\n%+v", c.params, got, whole)
		}
		if len(events) < c.tokens {
			t.Errorf("%s: %d tokens came in %d events", c.params, c.tokens, len(events))
		}
	}
}

func TestStreamUsage(t *testing.T) {
	_, hs := serveScripted(t, scripted{say: always("abc")})
	events := eventsOf(t, hs.URL+pathCompletions, `{"prompt":["x","yy"],"n":2,"stream":true,"stream_options":{"include_usage":true}}`)
	last := decode[textReply[completionChoice]](t, events[len(events)-1])
	if want := (usage{3, 16, 19, promptDetails{1}}); last.Usage == nil || *last.Usage != want || last.Choices == nil || len(last.Choices) != 0 {
		t.Errorf("%s", events[len(events)-1])
	}
	for _, e := range events[:len(events)-1] {
		if decode[textReply[completionChoice]](t, e).Usage != nil {
			t.Errorf("%s", e)
		}
	}
	for _, e := range eventsOf(t, hs.URL+pathCompletions, `{"prompt":"x","stream":true}`) {
		if decode[textReply[completionChoice]](t, e).Usage != nil {
			t.Errorf("usage that nobody asked for: %s", e)
		}
	}
}

func TestTokenize(t *testing.T) {
	_, hs := serve(t, nil)
	_, tok := testModel(t, 0)
	_, data := post(t, hs.URL+"/tokenize", `{"model":"test","prompt":"ab","return_token_strs":true}`)
	want := fmt.Sprintf(`{"count":2,"max_model_len":64,"tokens":[%d,%d],"token_strs":["a","b"]}`, tok.Encode("a")[0], tok.Encode("b")[0])
	if string(data) != want {
		t.Errorf("%s", data)
	}
	_, data = post(t, hs.URL+"/tokenize", `{"messages":[{"role":"user","content":"ab"}]}`)
	tokens := decode[tokenizeReply](t, data).Tokens
	if want := slices.Concat(must(tok.RenderMessage("user", "ab")), tok.GenerationPrompt()); !slices.Equal(tokens, want) {
		t.Errorf("%s, want %v", data, want)
	}
	ids, err := json.Marshal(tokens)
	if err != nil {
		t.Fatal(err)
	}
	if _, data = post(t, hs.URL+"/detokenize", `{"tokens":`+string(ids)+`}`); string(data) != `{"prompt":"ab"}` {
		t.Errorf("%s", data)
	}
}
