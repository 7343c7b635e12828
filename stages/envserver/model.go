package envserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/prl-project/prl/pipeline/tracing"
	"github.com/prl-project/prl/stages/inference"
)

// A Directory answers model calls, of whatever policy, as inference.Directory does. An inference.Error that is not Retryable
// is not worth another try.
type Directory interface {
	inference.Model
	// Verify is shown the run's tokenizer.json before anything is asked. An error is pipeline.ErrFatal, or it is called again.
	Verify(ctx context.Context, tokenizer []byte) error
	// Recorded is how traces name a frozen policy, see schemas.FrozenPolicy.
	Recorded(policy string) string
	// Server is where a policy is served, for people; empty is the one that is trained.
	Server(policy string) string
	// Close drops connections, at the end.
	Close()
}

// caller makes model calls with retries.
type caller struct {
	model   Directory
	retries int
	timeout time.Duration                  // of one try; 0 for none
	warn    func(policy string, err error) // hears of every try that failed, but while the server stops; nil for nobody
	stops   func() bool                    // the server stops; nil for never
}

func (c caller) stopping() bool { return c.stops != nil && c.stops() }

// failed says that a try did. While this server stops that is no news.
func (c caller) failed(policy string, err error) {
	if c.warn != nil && !c.stopping() {
		c.warn(policy, err)
	}
}

// warnEvery is how often failing model calls are logged.
const warnEvery = 10 * time.Second

// warner logs that calls of a policy (empty: the one that is trained) fail, of each now and then.
func warner(log *slog.Logger, model Directory) func(policy string, err error) {
	type count struct {
		last   time.Time
		failed int
	}
	var mu sync.Mutex
	counts := map[string]*count{}
	return func(policy string, err error) {
		mu.Lock()
		defer mu.Unlock()
		c := counts[policy]
		if c == nil {
			c = &count{}
			counts[policy] = c
		}
		c.failed++
		if now := time.Now(); now.Sub(c.last) >= warnEvery {
			log.Warn("model calls fail and are tried again", "policy", policy, "server", model.Server(policy), "failed", c.failed, "error", err)
			c.last, c.failed = now, 0
		}
	}
}

// generate asks for a completion. Every try asks for the same: it has the same seed, and only one completion is ever
// looked at.
func (c caller) generate(ctx context.Context, r inference.Request) (inference.Completion, error) {
	call := newCall(ctx, tracing.CallSpan)
	return again(ctx, c, r.Policy, func(ctx context.Context) (inference.Completion, error) {
		ctx, done := call.try(ctx)
		completion, err := c.model.Generate(ctx, r)
		if err == nil {
			err = inexact(check(completion, r))
		}
		if call != nil {
			done(err, tracing.PromptTok.Int(len(r.Tokens)), tracing.SampledTok.Int(len(completion.Tokens)), tracing.Finish.StringSlice([]string{completion.FinishReason}))
		}
		return completion, err
	})
}

// probe asks for the log-probabilities of tokens.
func (c caller) probe(ctx context.Context, p inference.Probe) ([]float32, error) {
	call := newCall(ctx, tracing.ProbeSpan)
	return again(ctx, c, p.Policy, func(ctx context.Context) ([]float32, error) {
		ctx, done := call.try(ctx)
		logprobs, err := c.model.Probe(ctx, p)
		if err == nil {
			err = inexact(checkProbed(logprobs, p))
		} else {
			logprobs = nil
		}
		done(err)
		return logprobs, err
	})
}

// again calls once until it succeeds, the retries are used up, or ctx ends. If ctx ended before any try had failed by
// itself, the error is context.Cause(ctx); so a model that is slow is told from one that is broken. A model that is gone is
// not waited for while this server stops, since often both stop together: the error is errStopped, and the rollout begins anew.
// The model's server may hear of a stop first, so that a failure is news only when this one still works after the pause.
func again[T any](ctx context.Context, c caller, policy string, once func(context.Context) (T, error)) (T, error) {
	var none T
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 200*time.Millisecond, 5*time.Second
	var failed error
	tries := 0
	for ctx.Err() == nil {
		answer, err := try(ctx, c, once)
		if err == nil {
			return answer, nil
		}
		if ctx.Err() != nil {
			break
		}
		failed, tries = err, tries+1
		if gone(err) && c.stopping() {
			return none, errStopped
		}
		if permanent(err) || tries > c.retries {
			c.failed(policy, err)
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause.NextBackOff()):
		}
		c.failed(policy, err)
	}
	if failed == nil {
		return none, context.Cause(ctx)
	}
	return none, fmt.Errorf("model call, try %d of %d: %w", tries, c.retries+1, failed)
}

// permanent reports whether the same request would fail again.
func permanent(err error) bool {
	var refused *inference.Error
	return errors.Is(err, errInexact) || errors.As(err, &refused) && !inference.Retryable(err)
}

// gone reports whether the model's server may not be there, rather than have too much to do.
func gone(err error) bool {
	var refused *inference.Error
	return inference.Retryable(err) && errors.As(err, &refused) && refused.Code != inference.CodeOverloaded
}

// errInexact is an answer that breaks the rules of token exactness.
var errInexact = errors.New("the model's answer cannot be trained on")

func inexact(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errInexact, err)
}

func try[T any](ctx context.Context, c caller, once func(context.Context) (T, error)) (T, error) {
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no answer in %v", c.timeout))
		defer cancel()
	}
	answer, err := once(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return answer, err
}

// check holds a completion to token exactness (I7).
func check(c inference.Completion, r inference.Request) error {
	n := len(c.Tokens)
	if n == 0 || n > r.MaxTokens || len(c.Logprobs) != n {
		return fmt.Errorf("%d tokens of at most %d, with %d log-probabilities", n, r.MaxTokens, len(c.Logprobs))
	}
	if err := checkLogprobs(c.Logprobs); err != nil {
		return err
	}
	negative := func(id int32) bool { return id < 0 }
	if i := slices.IndexFunc(c.Tokens, negative); i >= 0 {
		return fmt.Errorf("token %d is %d", i, c.Tokens[i])
	}
	if i := slices.IndexFunc(c.Prompt, negative); i >= 0 {
		return fmt.Errorf("token %d of the prompt that was seen is %d", i, c.Prompt[i])
	}
	if c.Prompt != nil && len(c.Prompt) == 0 {
		return errors.New("the prompt that was seen is empty")
	}
	if r.Policy != "" && len(c.Versions) > 0 {
		return fmt.Errorf("version %d of a frozen policy", c.Versions[0].Version)
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

func checkProbed(logprobs []float32, p inference.Probe) error {
	if len(logprobs) != len(p.Tokens) {
		return fmt.Errorf("%d log-probabilities for %d tokens", len(logprobs), len(p.Tokens))
	}
	return checkLogprobs(logprobs)
}

func checkLogprobs(logprobs []float32) error {
	for i, l := range logprobs {
		if v := float64(l); math.IsNaN(v) || math.IsInf(v, 0) || v > 1e-3 {
			return fmt.Errorf("log-probability %d is %v", i, l)
		}
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
