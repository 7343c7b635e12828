package inference

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/inference/render"
	"github.com/prl-project/prl/stages/internal/lm"
)

const pathChat = "/v1/chat/completions"

// qwen is a tokenizer.json with a token for each byte and those of Qwen 3.
func qwen(t testing.TB) []byte {
	t.Helper()
	vocab := map[string]int{}
	for b, next := 0, 256; b < 256; b++ { // GPT-2's names of bytes
		r := rune(b)
		if !(b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae) {
			r, next = rune(next), next+1
		}
		vocab[string(r)] = b
	}
	type added struct {
		ID         int    `json:"id"`
		Content    string `json:"content"`
		Special    bool   `json:"special"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
	}
	var tokens []added
	for i, name := range []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"} {
		tokens = append(tokens, added{ID: 256 + i, Content: name, Special: i < 3})
	}
	data, err := json.Marshal(map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": tokens, "normalizer": nil,
		"pre_tokenizer":  map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true},
		"post_processor": nil,
		"decoder":        map[string]any{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
		"model": map[string]any{
			"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []string{},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// talked is a chat's answer, whole and as its stream adds up.
type talked struct {
	reasoning, content, finish string
	calls                      []toolCall
	tokens                     []int32
	deltas                     int // events with content or reasoning
}

func talkWhole(t testing.TB, url, body string) talked {
	t.Helper()
	status, data := post(t, url+pathChat, body+"}")
	if status != 200 {
		t.Fatalf("%d %s", status, data)
	}
	c := decode[textReply[chatChoice]](t, data).Choices[0]
	out := talked{reasoning: c.Message.Reasoning, finish: *c.FinishReason, calls: c.Message.ToolCalls, tokens: c.TokenIDs}
	if c.Message.Content != nil {
		out.content = *c.Message.Content
	}
	if (c.Message.Content == nil) != (out.content == "" && len(out.calls) > 0) || c.Message.Role != "assistant" {
		t.Errorf("%s", data)
	}
	return out
}

func talkStreamed(t testing.TB, url, body string) (out talked) {
	t.Helper()
	for i, e := range eventsOf(t, url+pathChat, body+`,"stream":true}`) {
		r := decode[textReply[chatChoice]](t, e)
		c := r.Choices[0]
		if (i == 0) != (c.Delta.Role == "assistant") || (i == 0) != (r.PromptTokenIDs != nil) || r.Object != "chat.completion.chunk" || out.finish != "" {
			t.Errorf("event %d: %s", i, e)
		}
		out.reasoning += c.Delta.Reasoning
		if c.Delta.Content != nil {
			out.content += *c.Delta.Content
		}
		if c.Delta.Reasoning != "" || c.Delta.Content != nil && *c.Delta.Content != "" {
			out.deltas++
		}
		for k, call := range c.Delta.ToolCalls {
			if call.Index == nil || *call.Index != k {
				t.Errorf("tool call %d: %s", k, e)
			}
			call.Index = nil
			out.calls = append(out.calls, call)
		}
		out.tokens = append(out.tokens, c.TokenIDs...)
		if c.FinishReason != nil {
			out.finish = *c.FinishReason
		}
	}
	return out
}

// TestChat: what a policy says is taken apart into reasoning, content and tool calls, streamed as it is whole; its tokens
// are the sampled ones in any case.
func TestChat(t *testing.T) {
	const tools = `,"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}]`
	const call = `<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>`
	const think = "<think>\nhm, é\n</think>\n\n"
	f := functionCall{"f", `{"x": 1}`}
	for _, c := range []struct {
		name      string
		qwen      bool
		says      string
		params    string
		reasoning string
		content   string
		finish    string
		calls     []functionCall
		deltas    int // at least
	}{
		{name: "text", says: "hello é", content: "hello é", finish: FinishStop, deltas: 7},
		{name: "stop", says: "hello there", params: `,"stop":["lo t"]`, content: "hel", finish: FinishStop, deltas: 3},
		{name: "stop token", says: "hello", params: fmt.Sprintf(`,"stop_token_ids":[%d]`, 8+'o'), content: "hell", finish: FinishStop, deltas: 4},
		{name: "cut", says: "hello", params: `,"max_completion_tokens":3`, content: "hel", finish: FinishLength, deltas: 3},
		{name: "cut in a character", says: "é", params: `,"max_tokens":1`, content: "\uFFFD", finish: FinishLength},
		{name: "nothing", says: "", finish: FinishStop},
		{name: "a call of no tools", says: "x" + call, content: "x" + call, finish: FinishStop, deltas: 20},
		{name: "tool choice none", says: call, params: tools + `,"tool_choice":"none"`, content: call, finish: FinishStop},
		{name: "call", says: "x" + call, params: tools, content: "x" + call, finish: finishToolCalls, calls: []functionCall{f}},
		{name: "no call", says: "hello", params: tools + `,"tool_choice":"auto"`, content: "hello", finish: FinishStop},
		{name: "a bad call", says: `<tool_call>{"name": 5}</tool_call>`, params: tools, content: `<tool_call>{"name": 5}</tool_call>`, finish: FinishStop},

		{name: "qwen", qwen: true, says: think + "so", reasoning: "hm, é", content: "so", finish: FinishStop, deltas: 7},
		{name: "qwen stops reasoning", qwen: true, says: think + "so", params: `,"stop":", "`, reasoning: "hm", finish: FinishStop, deltas: 2},
		{name: "qwen stops at the end of a line of reasoning", qwen: true, says: "<think>\nab\ncd", params: `,"stop":"b\n"`, reasoning: "a", finish: FinishStop},
		{name: "qwen cut", qwen: true, says: think + "so", params: `,"max_tokens":4`, reasoning: "hm", finish: FinishLength, deltas: 2},
		{name: "qwen call", qwen: true, says: think + "see:\n" + call, params: tools, reasoning: "hm, é", content: "see:", finish: finishToolCalls, calls: []functionCall{f}, deltas: 6},
		{name: "qwen calls", qwen: true, says: call + "\n" + call, params: tools, finish: finishToolCalls, calls: []functionCall{f, f}},
		{name: "qwen one call", qwen: true, says: call + "\n" + call, params: tools + `,"parallel_tool_calls":false`, finish: finishToolCalls, calls: []functionCall{f}},
		{name: "qwen cut in a call", qwen: true, says: call + call, params: tools + `,"max_tokens":60`, content: call + `<tool_call>{"name": "f", "argume`, finish: FinishLength},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := scripted{say: always(c.says)}
			if c.qwen {
				b.tokenizer = qwen(t)
			}
			_, hs := serveScripted(t, b)
			body := `{"messages":[{"role":"user","content":"hi"}]` + c.params
			whole, stream := talkWhole(t, hs.URL, body), talkStreamed(t, hs.URL, body)
			for how, got := range map[string]talked{"whole": whole, "streamed": stream} {
				var calls []functionCall
				ids := map[string]bool{}
				for _, call := range got.calls {
					calls = append(calls, call.Function)
					ids[call.ID] = call.Type == "function" && call.ID != ""
				}
				if got.reasoning != c.reasoning || got.content != c.content || got.finish != c.finish || !slices.Equal(calls, c.calls) || len(ids) != len(calls) {
					t.Errorf("%s: %+v", how, got)
				}
			}
			if !slices.Equal(whole.tokens, stream.tokens) || len(whole.tokens) == 0 {
				t.Errorf("tokens %v, streamed %v", whole.tokens, stream.tokens)
			}
			if stream.deltas < c.deltas {
				t.Errorf("%d events with text, want %d", stream.deltas, c.deltas)
			}
		})
	}
}

