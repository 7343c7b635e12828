package bpe

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// file is a tokenizer.json. Truncation and padding are what its users set anew for each use.
type file struct {
	Version       string           `json:"version"`
	Truncation    any              `json:"truncation"`
	Padding       any              `json:"padding"`
	AddedTokens   []addedToken     `json:"added_tokens"`
	Normalizer    *normalizerSpec  `json:"normalizer"`
	PreTokenizer  *splitSpec       `json:"pre_tokenizer"`
	PostProcessor *processorSpec   `json:"post_processor"`
	Decoder       *json.RawMessage `json:"decoder"`
	Model         model            `json:"model"`
}

type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

type normalizerSpec struct {
	Type        string           `json:"type"`
	Normalizers []normalizerSpec `json:"normalizers"`
}

type splitSpec struct {
	Type          string      `json:"type"`
	PreTokenizers []splitSpec `json:"pretokenizers"`
	Pattern       struct {
		Regex  *string `json:"Regex"`
		String *string `json:"String"`
	} `json:"pattern"`
	Behavior       string `json:"behavior"`
	Invert         bool   `json:"invert"`
	AddPrefixSpace bool   `json:"add_prefix_space"`
	TrimOffsets    bool   `json:"trim_offsets"`
	UseRegex       *bool  `json:"use_regex"`
}

type processorSpec struct {
	Type           string          `json:"type"`
	Processors     []processorSpec `json:"processors"`
	Single         []templateItem  `json:"single"`
	Pair           any             `json:"pair"`
	AddPrefixSpace bool            `json:"add_prefix_space"`
	TrimOffsets    bool            `json:"trim_offsets"`
	UseRegex       bool            `json:"use_regex"`
	SpecialTokens  map[string]struct {
		ID     string   `json:"id"`
		IDs    []int32  `json:"ids"`
		Tokens []string `json:"tokens"`
	} `json:"special_tokens"`
}

type templateItem struct {
	SpecialToken *struct {
		ID     string `json:"id"`
		TypeID int    `json:"type_id"`
	} `json:"SpecialToken"`
	Sequence *struct {
		ID     string `json:"id"`
		TypeID int    `json:"type_id"`
	} `json:"Sequence"`
}

