package render

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/stages/internal/bpe"
)

// torchDir is where `make torch` puts the interpreter with transformers.
const torchDir = "../../../.cache/torch"

// answered is what the oracle says, see testdata/oracle.py.
type answered struct {
	Texts         map[string]answeredTexts `json:"texts"`
	Conversations []answeredConversation   `json:"conversations"`
}

type answeredTexts struct {
	own, raw [][]int32
	decoded  []string
}

func (a *answeredTexts) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&a.own, &a.raw, &a.decoded})
}

type answeredConversation struct {
	ids    []int32 // with the generation prompt
	before []int   // how many ids stand before each answer, if asked.Grow; nil where the template changes what stands
}

func (a *answeredConversation) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&a.ids, &a.before})
}

// ask has Python answer the cases, once.
func ask(t *testing.T, corpus, texts []string, raw int, conversations []*asked) (dir string, out answered) {
	t.Helper()
	need.Torch(t, torchDir)
	dir = t.TempDir()
	data, err := json.Marshal(map[string]any{"corpus": corpus, "texts": texts, "raw": raw, "conversations": conversations})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "in.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(torchDir, "bin", "python"), "testdata/oracle.py", dir)
	cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1", "TOKENIZERS_PARALLELISM=true")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("oracle: %v\n%s", err, said)
	}
	if data, err = os.ReadFile(filepath.Join(dir, "out.json")); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return dir, out
}

