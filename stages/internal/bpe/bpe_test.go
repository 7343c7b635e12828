package bpe

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// source is a tokenizer.json in parts.
type source map[string]any

// newSource has the bytes, in the order of their values, some merges and added tokens: tokens 256 to 259 are "he", "ll",
// "hell" and "hello".
func newSource(t testing.TB) source {
	t.Helper()
	vocab := map[string]any{"he": 256, "ll": 257, "hell": 258, "hello": 259}
	for b, r := range ByteRunes() {
		vocab[string(r)] = b
	}
	added := func(id int, name string, special bool) map[string]any {
		return map[string]any{"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": special}
	}
	return source{
		"version": "1.0", "truncation": nil, "padding": nil, "post_processor": nil,
		"added_tokens":  []any{added(260, "<end>", true), added(261, "<call>", false)},
		"normalizer":    map[string]any{"type": "NFC"},
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true},
		"decoder":       map[string]any{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
		"model": map[string]any{
			"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": false,
			"byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []any{"h e", "l l", "he ll", "hell o"},
		},
	}
}

func (s source) model() map[string]any { return s["model"].(map[string]any) }

func (s source) json(t testing.TB) []byte {
	t.Helper()
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (s source) parse(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := Parse(s.json(t))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestInvariant_TextIsNoSpecialToken: a message cannot spell a special token, a raw prompt can; other added tokens are
// found in both.
func TestInvariant_TextIsNoSpecialToken(t *testing.T) {
	for _, ignore := range []bool{false, true} {
		s := newSource(t)
		s.model()["ignore_merges"] = ignore
		s.model()["vocab"].(map[string]any)["<end>"] = 260
		tok := s.parse(t)
		const text = "<end>hello<call><end"
		own := tok.AppendText(nil, text)
		if slices.Contains(own, 260) || !slices.Contains(own, 259) || !slices.Contains(own, 261) {
			t.Errorf("a message's text is %v", own)
		}
		if got := tok.Decode(own); got != text {
			t.Errorf("it came back as %q", got)
		}
		raw := tok.Encode(text)
		if want := append([]int32{260, 259, 261}, tok.AppendText(nil, "<end")...); !slices.Equal(raw, want) {
			t.Errorf("a raw text is %v, want %v", raw, want)
		}
		if got := tok.Decode(raw); got != "hello<call><end" {
			t.Errorf("decoded %q", got)
		}
		if got := tok.AppendText(nil, "<end>"); slices.Contains(got, 260) {
			t.Errorf("ignore_merges %v: the name alone is %v", ignore, got)
		}
	}
}

// TestFormats: merges as text and as lists, tokens of the vocabulary without merges, begin and end of texts.
func TestFormats(t *testing.T) {
	s := newSource(t)
	want := s.parse(t).AppendText(nil, "hello hell he l")
	if !slices.Equal(want, []int32{259, 32, 258, 32, 256, 32, 'l'}) {
		t.Fatal(want)
	}
	s.model()["merges"] = []any{[]string{"h", "e"}, []string{"l", "l"}, []string{"he", "ll"}, []string{"hell", "o"}}
	if got := s.parse(t).AppendText(nil, "hello hell he l"); !slices.Equal(got, want) {
		t.Errorf("merges as lists: %v", got)
	}
	s.model()["merges"] = []any{"l l"} // so that no merges make the others
	if got := s.parse(t).AppendText(nil, "hello"); !slices.Equal(got, []int32{'h', 'e', 257, 'o'}) {
		t.Errorf("without merges: %v", got)
	}
	s.model()["ignore_merges"] = true
	if got := s.parse(t).AppendText(nil, "hello hell"); !slices.Equal(got, []int32{259, 32, 'h', 'e', 257}) {
		t.Errorf("with ignore_merges: %v", got) // " hell" is one word, and no token
	}
	s["post_processor"] = map[string]any{"type": "Sequence", "processors": []any{
		map[string]any{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
		map[string]any{"type": "TemplateProcessing", "pair": []any{}, "single": []any{
			map[string]any{"SpecialToken": map[string]any{"id": "<end>", "type_id": 0}}, map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}},
			map[string]any{"SpecialToken": map[string]any{"id": "<end>", "type_id": 0}},
		}, "special_tokens": map[string]any{"<end>": map[string]any{"id": "<end>", "ids": []int{260}, "tokens": []string{"<end>"}}}},
	}}
	tok := s.parse(t)
	if got := tok.Encode("a"); !slices.Equal(got, []int32{260, 'a', 260}) {
		t.Errorf("begin and end: %v", got)
	}
	if got := tok.AppendText(nil, "a"); !slices.Equal(got, []int32{'a'}) {
		t.Errorf("a message's text: %v", got)
	}
	if tok.VocabSize() != 262 || tok.Known(262) || tok.Known(-1) || !tok.IsSpecial(260) || tok.IsSpecial(261) || tok.Token(260) != "<end>" || tok.Token(999) != "" {
		t.Errorf("%d tokens", tok.VocabSize())
	}
}

// TestRefused: what a file asks for and this package does not do is refused by name.
func TestRefused(t *testing.T) {
	split := func(fields map[string]any) map[string]any {
		p := map[string]any{"type": "Split", "pattern": map[string]any{"Regex": `\s+`}, "behavior": "Isolated", "invert": false}
		for k, v := range fields {
			p[k] = v
		}
		return map[string]any{"type": "Sequence", "pretokenizers": []any{p, map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}}}
	}
	for want, spoil := range map[string]func(source){
		`unknown field "wordy"`:           func(s source) { s["wordy"] = 1 },
		`model "Unigram"`:                 func(s source) { s.model()["type"] = "Unigram" },
		`byte_fallback`:                   func(s source) { s.model()["byte_fallback"] = true },
		`dropout 0.1`:                     func(s source) { s.model()["dropout"] = 0.1 },
		`continuing_subword_prefix "##"`:  func(s source) { s.model()["continuing_subword_prefix"] = "##" },
		`end_of_word_suffix "</w>"`:       func(s source) { s.model()["end_of_word_suffix"] = "</w>" },
		`no token of the byte 0x61`:       func(s source) { delete(s.model()["vocab"].(map[string]any), "a") },
		`id 97 is that of another`:        func(s source) { s.model()["vocab"].(map[string]any)["xy"] = 97 },
		`id -1 is not below`:              func(s source) { s.model()["vocab"].(map[string]any)["xy"] = -1 },
		`merge of "x" and "y"`:            func(s source) { s.model()["merges"] = []any{"x y"} },
		`merge "x y z" is not two tokens`: func(s source) { s.model()["merges"] = []any{"x y z"} },
		`merge 7 is not two tokens`:       func(s source) { s.model()["merges"] = []any{7} },
		`makes a special token of text`: func(s source) {
			s.model()["vocab"].(map[string]any)["<end>"], s.model()["vocab"].(map[string]any)["<en"] = 260, 270
			s.model()["vocab"].(map[string]any)["d>"] = 271
			s.model()["merges"] = []any{"<en d>"}
		},
		`normalizer "Lowercase"`: func(s source) {
			s["normalizer"] = map[string]any{"type": "Sequence", "normalizers": []any{map[string]any{"type": "Lowercase"}}}
		},
		`no pre-tokenizer`:          func(s source) { s["pre_tokenizer"] = nil },
		`pre-tokenizer "Metaspace"`: func(s source) { s["pre_tokenizer"] = map[string]any{"type": "Metaspace"} },
		`add_prefix_space`:          func(s source) { s["pre_tokenizer"].(map[string]any)["add_prefix_space"] = true },
		`alternative "[a-z]+"`: func(s source) {
			s["pre_tokenizer"] = split(map[string]any{"pattern": map[string]any{"Regex": `\s+|[a-z]+`}})
		},
		`Split by a string`:                func(s source) { s["pre_tokenizer"] = split(map[string]any{"pattern": map[string]any{"String": " "}}) },
		`behavior "Removed", invert false`: func(s source) { s["pre_tokenizer"] = split(map[string]any{"behavior": "Removed"}) },
		`behavior "Isolated", invert true`: func(s source) { s["pre_tokenizer"] = split(map[string]any{"invert": true}) },
		`post-processor "BertProcessing"`:  func(s source) { s["post_processor"] = map[string]any{"type": "BertProcessing"} },
		`special token "<x>", which it does`: func(s source) {
			s["post_processor"] = map[string]any{"type": "TemplateProcessing", "single": []any{map[string]any{"SpecialToken": map[string]any{"id": "<x>"}}}}
		},
		`id 999, which is no`: func(s source) {
			s["post_processor"] = map[string]any{"type": "TemplateProcessing", "special_tokens": map[string]any{"<x>": map[string]any{"ids": []int{999}}},
				"single": []any{map[string]any{"SpecialToken": map[string]any{"id": "<x>"}}}}
		},
		`over 1024 tokens beside`: func(s source) {
			s["post_processor"] = map[string]any{"type": "TemplateProcessing", "special_tokens": map[string]any{"<x>": map[string]any{"ids": make([]int, 600)}},
				"single": []any{map[string]any{"SpecialToken": map[string]any{"id": "<x>"}}, map[string]any{"Sequence": map[string]any{"id": "A"}}, map[string]any{"SpecialToken": map[string]any{"id": "<x>"}}}}
		},
		`a text 2 times`: func(s source) {
			s["post_processor"] = map[string]any{"type": "TemplateProcessing", "single": []any{map[string]any{"Sequence": map[string]any{"id": "A"}}, map[string]any{"Sequence": map[string]any{"id": "A"}}}}
		},
		`no decoder`:                          func(s source) { delete(s, "decoder") },
		`decoder "WordPiece"`:                 func(s source) { s["decoder"] = map[string]any{"type": "WordPiece"} },
		`"<end>" with lstrip`:                 func(s source) { s["added_tokens"].([]any)[0].(map[string]any)["lstrip"] = true },
		`"<call>" is empty, or there twice`:   func(s source) { s["added_tokens"].([]any)[0].(map[string]any)["content"] = "<call>" },
		`added token "<call>": its id 260 is`: func(s source) { s["added_tokens"].([]any)[1].(map[string]any)["id"] = 260 },
	} {
		s := newSource(t)
		spoil(s)
		if _, err := Parse(s.json(t)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %s, got %v", want, err)
		}
	}
}

