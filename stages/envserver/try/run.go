package try

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Run is a number of rollouts of an environment by a model behind a URL.
type Run struct {
	Env      env.Environment
	Tasks    Tasks
	Rollouts int
	// Parallel is how many run at once.
	Parallel int
	Server   Server
	Sampling Sampling
	Limits   Limits
	// Alt shows images by their alt texts, to a model that reads only text.
	Alt bool
	// JSON prints a line for each rollout on the output, and the summary on the other.
	JSON bool
	// Log hears of model calls that fail and are tried again.
	Log *slog.Logger

	server Server // with the model's name
	client *client
}

// Sampling is how the model is asked.
type Sampling struct {
	Temperature float64
	// MaxTokens bounds one answer, and MaxRolloutTokens the conversation, as far as the server counts; 0 leaves it to the server.
	MaxTokens, MaxRolloutTokens int
	// Seed of the first rollout; every further one has the next. nil sends none, since not every server takes one.
	Seed *int64
}

// Limits are on time and tries.
type Limits struct {
	Rollout time.Duration // of a rollout, up to the model's last answer
	Env     time.Duration // of one call of the environment
	Request time.Duration // of one try of a model call; 0 for none
	Retries int           // of a model call that failed
	Pause   time.Duration // before the first of them, growing to twenty times; 0 is half a second
}

// Validate returns what is wrong, with what to change.
func (r *Run) Validate() error {
	switch {
	case r.Rollouts < 1:
		return fmt.Errorf("--try %d: at least 1", r.Rollouts)
	case r.Parallel < 1 || r.Parallel > 4096:
		return fmt.Errorf("--parallel %d: 1 to 4096", r.Parallel)
	case r.Server.URL == "":
		return errors.New("--try needs a model: --url http://localhost:8000 names a server with OpenAI's chat completions")
	case !(r.Sampling.Temperature >= 0 && r.Sampling.Temperature <= 10):
		return fmt.Errorf("--temperature %v: 0 to 10", r.Sampling.Temperature)
	case r.Limits.Rollout <= 0 || r.Limits.Env <= 0:
		return errors.New("a rollout and a call of the environment need time: envs.<name>.timeout and envserver.env_timeout")
	}
	if _, err := r.Server.base(); err != nil {
		return err
	}
	return r.Tasks.check(r.Env.Info())
}

// Do plays all rollouts and prints each when it ends, then a summary; with JSON that is on side, as is the progress where out
// is no terminal. It ends early when ctx does, which is no error, and when the server refuses what it will always refuse. An
// error if a rollout failed.
func (r *Run) Do(ctx context.Context, out, side io.Writer) error {
	if err := r.Validate(); err != nil {
		return err
	}
	if err := r.connect(ctx); err != nil {
		return err
	}
	defer r.client.http.CloseIdleConnections()
	v := newView(r, out, side)
	v.begin()
	start := time.Now()
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var hopeless error
	for res := range r.results(working) {
		if working.Err() != nil && res.Error != nil {
			continue // it was stopped, or would have met the same
		}
		var refused *refusal
		if errors.As(res.cause, &refused) && refused.hopeless() {
			hopeless = res.cause
			stop(hopeless)
		}
		v.add(res)
	}
	v.summary(time.Since(start))
	switch {
	case hopeless != nil:
		return hopeless
	case v.err != nil:
		return fmt.Errorf("print a rollout: %w", v.err)
	case v.failed > 0:
		return fmt.Errorf("%d of %d rollouts failed", v.failed, len(v.results))
	}
	return nil
}

// results plays the rollouts, in order of their beginning. The channel is closed when all have ended, or those that had begun
// when ctx did.
func (r *Run) results(ctx context.Context) <-chan *Result {
	results := make(chan *Result)
	next := make(chan int)
	go func() {
		defer close(next)
		for i := range r.Rollouts {
			select {
			case next <- i:
			case <-ctx.Done():
				return
			}
		}
	}()
	var workers sync.WaitGroup
	for range min(r.Parallel, r.Rollouts) {
		workers.Go(func() {
			for i := range next {
				results <- r.bounded(ctx, i)
			}
		})
	}
	go func() {
		workers.Wait()
		close(results)
	}()
	return results
}

// connect finds out the model's name, where it is not given.
func (r *Run) connect(ctx context.Context) error {
	base, err := r.Server.base()
	if err != nil {
		return err
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = r.Parallel, r.Parallel
	r.server, r.client = r.Server, &client{
		server: r.Server, base: base, retries: r.Limits.Retries, timeout: r.Limits.Request, pause: r.Limits.Pause, warn: r.warner(),
		http: &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
	if r.client.pause <= 0 {
		r.client.pause = usualPause
	}
	if r.server.Model != "" {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 20*time.Second, errors.New("no answer in 20s"))
	defer cancel()
	names, err := r.client.models(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("ask %s which models it has: %w; is it the server's --url, and does it run? --model names a model without asking", base, err)
	case len(names) != 1:
		return fmt.Errorf("%s has %d models: --model names one of %s", base, len(names), strings.Join(names, ", "))
	}
	r.server.Model = names[0]
	return nil
}

// warnEvery is how often failing model calls are logged.
const warnEvery = 10 * time.Second

// warner logs failed tries now and then.
func (r *Run) warner() func(error) {
	var mu sync.Mutex
	var last time.Time
	failed := 0
	return func(err error) {
		mu.Lock()
		defer mu.Unlock()
		failed++
		if now := time.Now(); now.Sub(last) >= warnEvery {
			r.Log.Warn("model calls fail and are tried again", "failed", failed, "error", err)
			last, failed = now, 0
		}
	}
}
