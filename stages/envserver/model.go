package envserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/prl-project/prl/stages/inference"
)

// A Generator continues sequences of tokens. An inference.Error that is not Retryable is not worth another try.
type Generator interface {
	Generate(ctx context.Context, r inference.Request) (inference.Completion, error)
}

// A Renderer turns messages into tokens and tokens into text. A conversation is the concatenation of its messages, so
// that it grows by appending.
type Renderer interface {
	// RenderMessage gives the tokens of one whole message, its end included.
	RenderMessage(role, content string) ([]int32, error)
	// GenerationPrompt is what opens a message of the assistant.
	GenerationPrompt() []int32
	// EOS ends a message.
	EOS() int32
	// Decode gives the text of tokens, special ones left out.
	Decode(ids []int32) string
}

// caller makes model calls with retries.
type caller struct {
	model   Generator
	retries int
	timeout time.Duration // of one try; 0 for none
	warn    func(error)   // hears of every try that failed; nil for nobody
}

// warnEvery is how often failing model calls are logged.
const warnEvery = 10 * time.Second

// warner logs that model calls fail, now and then.
func warner(log *slog.Logger, url string) func(error) {
	var mu sync.Mutex
	var last time.Time
	failed := 0
	return func(err error) {
		mu.Lock()
		defer mu.Unlock()
		failed++
		if now := time.Now(); now.Sub(last) >= warnEvery {
			log.Warn("model calls fail and are tried again", "url", url, "failed", failed, "error", err)
			last, failed = now, 0
		}
	}
}

// generate asks until there is a completion, the retries are used up, or ctx ends. Every try asks for the same: it has
// the same seed, and only one completion is ever looked at. If ctx ended before any try had failed by itself, the error
// is context.Cause(ctx); so a model that is slow is told from one that is broken.
func (c caller) generate(ctx context.Context, r inference.Request) (inference.Completion, error) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 200*time.Millisecond, 5*time.Second
	var failed error
	tries := 0
	for ctx.Err() == nil {
		completion, err := c.once(ctx, r)
		if err == nil {
			return completion, nil
		}
		if ctx.Err() != nil {
			break
		}
		failed, tries = err, tries+1
		if c.warn != nil {
			c.warn(err)
		}
		if permanent(err) || tries > c.retries {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause.NextBackOff()):
		}
	}
	if failed == nil {
		return inference.Completion{}, context.Cause(ctx)
	}
	return inference.Completion{}, fmt.Errorf("model call, try %d of %d: %w", tries, c.retries+1, failed)
}

// permanent reports whether the same request would fail again.
func permanent(err error) bool {
	var refused *inference.Error
	return errors.Is(err, errInexact) || errors.As(err, &refused) && !inference.Retryable(err)
}

// errInexact is an answer that breaks the rules of token exactness.
var errInexact = errors.New("the model's answer cannot be trained on")

func (c caller) once(ctx context.Context, r inference.Request) (inference.Completion, error) {
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no answer in %v", c.timeout))
		defer cancel()
	}
	completion, err := c.model.Generate(ctx, r)
	if err != nil && ctx.Err() != nil {
		return completion, context.Cause(ctx)
	}
	if err != nil {
		return completion, err
	}
	if err := check(completion, r); err != nil {
		return completion, fmt.Errorf("%w: %w", errInexact, err)
	}
	return completion, nil
}

// check holds a completion to token exactness (I7).
func check(c inference.Completion, r inference.Request) error {
	n := len(c.Tokens)
	if n == 0 || n > r.MaxTokens || len(c.Logprobs) != n {
		return fmt.Errorf("%d tokens of at most %d, with %d log-probabilities", n, r.MaxTokens, len(c.Logprobs))
	}
	for i, l := range c.Logprobs {
		if v := float64(l); math.IsNaN(v) || math.IsInf(v, 0) || v > 1e-3 {
			return fmt.Errorf("log-probability %d is %v", i, l)
		}
	}
	for i, id := range c.Tokens {
		if id < 0 {
			return fmt.Errorf("token %d is %d", i, id)
		}
	}
	if len(c.Versions) > 0 && c.Versions[0].Offset != 0 {
		return fmt.Errorf("the versions begin at token %d", c.Versions[0].Offset)
	}
	for i, v := range c.Versions {
		if v.Version < 0 || v.Offset >= n || i > 0 && v.Offset <= c.Versions[i-1].Offset {
			return fmt.Errorf("version %d from token %d of %d", v.Version, v.Offset, n)
		}
		if r.PinVersion != nil && v.Version != *r.PinVersion {
			return fmt.Errorf("version %d answered, the task asks for %d", v.Version, *r.PinVersion)
		}
	}
	if c.FinishReason != inference.FinishStop && c.FinishReason != inference.FinishLength {
		return fmt.Errorf("finish reason %q", c.FinishReason)
	}
	return nil
}

// mix is the n-th output of the generator SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) from a seed, cut to 63 bits.
//
// The seed of a rollout's n-th model call is mix(task.Seed, n): the same for every attempt. Rollout i of a task that asks
// for a whole group has mix(task.Seed, -1-i) as the seed of its calls.
func mix(seed int64, n int) int64 {
	x := uint64(seed) + (uint64(n)+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return int64((x ^ x>>31) >> 1)
}
