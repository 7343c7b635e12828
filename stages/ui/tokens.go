package ui

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"sync"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/bpe"
	"github.com/prl-project/prl/stages/internal/lm"
)

// maxTokens is how many tokens an answer holds at most.
const maxTokens = 4096

// tokensAnswer is a part of a sequence of tokens. All lists have its length, or are empty where nothing is known; null is
// what does not apply to a token.
type tokensAnswer struct {
	From  int   `json:"from"`
	Total int   `json:"total"`
	IDs   []int `json:"ids"`
	// Text is that of each token by the tokenizer of the newest policy version; empty where there is none.
	Text        []string   `json:"text,omitempty"`
	Mask        []int      `json:"mask"`
	Logprobs    []*float64 `json:"logprobs"` // of sampled tokens
	Advantages  []*float64 `json:"advantages,omitempty"`
	RefLogprobs []*float64 `json:"ref_logprobs,omitempty"`
	Rewards     []*float64 `json:"rewards,omitempty"`
	// Trained says that a sample of the rollout, which Advantages are of, gives the token to a loss.
	Trained []int  `json:"trained,omitempty"`
	Note    string `json:"note,omitempty"`
}

func (u *UI) getRolloutTokens(r *http.Request) (any, error) {
	_, t, err := u.rolloutOf(r)
	if err != nil {
		return nil, err
	}
	at, err := atoi(r, "node", len(t.Nodes))
	if err != nil {
		return nil, err
	}
	n := &t.Nodes[at]
	from, err := atoi(r, "from", len(n.Mask)+1)
	if err != nil {
		return nil, err
	}
	a := tokensAnswer{From: from, Total: len(n.Mask)}
	to := min(len(n.Mask), from+maxTokens)
	advantages, trained := u.credit(r.Context(), t, at)
	for i := from; i < to; i++ {
		sampled := n.Mask[i] == 1
		a.IDs, a.Mask = append(a.IDs, int(n.TokenIDs.At(i))), append(a.Mask, int(n.Mask[i]))
		a.Logprobs = append(a.Logprobs, value(n.Logprobs, i, sampled))
		if n.RefLogprobs.Len() > 0 {
			a.RefLogprobs = append(a.RefLogprobs, value(n.RefLogprobs, i, true))
		}
		if n.TokenRewards.Len() > 0 {
			a.Rewards = append(a.Rewards, value(n.TokenRewards, i, true))
		}
		if len(advantages) > 0 {
			a.Advantages, a.Trained = append(a.Advantages, advantages[i]), append(a.Trained, trained[i])
		}
	}
	if t.Policy == "" {
		a.Text, a.Note = u.texts(r.Context(), a.IDs)
	} else {
		a.Note = "The tokens are those of a frozen policy, whose tokenizer is not known here."
	}
	return a, nil
}

// credit finds the advantages of a message's tokens: in the samples of its rollout whose branch holds it, the first that
// trains it. Nothing where the group was not scored, or its record is not to be had.
func (u *UI) credit(ctx context.Context, t *schemas.Trace, at int) (advantages []*float64, trained []int) {
	if t.Eval != "" {
		return nil, nil
	}
	g, err := u.samples(ctx, t.GroupID)
	if err != nil || g == nil {
		return nil, nil
	}
	n := &t.Nodes[at]
	branch := -1
	for leaf, start := range branches(t, at) {
		branch++
		if leaf < 0 {
			continue
		}
		for i := range g.Samples {
			s := &g.Samples[i]
			if s.RolloutIndex != t.RolloutIndex || s.Branch != branch || start+len(n.Mask) > len(s.Mask) || !sameIDs(s.TokenIDs.Slice(start, start+len(n.Mask)), n.TokenIDs) {
				continue
			}
			if advantages == nil {
				advantages, trained = make([]*float64, len(n.Mask)), make([]int, len(n.Mask))
			}
			for k := range n.Mask {
				if s.Mask[start+k] == 1 && trained[k] == 0 {
					trained[k], advantages[k] = 1, value(s.Advantages, start+k, true)
				}
			}
		}
	}
	return advantages, trained
}

// branches gives, for every branch of a rollout in the order of leaves, the leaf, and where the tokens of node at begin in
// it; leaf is -1 where the branch does not hold it.
func branches(t *schemas.Trace, at int) func(yield func(leaf, start int) bool) {
	return func(yield func(leaf, start int) bool) {
		inner := make([]bool, len(t.Nodes))
		for i := range t.Nodes {
			if p := t.Nodes[i].Parent; p >= 0 && p < len(inner) {
				inner[p] = true
			}
		}
		for leaf := range t.Nodes {
			if inner[leaf] {
				continue
			}
			holds, start := false, 0
			for k := leaf; k >= 0; k = t.Nodes[k].Parent {
				if holds {
					start += len(t.Nodes[k].Mask)
				}
				holds = holds || k == at
			}
			if !holds {
				leaf = -1
			}
			if !yield(leaf, start) {
				return
			}
		}
	}
}

func sameIDs(a, b schemas.Int32s) bool { return string(a) == string(b) }

// value is an element as JSON can tell it.
func value(t schemas.Float32s, i int, applies bool) *float64 {
	if !applies || i >= t.Len() {
		return nil
	}
	v := float64(t.At(i))
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return new(math.Round(v*1e4) / 1e4)
}

// atoi is a number of the request below n; 0 where it has none.
func atoi(r *http.Request, key string, n int) (int, error) {
	s := r.URL.Query().Get(key)
	if s == "" {
		s = "0"
	}
	i, err := strconv.Atoi(s)
	if err != nil || i < 0 || i >= n {
		return 0, badRequest("%s=%s: want 0 to %d", key, s, n-1)
	}
	return i, nil
}

// tokenizers keeps the tokenizer of the newest version.
type tokenizers struct {
	blobs *pipeline.Blobs

	mu    sync.Mutex
	sha   string
	token func(int32) string
}

// texts are tokens as text, or why there is none.
func (u *UI) texts(ctx context.Context, ids []int) (texts []string, note string) {
	var policy *schemas.PolicyVersion
	u.model.locked(func() { policy = u.model.policy })
	if policy == nil {
		return nil, "No policy version is known, so neither is the text of its tokens."
	}
	token, err := u.words.of(ctx, policy.Tokenizer)
	if err != nil {
		return nil, "The text of tokens is not known: " + err.Error()
	}
	for _, id := range ids {
		texts = append(texts, token(int32(id)))
	}
	return texts, ""
}

func (t *tokenizers) of(ctx context.Context, ref schemas.BlobRef) (func(int32) string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token != nil && t.sha == ref.SHA256 {
		return t.token, nil
	}
	if ref.URI == "" {
		return nil, errors.New("the policy version names no tokenizer")
	}
	data, err := t.blobs.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	if own, err := lm.ParseTokenizer(data); err == nil {
		t.sha, t.token = ref.SHA256, own.Token
		return t.token, nil
	}
	other, err := bpe.Parse(data)
	if err != nil {
		return nil, err
	}
	t.sha, t.token = ref.SHA256, other.Token
	return t.token, nil
}