// TestLongestToken: of the added tokens that a text begins with, the longest is found.
func TestLongestToken(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	word := func(most int) string {
		b := make([]byte, rng.IntN(most+1))
		for i := range b {
			b[i] = "abc"[rng.IntN(3)]
		}
		return string(b)
	}
	for range 2000 {
		var tokens []named
		for range rng.IntN(12) {
			name := "a" + word(4)
			if !slices.ContainsFunc(tokens, func(n named) bool { return n.name == name }) {
				tokens = append(tokens, named{name: name, id: int32(len(tokens))})
			}
		}
		m, text, want := newMatcher(tokens), "a"+word(6), named{}
		for _, n := range tokens {
			if strings.HasPrefix(text, n.name) && len(n.name) > len(want.name) {
				want = n
			}
		}
		if got, ok := m.at(text); got != want || ok != (want.name != "") {
			t.Fatalf("%q begins with %v, want %v of %v", text, got, want, tokens)
		}
	}
}

// TestMerges: whatever a word's length, the merges are those that looking for the best one again and again makes.
func TestMerges(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	s := newSource(t)
	vocab, names, merges := s.model()["vocab"].(map[string]any), []string{"a", "b", "c"}, []any{}
	rank := map[[2]string]int{}
	for len(merges) < 60 {
		l, r := names[rng.IntN(len(names))], names[rng.IntN(len(names))]
		if _, ok := vocab[l+r]; ok {
			continue
		}
		vocab[l+r] = 300 + len(merges)
		rank[[2]string{l, r}] = len(merges)
		names, merges = append(names, l+r), append(merges, []string{l, r})
	}
	s.model()["merges"] = merges
	tok := s.parse(t)
	for range 300 {
		var word []string
		for range 1 + rng.IntN(60) {
			word = append(word, string(rune('a'+rng.IntN(3))))
		}
		got := tok.AppendText(nil, strings.Join(word, ""))
		for {
			best, at := len(merges), -1
			for i := range len(word) - 1 {
				if r, ok := rank[[2]string{word[i], word[i+1]}]; ok && r < best {
					best, at = r, i
				}
			}
			if at < 0 {
				break
			}
			word = slices.Replace(word, at, at+2, word[at]+word[at+1])
		}
		var parts []string
		for _, id := range got {
			parts = append(parts, tok.Token(id))
		}
		if !slices.Equal(parts, word) {
			t.Fatalf("%q, want %q", parts, word)
		}
	}
}