// TestStopBehindReasoning: what is taken from the end of an answer is not taken from the reasoning before it.
func TestStopBehindReasoning(t *testing.T) {
	speech, err := render.New("", qwen(t))
	if err != nil {
		t.Fatal(err)
	}
	a := &answer{out: Completion{Tokens: speech.Encode("<think>ab</think>xb"), FinishReason: FinishStop}, text: text{decode: speech.Decode, ended: true, over: "b"}}
	said, _ := (&turn{speech: speech}).say(a.whole())
	if said.Reasoning != "ab" || *said.Content != "x" {
		t.Errorf("%q, %q", said.Reasoning, *said.Content)
	}
}

// TestStreamedChatAddsUp: the pieces of a stream, whatever their size, are what the whole reply says.
func TestStreamedChatAddsUp(t *testing.T) {
	speech, err := render.New("", qwen(t))
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	bits := []string{"<tool_call>", "</tool_call>", "\n", "\n\n", "a", "b", "é", " ", `{"name": "f", "arguments": {}}`, "<|im_end|>"}
	for range 5000 {
		says := []string{"", "<think>", "<think>\nab</think>\n", "<think>\n\n</think>"}[rng.IntN(4)]
		for range rng.IntN(9) {
			says += bits[rng.IntN(len(bits))]
		}
		tokens := append(speech.Encode(says), speech.Stop()[0])
		stop := []string{"ab", "\n", "b\n"}[:rng.IntN(4)]
		tools := rng.IntN(2) == 0
		fresh := func() (*answer, *turn) {
			return &answer{request: Request{StopTokens: speech.Stop()}, text: text{decode: speech.Decode, stop: stop}},
				&turn{speech: speech, tools: tools, callID: func() string { return "call" }}
		}
		upTo := func(n int) Completion { return Completion{Tokens: tokens[:n], Logprobs: make([]float32, n)} }
		a, whole := fresh()
		a.end(a.take(upTo(len(tokens))), FinishStop)
		want, _ := whole.say(a.whole())
		a, stream := fresh()
		got := chatAnswer{Content: new(string)}
		for n := 0; !a.text.ended; {
			n = min(len(tokens), n+1+rng.IntN(3))
			p := a.take(upTo(n))
			if a.text.ended {
				p = a.end(p, FinishStop)
			}
			said, _ := stream.say(p)
			got.Reasoning += said.Reasoning
			got.ToolCalls = append(got.ToolCalls, said.ToolCalls...)
			if said.Content != nil {
				*got.Content += *said.Content
			}
		}
		if want.Content == nil {
			want.Content = new(string)
		}
		if *got.Content != *want.Content || got.Reasoning != want.Reasoning || !slices.Equal(got.ToolCalls, want.ToolCalls) {
			t.Fatalf("%q until %q, tools %v: %q, %q, %v, whole %q, %q, %v", says, stop, tools, got.Reasoning, *got.Content, got.ToolCalls, want.Reasoning, *want.Content, want.ToolCalls)
		}
	}
}