// TestInvariant_TemplatesExact renders 10,000 cases (texts and conversations) as transformers and tokenizers do. No text
// spells a special token where it is compared with a template's: transformers would take it for one, and a message here
// must not forge a turn; TestNoForgery and the texts, which the library is told to take as text, have these.
func TestInvariant_TemplatesExact(t *testing.T) {
	const perFormat, textCount = 1000, 4000
	m := maker{rand.New(rand.NewPCG(1, 2))}
	var conversations []*asked
	names := slices.Sorted(maps.Keys(formats))
	for i := range perFormat {
		for _, name := range names {
			c := m.conversation(name)
			c.Grow = i%3 == 0
			conversations = append(conversations, c)
		}
	}
	texts := []string{"", " ", "\n"}
	for len(texts) < textCount {
		text := m.text(12)
		if m.IntN(3) == 0 {
			text = strings.Join([]string{text, m.text(5), m.text(2)}, []string{"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "|>end|"}[m.IntN(4)])
		}
		texts = append(texts, text)
	}
	raw := len(texts)
	texts = append(texts, sweep()...)
	dir, want := ask(t, texts[:800], texts, raw, conversations)
	if len(want.Conversations)+len(texts) < 10_000 {
		t.Fatalf("%d conversations and %d texts", len(want.Conversations), len(texts))
	}
	for name, all := range want.Texts {
		data, err := os.ReadFile(filepath.Join(dir, name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		tok, err := bpe.Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		for i, ids := range all.own {
			same(t, name+" text", texts[i], tok, tok.AppendText(nil, texts[i]), ids)
		}
		for i, ids := range all.raw {
			same(t, name+" raw text", texts[i], tok, tok.Encode(texts[i]), ids)
			if got := tok.Decode(ids); got != strings.ToValidUTF8(all.decoded[i], "\uFFFD") {
				t.Fatalf("%s: %v decodes to %+q, want %+q", name, ids, got, all.decoded[i])
			}
		}
	}
	renderers := map[string]Renderer{}
	for _, name := range names {
		file := "qwen.json"
		if strings.HasPrefix(name, "llama") {
			file = "llama.json"
		}
		data, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if renderers[name], err = New(name, data); err != nil {
			t.Fatal(err)
		}
	}
	grown := map[string]int{}
	for i, c := range conversations {
		if compare(t, renderers[c.renderer], c, want.Conversations[i]) {
			grown[c.renderer]++
		}
	}
	for _, name := range names {
		if grown[name] < perFormat/20 {
			t.Errorf("%s: only %d conversations were grown answer by answer", name, grown[name])
		}
	}
	t.Logf("%d texts with %d tokenizers; %d conversations, grown: %v", len(texts), len(want.Texts), len(conversations), grown)
}

// sweep has the characters of the scripts, where classes and normalization of them and their neighbours show.
func sweep() []string {
	var texts []string
	var b strings.Builder
	for _, part := range [][2]rune{{0, 0x33ff}, {0x4db0, 0x4e20}, {0x9fe0, 0xac10}, {0xd780, 0xd7ff}, {0xf900, 0x16fff}, {0x18c00, 0x1ffff}, {0x2a6d0, 0x2a710}, {0x2ebd0, 0x2fa20}, {0xe0000, 0xe01ff}} {
		for r := part[0]; r <= part[1]; r++ {
			b.WriteString("a" + string(r) + "\u0301" + string(r) + "\u0323b ")
			if b.Len() > 20_000 {
				texts = append(texts, b.String())
				b.Reset()
			}
		}
	}
	return append(texts, b.String())
}

func same(t *testing.T, what, text string, tok interface{ Decode([]int32) string }, got, want []int32) {
	t.Helper()
	if slices.Equal(got, want) {
		return
	}
	k := 0
	for k < min(len(got), len(want)) && got[k] == want[k] {
		k++
	}
	show := func(ids []int32) []int32 { return ids[max(0, k-5):min(len(ids), k+10)] }
	t.Fatalf("%s differs at token %d, behind %+q: %v (%+q), want %v (%+q), of\n%.3000q", what, k, tok.Decode(want[max(0, k-20):k]),
		show(got), tok.Decode(show(got)), show(want), tok.Decode(show(want)), text)
}

func joined(all []Rendered) []int32 {
	var ids []int32
	for _, r := range all {
		ids = append(ids, r.Tokens...)
	}
	return ids
}

// compare holds one conversation to the template: rendered at once, grown answer by answer where the template itself only
// appends, and what follows the last answer in any case.
func compare(t *testing.T, r Renderer, c *asked, want answeredConversation) (grown bool) {
	t.Helper()
	story, _ := json.Marshal(c)
	whole, err := r.Begin(c.messages, c.tools)
	if err != nil {
		t.Fatalf("%v\n%s", err, story)
	}
	same(t, c.renderer, string(story), r, slices.Concat(joined(whole), r.GenerationPrompt()), want.ids)
	answers := positions(c.messages)
	if len(answers) == 0 {
		return false
	}
	last := answers[len(answers)-1]
	tail, err := r.Extend(r.Stop()[:1], c.messages[last+1:])
	if err != nil {
		t.Fatal(err)
	}
	if len(tail) > 0 {
		ids := slices.Concat(joined(tail), r.GenerationPrompt())
		same(t, c.renderer+" behind an answer", string(story), r, ids, want.ids[len(want.ids)-len(ids):])
	}
	if want.before == nil || !alternate(answers) {
		return false
	}
	grow(t, r, c, answers, want, string(story))
	return true
}

// grow builds a conversation as a rollout does.
func grow(t *testing.T, r Renderer, c *asked, answers []int, want answeredConversation, story string) {
	t.Helper()
	var ids, answer []int32
	begin := 0
	for k, i := range append(answers, len(c.messages)) {
		next, err := r.Extend(answer, c.messages[begin:i])
		if k == 0 {
			next, err = r.Begin(c.messages[:i], c.tools)
		}
		if err != nil {
			t.Fatal(err)
		}
		if ids = append(ids, joined(next)...); k == len(answers) {
			break
		}
		ids = append(ids, r.GenerationPrompt()...)
		same(t, c.renderer+" before an answer", story, r, ids, want.ids[:want.before[k]])
		rest := want.ids[want.before[k]:]
		answer = rest[:slices.Index(rest, r.Stop()[0])+1]
		ids = append(ids, answer...)
		begin = i + 1
		parsed(t, r, c.messages[i], answer)
	}
	if begin < len(c.messages) {
		ids = append(ids, r.GenerationPrompt()...)
	}
	same(t, c.renderer+" grown", story, r, ids, want.ids[:len(ids)])
}

func positions(messages []Message) (answers []int) {
	for i, m := range messages {
		if m.Role == roleAssistant {
			answers = append(answers, i)
		}
	}
	return answers
}

// alternate reports whether something stands between the answers.
func alternate(answers []int) bool {
	for k := range answers[1:] {
		if answers[k+1] == answers[k]+1 {
			return false
		}
	}
	return true
}

// parsed holds an answer to the message that its tokens came from.
func parsed(t *testing.T, r Renderer, m Message, answer []int32) {
	t.Helper()
	for _, marker := range markers {
		if strings.Contains(m.Content+m.Reasoning, marker) {
			return // which is one in the answer, too
		}
	}
	for _, call := range m.ToolCalls {
		if strings.Contains(call.Arguments, `tool_call\u003e`) || strings.Contains(call.Arguments, `think\u003e`) || strings.Contains(call.Arguments, "1e400") {
			return // the latter is Infinity in Python, and no JSON
		}
	}
	a := r.Parse(answer, true)
	clean := func(text string) string { return norm.NFC.String(trim(text)) }
	if !strings.Contains(r.Decode(answer), thinkOpen) {
		m.Reasoning = "" // which the template left out
	}
	if clean(a.Content) != clean(m.Content) || clean(a.Reasoning) != clean(m.Reasoning) || len(a.Calls) != len(m.ToolCalls) || !a.Ended {
		t.Fatalf("%q is parsed to %+v of\n%+v", r.Decode(answer), a, m)
	}
	if got := r.Decode(answer[a.From:a.To]); !strings.Contains(got, a.Content) {
		t.Fatalf("tokens %d to %d are %q, the content is %q", a.From, a.To, got, a.Content)
	}
	for i, call := range a.Calls {
		want, err := toJSON([]byte(m.ToolCalls[i].Arguments), 0)
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid([]byte(norm.NFC.String(want))) {
			continue // a mark went together with the letter of an escape
		}
		if call.Err != nil || call.Name != m.ToolCalls[i].Name || clean(call.Arguments) != clean(want) {
			t.Fatalf("call %+v, want %+v", call, m.ToolCalls[i])
		}
	}
}
