package judge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/prl-project/prl/pipeline/tracing"
)

// longestReply is what is read of an answer of the judge's server, in bytes.
const longestReply = 1 << 20

// client asks the judge. It is safe for concurrent use.
type client struct {
	cfg     Config
	http    *http.Client
	pattern *regexp.Regexp
	gate    *gate
	cache   *cache
}

// request is the body of a chat completion, and what the cache goes by.
type request struct {
	Model       string    `json:"model"`
	Messages    []message `json:"messages"`
	Temperature float64   `json:"temperature"`
	MaxTokens   int       `json:"max_tokens"`
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// score asks the judge what it makes of a text: a number from 0 to 1. Failed tries are repeated, and so is an answer without a
// score. An error says that there is no score, never that it is low.
func (c *client) score(ctx context.Context, text string) (float64, error) {
	body, err := json.Marshal(request{
		Model: c.cfg.Model, Messages: []message{{"user", text}}, Temperature: c.cfg.Temperature, MaxTokens: c.cfg.MaxTokens,
	})
	if err != nil {
		return 0, fmt.Errorf("encode the question to the judge: %w", err)
	}
	sum := sha256.Sum256(append([]byte(c.cfg.URL+"\n"), body...))
	key := hex.EncodeToString(sum[:])
	if reply, ok := c.cache.get(key); ok {
		if score, err := c.read(reply); err == nil {
			return score, nil // else the pattern is another one now
		}
	}
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = time.Duration(c.cfg.PauseS*float64(time.Second)), 10*time.Second
	for try := 1; ; try++ {
		reply, err := c.ask(ctx, body)
		var score float64
		if err == nil {
			score, err = c.read(reply)
		}
		if err == nil {
			c.cache.put(key, reply)
			return score, nil
		}
		var refused *refusal
		if ctx.Err() != nil || errors.As(err, &refused) && !refused.temporary() || try > c.cfg.Retries {
			return 0, fmt.Errorf("ask the judge at %s, try %d of %d: %w", c.cfg.URL, try, c.cfg.Retries+1, err)
		}
		next := wait.NextBackOff()
		if refused != nil {
			next = max(next, refused.after)
		}
		if stopped := pause(ctx, next); stopped != nil {
			return 0, fmt.Errorf("ask the judge at %s, after try %d of %d: %w", c.cfg.URL, try, c.cfg.Retries+1, errors.Join(stopped, err))
		}
	}
}

// refusal is an answer of the server that is no completion.
type refusal struct {
	status int
	said   string
	after  time.Duration // it asks to wait so long
}

func (r *refusal) Error() string { return fmt.Sprintf("HTTP %d: %s", r.status, r.said) }

// temporary reports whether the same request may succeed later.
func (r *refusal) temporary() bool {
	return r.status == http.StatusTooManyRequests || r.status == http.StatusRequestTimeout || r.status == http.StatusConflict || r.status >= 500
}

// ask is one try.
func (c *client) ask(ctx context.Context, body []byte) (string, error) {
	if err := c.gate.enter(ctx); err != nil {
		return "", fmt.Errorf("wait for a turn: %w", err)
	}
	defer c.gate.leave()
	timeout := time.Duration(c.cfg.TimeoutS * float64(time.Second))
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer in %v", timeout))
	defer cancel()
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(c.cfg.URL, "/")+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	post.Header.Set("Content-Type", "application/json")
	token, err := c.cfg.bearer().Token()
	if err != nil {
		return "", err
	}
	if token != "" {
		post.Header.Set("Authorization", "Bearer "+token)
	}
	tracing.Inject(ctx, post.Header)
	answer, err := c.http.Do(post)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, longestReply))
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", fmt.Errorf("read the answer: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After")) // a date counts as none
		return "", &refusal{answer.StatusCode, strings.ToValidUTF8(string(text[:min(len(text), 300)]), "\uFFFD"), time.Duration(min(max(seconds, 0), 600)) * time.Second}
	}
	var completion struct {
		Choices []struct{ Message message }
	}
	if err := json.Unmarshal(text, &completion); err != nil {
		return "", fmt.Errorf("the answer is no chat completion: %w", err)
	}
	if len(completion.Choices) == 0 {
		return "", errors.New("the answer has no choice")
	}
	return completion.Choices[0].Message.Content, nil
}

// read is the last score in what the judge says.
func (c *client) read(reply string) (float64, error) {
	all := c.pattern.FindAllStringSubmatch(reply, -1)
	if len(all) == 0 {
		return 0, fmt.Errorf("the judge's answer has no score like %s: %.200q", c.cfg.Pattern, reply)
	}
	v, err := strconv.ParseFloat(all[len(all)-1][1], 64)
	if err != nil || !(v >= 0 && v <= c.cfg.MaxScore) {
		return 0, fmt.Errorf("the judge's score %.50q is no number from 0 to %v", all[len(all)-1][1], c.cfg.MaxScore)
	}
	return v / c.cfg.MaxScore, nil
}