// TestTextIsNotUnsaid: where the format finds out late that what it took for content was reasoning, the stream goes on with
// what follows.
func TestTextIsNotUnsaid(t *testing.T) {
	_, hs := serveScripted(t, scripted{tokenizer: qwen(t), say: always("hm</think>so")})
	got := talkStreamed(t, hs.URL, `{"messages":[{"role":"user","content":"hi"}]`)
	if got.content != "hmso" || got.reasoning != "hm" {
		t.Errorf("%+v", got)
	}
}

// TestChatHistory: messages, calls and tools go to the renderer as they are.
func TestChatHistory(t *testing.T) {
	data := qwen(t)
	speech, err := render.New("", data)
	if err != nil {
		t.Fatal(err)
	}
	var asked Request
	_, hs := serveScripted(t, scripted{tokenizer: data, say: func(r Request) string { asked = r; return "x" }})
	messages := []render.Message{
		{Role: "system", Content: "be"},
		{Role: "user", Content: "two parts"},
		{Role: "assistant", Reasoning: "r", ToolCalls: []render.ToolCall{{ID: "1", Name: "f", Arguments: `{"a":1}`}}},
		{Role: "tool", Content: "done", ToolCallID: "1"},
	}
	tools := []render.Tool{{Name: "f", Description: "d", Parameters: json.RawMessage(`{"type":"object","properties":{"a":{"type":"integer"}}}`)}}
	rendered, err := speech.Begin(messages, tools)
	if err != nil {
		t.Fatal(err)
	}
	var want []int32
	for _, m := range rendered {
		want = append(want, m.Tokens...)
	}
	want = append(want, speech.GenerationPrompt()...)
	if !strings.Contains(speech.Decode(want), "<think>\nr\n</think>") {
		t.Fatalf("no reasoning in %q", speech.Decode(want))
	}
	for _, reasoning := range []string{"reasoning", "reasoning_content"} {
		talkWhole(t, hs.URL, `{"messages":[{"role":"system","content":"be"},{"role":"user","content":[{"type":"text","text":"two "},{"type":"text","text":"parts"}]},
			{"role":"assistant","content":null,"`+reasoning+`":"r","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},
			{"role":"tool","tool_call_id":"1","content":"done"}],
			"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":"integer"}}},"strict":null}}]`)
		if !slices.Equal(asked.Tokens, want) {
			t.Errorf("rendered %q, want %q", speech.Decode(asked.Tokens), speech.Decode(want))
		}
	}
	if !slices.Equal(asked.StopTokens, speech.Stop()) {
		t.Errorf("it stops at %v", asked.StopTokens)
	}
}