type model struct {
	Type                    string            `json:"type"`
	Dropout                 *float64          `json:"dropout"`
	UnkToken                *string           `json:"unk_token"`
	ContinuingSubwordPrefix *string           `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string           `json:"end_of_word_suffix"`
	FuseUnk                 bool              `json:"fuse_unk"`
	ByteFallback            bool              `json:"byte_fallback"`
	IgnoreMerges            bool              `json:"ignore_merges"`
	Vocab                   map[string]int32  `json:"vocab"`
	Merges                  []json.RawMessage `json:"merges"`
}

// Parse reads a tokenizer.json. Whatever it asks for that this package does not do is an error that names it.
func Parse(data []byte) (*Tokenizer, error) {
	t, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	return t, nil
}

func parse(data []byte) (*Tokenizer, error) {
	var f file
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, data); err != nil {
		return nil, err
	}
	t := &Tokenizer{id: fmt.Sprintf("%x", sha256.Sum256(compact.Bytes())), added: map[string]int32{}}
	for _, step := range []func() error{
		func() error { return t.setModel(f.Model) },
		func() error { return t.setAdded(f.AddedTokens, f.Model.Vocab) },
		func() error { return t.setMerges(f.Model) },
		func() error { return t.setNormalizer(f.Normalizer) },
		func() error { return t.setSplits(f.PreTokenizer) },
		func() error { return t.setProcessor(f.PostProcessor) },
		func() error { return checkDecoder(f.Decoder) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *Tokenizer) setNormalizer(n *normalizerSpec) error {
	switch {
	case n == nil:
	case n.Type == "NFC":
		t.nfc = true
	case n.Type == "Sequence":
		for i := range n.Normalizers {
			if err := t.setNormalizer(&n.Normalizers[i]); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("the normalizer %q is not supported", n.Type)
	}
	return nil
}

// setSplits reads pre-tokenizers: splits by patterns, then ByteLevel, which makes bytes of the pieces.
func (t *Tokenizer) setSplits(p *splitSpec) error {
	if p == nil {
		return errors.New("it has no pre-tokenizer: want one that ends with ByteLevel")
	}
	steps := []splitSpec{*p}
	if p.Type == "Sequence" {
		steps = p.PreTokenizers
	}
	for i, s := range steps {
		pattern := ""
		switch last := i == len(steps)-1; {
		case s.Type == "Split" && s.Pattern.Regex == nil:
			return errors.New("a Split by a string is not supported, only by a Regex")
		case s.Type == "Split" && (s.Behavior != "Isolated" || s.Invert):
			return fmt.Errorf("a Split of behavior %q, invert %v is not supported, only Isolated, false", s.Behavior, s.Invert)
		case s.Type == "Split" && !last:
			pattern = *s.Pattern.Regex
		case s.Type != "ByteLevel" || !last:
			return fmt.Errorf("the pre-tokenizer %q at place %d of %d is not supported: want Split, and ByteLevel as the last", s.Type, i+1, len(steps))
		case s.AddPrefixSpace:
			return errors.New("ByteLevel with add_prefix_space is not supported")
		case s.UseRegex == nil || *s.UseRegex:
			pattern = gpt2
		}
		if pattern == "" {
			continue
		}
		split, err := newSplit(pattern)
		if err != nil {
			return err
		}
		t.splits = append(t.splits, split)
	}
	return nil
}

// maxAround bounds the tokens that stand beside every text.
const maxAround = 1 << 10

// setProcessor reads what stands before and behind every text. Of several the later stand around the earlier.
func (t *Tokenizer) setProcessor(p *processorSpec) error {
	switch {
	case p == nil || p.Type == "ByteLevel": // which changes offsets only
	case p.Type == "Sequence":
		for i := range p.Processors {
			if err := t.setProcessor(&p.Processors[i]); err != nil {
				return err
			}
		}
	case p.Type == "TemplateProcessing":
		var before, after []int32
		into, texts := &before, 0
		for _, item := range p.Single {
			if item.SpecialToken == nil {
				into, texts = &after, texts+1
				continue
			}
			s, ok := p.SpecialTokens[item.SpecialToken.ID]
			if !ok {
				return fmt.Errorf("the post-processor names the special token %q, which it does not explain", item.SpecialToken.ID)
			}
			for _, id := range s.IDs {
				if !t.Known(id) {
					return fmt.Errorf("the post-processor's special token %q has the id %d, which is no token's", item.SpecialToken.ID, id)
				}
				*into = append(*into, id)
			}
			if len(t.before)+len(t.after)+len(before)+len(after) > maxAround {
				return fmt.Errorf("the post-processor puts over %d tokens beside every text", maxAround)
			}
		}
		if texts != 1 {
			return fmt.Errorf("the post-processor has a text %d times in what it makes of one: only once is supported", texts)
		}
		t.before, t.after = append(before, t.before...), append(t.after, after...)
	default:
		return fmt.Errorf("the post-processor %q is not supported", p.Type)
	}
	return nil
}

func checkDecoder(data *json.RawMessage) error {
	var d struct{ Type string }
	if data == nil {
		return errors.New("it has no decoder: want ByteLevel")
	}
	if err := json.Unmarshal(*data, &d); err != nil {
		return fmt.Errorf("decoder: %w", err)
	}
	if d.Type != "ByteLevel" {
		return fmt.Errorf("the decoder %q is not supported, only ByteLevel", d.Type)
	}
	return nil
}

// mergeOf reads a merge: two tokens in a list, or with a space between them.
func mergeOf(data json.RawMessage) (left, right string, err error) {
	var two []string
	if err := json.Unmarshal(data, &two); err == nil && len(two) == 2 {
		return two[0], two[1], nil
	}
	var one string
	if err := json.Unmarshal(data, &one); err == nil {
		if left, right, ok := strings.Cut(one, " "); ok && !strings.Contains(right, " ") {
			return left, right, nil
		}
	}
	return "", "", fmt.Errorf("the merge %s is not two tokens", data)
}
