package envserver

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/inference/render"
)

// qwen3 is the renderer of a tokenizer of the 256 bytes with Qwen3's added tokens.
func qwen3(t testing.TB) render.Renderer {
	t.Helper()
	r, err := render.New("", qwen3Tokenizer(t))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// qwen3Tokenizer is its tokenizer.json, with more tokens at the end.
func qwen3Tokenizer(t testing.TB, more ...string) []byte {
	t.Helper()
	vocab, next := map[string]int{}, rune(256)
	for b := range 256 { // GPT-2's characters for bytes
		r := rune(b)
		if b <= ' ' || b >= 0x7f && b <= 0xa0 || b == 0xad {
			r, next = next, next+1
		}
		vocab[string(r)] = b
	}
	var added []any
	names := []string{"<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}
	for i, name := range append(names, more...) {
		added = append(added, map[string]any{
			"id": 256 + i, "content": name, "special": i < 2, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
		})
	}
	bytes := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}
	data, err := json.Marshal(map[string]any{
		"version": "1.0", "added_tokens": added, "pre_tokenizer": bytes, "decoder": bytes,
		"model": map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// speaks is a model that says the texts, in which the names of tokens are these, one after the other and the last ever
// after; each ends where the first stop token stands.
func speaks(r render.Renderer, texts ...string) *model {
	return &model{answer: func(_ context.Context, call int, q inference.Request) (inference.Completion, error) {
		c := inference.Completion{Tokens: r.Encode(texts[min(call, len(texts)-1)]), FinishReason: inference.FinishLength, Versions: []schemas.VersionRun{{Version: 3}}}
		if i := slices.IndexFunc(c.Tokens, func(id int32) bool { return slices.Contains(q.StopTokens, id) }); i >= 0 {
			c.Tokens, c.FinishReason = c.Tokens[:i+1], inference.FinishStop
		}
		c.Tokens = c.Tokens[:min(len(c.Tokens), q.MaxTokens)]
		c.Logprobs = slices.Repeat([]float32{-1}, len(c.Tokens))
		return c, nil
	}}
}

// shows is tokens as people read them.
func shows(r render.Renderer, tokens []int32) string {
	var b strings.Builder
	for _, id := range tokens {
		b.WriteString(r.Token(id))
	}
	return b.String()
}

// playIn plays a task with a renderer.
func playIn(t *testing.T, r render.Renderer, e env.Environment, m *model) *schemas.Trace {
	t.Helper()
	task := testTask()
	task.MaxTokens, task.MaxRolloutTokens = 500, 10_000
	p := testPlayer(t, e, m)
	p.renderer = r
	return playOne(t, p, task)
}

// A policy with a chat format: tools are told in the system message and called in tokens, reasoning stands apart from what the
// environment gets, and what was sampled stays as it is.
func TestChatFormat(t *testing.T) {
	r := qwen3(t)
	call := "<tool_call>\n{\"name\": \"Add\", \"arguments\": {\"a\": 2, \"b\": 3}}\n</tool_call>"
	m := speaks(r, "<think>\nhm\n</think>\n\nlet me\n"+call+"\n"+call+"<|im_end|>", "<think>\nso\n</think>\n\n"+call)
	trace := playIn(t, r, &calculator{game{info: env.Info{MaxTurns: 3}, reply: goOn}}, m)
	scored(t, trace)
	if len(m.requests) != 1 {
		t.Fatalf("%d calls of the model: the second answer came after the end", len(m.requests))
	}
	said := trace.Nodes[2]
	if said.Content != "let me" || said.Reasoning != "hm" || len(said.ToolCalls) != 2 || said.ToolCalls[1].Arguments != `{"a": 2, "b": 3}` {
		t.Errorf("%+v", said)
	}
	if got := shows(r, said.TokenIDs.Values()); got != "<|im_start|>assistant\n<think>\nhm\n</think>\n\nlet me\n"+call+"\n"+call+"<|im_end|>" {
		t.Errorf("sampled %q", got)
	}
	equal(t, "stop tokens", m.requests[0].StopTokens, r.Stop())
	if system := trace.Nodes[0]; system.Role != "system" || !strings.Contains(system.Content, `"description": "Add two numbers."`) {
		t.Errorf("the model is not told of its tools: %q", system.Content)
	}
}

// A reply of an environment that wants one call at a time ends with the call; the template's end of it is not sampled, and
// masked out.
func TestOneCall(t *testing.T) {
	r := qwen3(t)
	call := "<tool_call>\n{\"name\": \"Add\", \"arguments\": {\"a\": 2, \"b\": 3}}\n</tool_call>"
	m := speaks(r, call+call+"<|im_end|>")
	trace := playIn(t, r, &calculator{game{info: env.Info{MaxTurns: 3, OneCall: true}, reply: goOn}}, m)
	scored(t, trace)
	if len(m.requests) != 2 {
		t.Fatalf("%d calls of the model, want one for each tool call", len(m.requests))
	}
	answer := trace.Nodes[3]
	if got := shows(r, answer.TokenIDs.Values()); got != "<|im_end|>\n<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n" || slices.Contains(answer.Mask, 1) {
		t.Errorf("behind the call %q, mask %v", got, answer.Mask)
	}
	equal(t, "what the trace holds is what the model saw and sampled", slices.Concat(m.requests[1].Tokens, r.Encode(call)), tokensOf(trace)[:len(m.requests[1].Tokens)+len(r.Encode(call))])
	if said := trace.Nodes[2]; said.BodyTo != said.TokenIDs.Len() {
		t.Errorf("the end of a call is no content: %d of %d", said.BodyTo, said.TokenIDs.Len())
	}
}

// An answer that was cut is closed by tokens that are not trained on.
func TestCutAnswerIsClosed(t *testing.T) {
	r := qwen3(t)
	m := speaks(r, "yes")
	trace := playIn(t, r, &game{info: env.Info{MaxTurns: 2, CutReplies: true}, reply: goOn}, m)
	scored(t, trace)
	if got := shows(r, m.requests[1].Tokens); !strings.HasSuffix(got, "<|im_start|>assistant\nyes<|im_end|>\n<|im_start|>user\non<|im_end|>\n<|im_start|>assistant\n") {
		t.Errorf("the next prompt is %q", got)
	}
	if got := shows(r, trace.Nodes[2].TokenIDs.Values()); !strings.HasPrefix(got, "<|im_end|>\n") || slices.Contains(trace.Nodes[2].Mask, 1) {
		t.Errorf("behind the answer %q, mask %v", got, trace.Nodes[2].Mask)
	}
}

// Rewards of characters are for the tokens of the content alone, and its end.
func TestRewardsBesideReasoning(t *testing.T) {
	r := qwen3(t)
	for answer, want := range map[string][]float32{
		"<think>a</think>\n\nxy<|im_end|>": {0, 0, 0, 0, 0, 1, 2, 9},
		"<think>a</think>\n\nxy":           {0, 0, 0, 0, 0, 1, 2},
		"xy<|im_end|>":                     {1, 2, 9},
	} {
		trace := playIn(t, r, &game{score: func([]string) (env.Score, error) {
			return env.Score{Rewards: env.Rewards{}, CharRewards: []env.CharRewards{{1, 2, 9}}}, nil
		}}, speaks(r, answer))
		if len(trace.Errors) > 0 {
			t.Fatal(trace.Errors)
		}
		equal(t, answer, trace.Nodes[1].TokenRewards.Values()[len(r.GenerationPrompt()):], want)
	}
}

// A reply that ends with its call gets the reward for ending at the call's last token, played and recorded; one that goes on
// behind a call, or is cut, gets it at its own end, or not at all.
func TestRewardForTheEndOfACall(t *testing.T) {
	r := qwen3(t)
	const call = "<tool_call>{\"name\": \"Add\", \"arguments\": {}}</tool_call>"
	for answer, want := range map[string]bool{"ab" + call: true, "ab" + call + "<|im_end|>": true, "ab" + call + " ": false, "ab": false} {
		c := conversation{renderer: r}
		if err := c.open([]env.Message{env.User("go")}, []env.Tool{{Name: "Add", Schema: json.RawMessage("{}")}}); err != nil {
			t.Fatal(err)
		}
		p, err := c.prompt()
		if err != nil {
			t.Fatal(err)
		}
		tokens := r.Encode(answer)
		c.say(p, inference.Completion{Tokens: tokens, Logprobs: make([]float32, len(tokens)), FinishReason: inference.FinishStop}, 1)
		if err := c.reward(0, env.CharRewards{1, 2, 9}); err != nil {
			t.Fatal(err)
		}
		expected := make([]float32, len(tokens))
		if expected[0], expected[1] = 1, 2; want {
			expected[len(tokens)-1] = 9
		}
		equal(t, answer, c.nodes[c.replies[0].node].TokenRewards.Values()[p.opening:], expected)
	}
}

// The bytes of content that tokens stand for are those that decoding ever more of them shows, whatever bytes they are, and
// finding them is work for each token, not for each token and all before it.
func TestWidths(t *testing.T) {
	r := qwen3(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		var tokens []int32
		for range rng.IntN(9) {
			tokens = append(tokens, r.Encode([]string{"a", "é", "✓", "👧", "<|im_end|>", "<think>"}[rng.IntN(6)])...)
			if rng.IntN(4) == 0 {
				tokens = slices.Delete(tokens, len(tokens)-1, len(tokens)) // a character that is not whole
			}
		}
		all, at := r.Decode(tokens), 0
		want := make([]int, len(tokens))
		for i := range tokens {
			if d := r.Decode(tokens[:i+1]); len(d) > at && strings.HasPrefix(all, d) {
				want[i], at = len(d)-at, len(d)
			}
		}
		if got := widths(r, tokens, all); !slices.Equal(got, want) {
			t.Fatalf("%q: %v, want %v", shows(r, tokens), got, want)
		}
	}
	equal(t, "less than all tokens", widths(r, r.Encode("\n\nab\n"), "ab"), []int{0, 0, 1, 1, 0})
	const long = 1 << 19
	equal(t, "many tokens", widths(r, slices.Repeat(r.Encode("a"), long), strings.Repeat("a", long)), slices.Repeat([]int{1}, long))
}

// What the environment says a policy called before stands in the trace.
func TestCallsOfThePrompt(t *testing.T) {
	m := env.Message{Role: env.RoleAssistant, ToolCalls: []env.ToolCall{{ID: "1", Name: "add", Arguments: `{"a": 2}`}}}
	trace := playOne(t, testPlayer(t, &game{prompt: []env.Message{env.User("go"), m, {Role: env.RoleTool, ToolCallID: "1", Content: "2"}}}, says(tokenizer(t), "hi")), testTask())
	scored(t, trace)
	equal(t, "calls", trace.Nodes[1].ToolCalls, []schemas.ToolCall{{ID: "1", Name: "add", Arguments: `{"a": 2}`}})
	if got := tokenizer(t).Decode(trace.Nodes[1].TokenIDs.Values()); !strings.Contains(got, `{"name": "add", "arguments": {"a": 2}}`) {
		t.Errorf("the policy sees %q", got)
	}
}

// TestInvariant_Branches: a server that saw another prompt than the one it was asked to continue gets a branch: what was
// sampled stays where it was, and each branch is what a model call saw.
func TestInvariant_Branches(t *testing.T) {
	tok := tokenizer(t)
	shortened := func(prompt []int32) []int32 { // without the first answer's text, as templates do that drop reasoning
		first := slices.Concat(tok.GenerationPrompt(), tok.Encode("one"), []int32{tok.EOS()})
		for i := range prompt {
			if len(prompt)-i >= len(first) && slices.Equal(prompt[i:i+len(first)], first) {
				return slices.Concat(prompt[:i+1], prompt[i+len(first)-1:])
			}
		}
		return prompt
	}
	var saw [][]int32
	m := &model{answer: func(_ context.Context, call int, r inference.Request) (inference.Completion, error) {
		c := spoken(tok, []string{"one", "two", "three"}[call], r)
		if call > 0 {
			c.Prompt = shortened(r.Tokens)
		}
		saw = append(saw, slices.Concat(r.Tokens, c.Tokens))
		if c.Prompt != nil {
			saw[call] = slices.Concat(c.Prompt, c.Tokens)
		}
		return c, nil
	}}
	g := &game{info: env.Info{MaxTurns: 3}, reply: goOn, score: func([]string) (env.Score, error) {
		return env.Score{Rewards: env.Rewards{"r": env.Value(1)}, CharRewards: []env.CharRewards{{1, 2, 3, 9}}}, nil
	}}
	trace := playOne(t, testPlayer(t, g, m), testTask())
	scored(t, trace)
	paths := branches(trace.Nodes)
	if len(paths) != 2 {
		t.Fatalf("%d branches: %s", len(paths), contents(trace))
	}
	read := func(path []int) (text []string, tokens []int32, sampled int) {
		for _, i := range path {
			n := trace.Nodes[i]
			text, tokens, sampled = append(text, n.Role+":"+n.Content), append(tokens, n.TokenIDs.Values()...), sampled+strings.Count(string(n.Mask), "\x01")
		}
		return text, tokens, sampled
	}
	text, tokens, sampled := read(paths[0])
	equal(t, "the first branch", text, []string{"user:go", "assistant:one"})
	equal(t, "tokens of the first branch", tokens, saw[0])
	if sampled != 4 {
		t.Errorf("%d sampled tokens", sampled)
	}
	if text, tokens, sampled = read(paths[1]); paths[1][0] != paths[0][0] {
		t.Error("what both branches begin with is there twice")
	}
	equal(t, "the second branch", text, []string{"user:go", "assistant:one", "user:on", "assistant:two", "user:on", "assistant:three", "user:on"})
	equal(t, "tokens of the second branch", tokens, saw[2])
	if sampled != 4+6 {
		t.Errorf("%d sampled tokens", sampled)
	}
	if first := trace.Nodes[1]; first.TokenRewards.Len() != first.TokenIDs.Len() {
		t.Errorf("the first reply's rewards: %v", first.TokenRewards.Values())
	}
	if got := len(m.requests[2].Tokens); got != len(saw[1])+len(tok.Encode("on"))+3 {
		t.Errorf("the third prompt has %d tokens: it does not go on from what was seen", got)
	}
}

// A server that says what it saw, and saw what it was asked, gets no branch; one that saw more than that before the answer
// neither.
func TestSeenAsAsked(t *testing.T) {
	tok := tokenizer(t)
	for what, change := range map[string]func([]int32) []int32{
		"the same":             slices.Clone[[]int32],
		"more of the newest":   func(p []int32) []int32 { return slices.Insert(slices.Clone(p), len(p)-2, tok.Encode(" please")...) },
		"no role's token":      func(p []int32) []int32 { return p[:len(p)-1] },
		"something else alone": func(p []int32) []int32 { return tok.Encode("x") },
	} {
		var saw []int32
		m := &model{answer: func(_ context.Context, call int, r inference.Request) (inference.Completion, error) {
			c := spoken(tok, "hi", r)
			c.Prompt = change(r.Tokens)
			saw = slices.Concat(c.Prompt, c.Tokens)
			return c, nil
		}}
		trace := playOne(t, testPlayer(t, &game{}, m), testTask())
		scored(t, trace)
		if paths := branches(trace.Nodes); len(paths) != 1 || contents(trace) != "user:go|assistant:hi" {
			t.Errorf("%s: %d branches: %s", what, len(paths), contents(trace))
		}
		equal(t, what, tokensOf(trace), saw)
	}
}