func TestChatLogprobs(t *testing.T) {
	_, hs := serveScripted(t, scripted{say: always("aé")})
	_, data := post(t, hs.URL+pathChat, `{"messages":[{"role":"user","content":"hi"}],"logprobs":true,"top_logprobs":2}`)
	got := decode[textReply[chatChoice]](t, data).Choices[0].Logprobs.Content
	if len(got) != 4 || got[0].Token != "a" || !slices.Equal(got[0].Bytes, []int{'a'}) || got[1].Bytes != nil || got[3].Token != "</s>" || got[2].Logprob != -0.5 ||
		len(got[0].TopLogprobs) != 2 || got[0].TopLogprobs[1].Token != "b" || got[0].TopLogprobs[1].Logprob != -9 {
		t.Errorf("%s", data)
	}
	_, data = post(t, hs.URL+pathChat, `{"messages":[{"role":"user","content":"hi"}],"logprobs":true,"return_tokens_as_token_ids":true}`)
	got = decode[textReply[chatChoice]](t, data).Choices[0].Logprobs.Content
	if got[0].Token != tokenName(8+'a') || !slices.Equal(got[0].Bytes, []int{'a'}) || len(got[0].TopLogprobs) != 0 {
		t.Errorf("%s", data)
	}
}

// TestLongAnswersAreNotTakenApartTooOften bounds the work on a stream: it grows with the length, not with its square.
func TestLongAnswersAreNotTakenApartTooOften(t *testing.T) {
	tok, err := lm.NewTokenizer("")
	if err != nil {
		t.Fatal(err)
	}
	counting := &counter{Renderer: rendererOf(t, tok)}
	a := &answer{text: text{decode: counting.Decode}}
	x := turn{speech: counting}
	tokens := tok.Encode(strings.Repeat("ab", 3_000))
	content := ""
	for n := range tokens {
		c := Completion{Tokens: tokens[:n+1], Logprobs: make([]float32, n+1)}
		if said, _ := x.say(a.take(c)); said.Content != nil {
			content += *said.Content
		}
	}
	said, _ := x.say(a.end(piece{answer: a, from: len(tokens)}, FinishLength))
	if content += *said.Content; content != strings.Repeat("ab", 3_000) {
		t.Errorf("%d bytes of content", len(content))
	}
	if most := 300 * len(tokens); counting.parsed > most {
		t.Errorf("%d tokens were taken apart, of %d", counting.parsed, len(tokens))
	}
}

// counter counts the tokens that are taken apart.
type counter struct {
	render.Renderer
	parsed int
}

func (c *counter) Parse(answer []int32, tools bool) render.Answer {
	c.parsed += len(answer)
	return c.Renderer.Parse(answer, tools)
}
