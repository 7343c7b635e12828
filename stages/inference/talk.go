package inference

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

// textReply is what the endpoints that answer with text reply, whole or as one event of a stream. C is the choice of one of
// them.
type textReply[C any] struct {
	ID             string  `json:"id"`
	Object         string  `json:"object"`
	Created        int64   `json:"created"` // Unix seconds
	Model          string  `json:"model"`
	Choices        []C     `json:"choices"`
	Usage          *usage  `json:"usage,omitempty"`
	PromptTokenIDs []int32 `json:"prompt_token_ids,omitempty"` // of chats
}

type usage struct {
	PromptTokens        int           `json:"prompt_tokens"`
	CompletionTokens    int           `json:"completion_tokens"`
	TotalTokens         int           `json:"total_tokens"`
	PromptTokensDetails promptDetails `json:"prompt_tokens_details"`
}

type promptDetails struct {
	CachedTokens int `json:"cached_tokens"` // see Completion.Cached
}

// usageOf counts the prompt of every n-th answer, and the tokens of all.
func usageOf(answers []*answer, n int) *usage {
	var u usage
	for i, a := range answers {
		if i%n == 0 {
			u.PromptTokens += len(a.request.Tokens)
			u.PromptTokensDetails.CachedTokens += a.out.Cached
		}
		u.CompletionTokens += len(a.out.Tokens)
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return &u
}

// talk is a request for text on its way. choice renders a piece of an answer: with stream the next one of it, and otherwise
// all of it.
type talk[C any] struct {
	textParams
	kind, object string // of the id, and of a whole reply
	chunk        string // object of an event
	answers      []*answer
	choice       func(piece) C
	prompt       []int32 // for the reply; nil for none
}

// serve answers it, with a whole reply or a stream.
func (t talk[C]) serve(ctx context.Context, a *API) (any, error) {
	head := textReply[C]{ID: a.nextID(t.kind), Object: t.object, Created: time.Now().Unix(), Model: t.Model, Choices: []C{}}
	if head.Model == "" {
		head.Model = a.model
	}
	if !t.Stream {
		if err := speakAll(ctx, t.answers, nil); err != nil {
			return nil, err
		}
		for _, one := range t.answers {
			head.Choices = append(head.Choices, t.choice(one.whole()))
		}
		head.Usage, head.PromptTokenIDs = usageOf(t.answers, t.choices()), t.tokenIDs(t.prompt)
		return head, nil
	}
	head.Object = t.chunk
	return stream(func(send func(event any) error) error {
		err := speakAll(ctx, t.answers, func(p piece) error {
			event := head
			event.Choices = []C{t.choice(p)}
			if p.index == 0 && p.from == 0 {
				event.PromptTokenIDs = t.tokenIDs(t.prompt)
			}
			return send(event)
		})
		if err != nil || t.StreamOptions == nil || !t.StreamOptions.IncludeUsage {
			return err
		}
		head.Usage = usageOf(t.answers, t.choices())
		return send(head)
	}), nil
}

// speakAll lets answers be sampled at once; if one fails, the others are given up. emit is as in speak, and is called by
// several goroutines at once.
func speakAll(ctx context.Context, answers []*answer, emit func(piece) error) error {
	if len(answers) == 1 {
		return answers[0].speak(ctx, emit) // a panic ends the request, where another goroutine's would end the process
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, a := range answers {
		g.Go(func() error { return a.speak(ctx, emit) })
	}
	return g.Wait()
}