// FuzzText: every text comes back from its tokens, but for what normalization and bytes that are no text change.
func FuzzText(f *testing.F) {
	s := newSource(f)
	s["normalizer"] = nil
	tok := s.parse(f)
	for _, text := range []string{"", "hello <end>", "a\xffb", "  \r\n x", "'ſ'S 12345 ½", "e\u0301"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ids := tok.AppendText(nil, text)
		if got, want := tok.Decode(ids), strings.ToValidUTF8(text, "\uFFFD"); got != want {
			t.Fatalf("%q came back as %q", want, got)
		}
		for _, id := range ids {
			if tok.IsSpecial(id) {
				t.Fatalf("%q has a special token", text)
			}
		}
	})
}

// FuzzParse: no file panics, and one that is taken encodes.
func FuzzParse(f *testing.F) {
	f.Add(newSource(f).json(f))
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":2000000000}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if tok, err := Parse(data); err == nil {
			tok.Decode(tok.Encode("hello <end> <call>"))
		}
	})
}

// BenchmarkEncode reports tokens per second of text in a vocabulary of 2,000 merges.
func BenchmarkEncode(b *testing.B) {
	var text strings.Builder
	rng := rand.New(rand.NewPCG(3, 4))
	syllables := strings.Fields("the ing er on re ti es or en at ion con pre der ver al ma no lu ca")
	for i := range 4000 {
		for range 1 + rng.IntN(4) {
			text.WriteString(syllables[rng.IntN(len(syllables))])
		}
		text.WriteString([]string{" ", " ", " ", ", ", ".\n", fmt.Sprintf(" %d ", i)}[rng.IntN(6)])
	}
	s := newSource(b)
	learn(s, text.String(), 2000)
	tok := s.parse(b)
	for name, text := range map[string]string{"prose": text.String(), "one word": strings.ReplaceAll(text.String()[:20_000], " ", "")} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			n := 0
			for b.Loop() {
				n += len(tok.AppendText(nil, text))
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

// learn gives a source the merges of the most frequent pairs of a text's words.
func learn(s source, text string, most int) {
	vocab := s.model()["vocab"].(map[string]any)
	counts := map[string]int{}
	split, _ := newSplit(gpt2)
	for len(text) > 0 {
		n := split.next(text)
		counts[text[:n]]++
		text = text[n:]
	}
	runes := ByteRunes()
	words := map[string][]string{}
	for word := range counts {
		for i := range len(word) {
			words[word] = append(words[word], string(runes[word[i]]))
		}
	}
	merges := []any{}
	for len(merges) < most {
		pairs := map[[2]string]int{}
		for word, parts := range words {
			for i := range len(parts) - 1 {
				pairs[[2]string{parts[i], parts[i+1]}] += counts[word]
			}
		}
		var best [2]string
		for p, n := range pairs {
			if n > pairs[best] || n == pairs[best] && p[0]+" "+p[1] < best[0]+" "+best[1] {
				best = p
			}
		}
		if pairs[best] == 0 {
			break
		}
		if _, ok := vocab[best[0]+best[1]]; !ok {
			vocab[best[0]+best[1]] = 1000 + len(merges)
		}
		merges = append(merges, []string{best[0], best[1]})
		for word, parts := range words {
			for i := 0; i+1 < len(parts); i++ {
				if parts[i] == best[0] && parts[i+1] == best[1] {
					parts = slices.Replace(parts, i, i+2, best[0]+best[1])
				}
			}
			words[word] = parts
		}
	}
	s.model()["merges"] = merges
}
