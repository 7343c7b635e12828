package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prl-project/prl/stages/internal/bpe"
)

// formats makes a renderer of each name but native, of a tokenizer that has its tokens.
var formats = map[string]func(tokenizer) (Renderer, error){
	"chatml":            newChatML,
	"qwen2.5":           newQwen25,
	"qwen3":             newQwen3,
	"qwen3-nonthinking": newQwen3Silent,
	"llama3":            newLlama3,
	"llama3.1":          newLlama31,
}

// Names are the renderers that New knows.
func Names() []string { return append(slices.Sorted(maps.Keys(formats)), Native) }

// New makes the renderer of a name for a tokenizer.json. An empty name is found out from the added tokens, which some models
// of different formats share: <think> is taken for qwen3, though models that never reason (Qwen3-Instruct-2507, which is
// chatml) have the token, too. The two differ in how histories of answers are written and where Parse looks for reasoning, not
// in what stands before an answer. Who knows better gives the name.
func New(name string, tokenizerJSON []byte) (Renderer, error) {
	if name == "" {
		var err error
		if name, err = guess(tokenizerJSON); err != nil {
			return nil, err
		}
	}
	r, err := build(name, tokenizerJSON)
	if err != nil {
		return nil, fmt.Errorf("renderer %s: %w", name, err)
	}
	return r, nil
}

func build(name string, tokenizerJSON []byte) (Renderer, error) {
	if name == Native {
		return newNative(tokenizerJSON)
	}
	format, ok := formats[name]
	if !ok {
		return nil, fmt.Errorf("there is none of this name, but %s", strings.Join(Names(), ", "))
	}
	tok, err := bpe.Parse(tokenizerJSON)
	if err != nil {
		return nil, err
	}
	return format(tokenizer{tok: tok, id: name + ":" + tok.ID()})
}

// guess is the name of the format that a tokenizer's added tokens are for.
func guess(tokenizerJSON []byte) (string, error) {
	var f struct {
		AddedTokens []struct {
			Content string `json:"content"`
		} `json:"added_tokens"`
	}
	if err := json.Unmarshal(tokenizerJSON, &f); err != nil {
		return "", fmt.Errorf("tokenizer.json: %w", err)
	}
	names := map[string]bool{}
	for _, t := range f.AddedTokens {
		names[t.Content] = true
	}
	switch {
	case names[chatStart] && names[thinkOpen]:
		return "qwen3", nil
	case names[chatStart] && names[callOpen]:
		return "qwen2.5", nil
	case names[chatStart]:
		return "chatml", nil
	case names[headerStart] && names[messageEnd]:
		return "llama3.1", nil
	case names[headerStart]:
		return "llama3", nil
	case names["<|assistant|>"]:
		return Native, nil
	}
	return "", errors.New("the tokenizer's special tokens are those of no chat format that is known: name one (" + strings.Join(Names(), ", ") + ")")
}
