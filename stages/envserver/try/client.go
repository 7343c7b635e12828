package try

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// longestReply is what is read of an answer, in bytes.
const longestReply = 16 << 20

// client asks one server. It is safe for concurrent use.
type client struct {
	server  Server
	base    string
	http    *http.Client
	header  http.Header // of every request, beside our own
	retries int
	timeout time.Duration // of one try; 0 for none
	pause   time.Duration // before the first retry; later ones are longer
	warn    func(error)   // hears of every try that failed and is repeated
}

// refusal is an answer of a server that is none of a model.
type refusal struct {
	status int
	said   string
	after  time.Duration // it asks to wait so long
}

func (r *refusal) Error() string {
	hint := ""
	switch r.status {
	case http.StatusUnauthorized, http.StatusForbidden:
		hint = " (--token-file or --token-env names the token)"
	case http.StatusNotFound:
		hint = " (check --url, which is the base of the API, and --model)"
	case http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		hint = " (it sends elsewhere; give that place as --url)"
	}
	return fmt.Sprintf("HTTP %d: %s%s", r.status, r.said, hint)
}

// temporary reports whether the same request may succeed later.
func (r *refusal) temporary() bool {
	return r.status == http.StatusTooManyRequests || r.status == http.StatusRequestTimeout || r.status == http.StatusConflict || r.status >= 500
}

// hopeless reports whether every other request will be refused, too.
func (r *refusal) hopeless() bool {
	switch r.status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed:
		return true
	}
	return r.status >= 300 && r.status < 400
}

// tooLong reports whether the model has no room for the conversation. Servers word it in different ways.
func (r *refusal) tooLong() bool {
	said := strings.ToLower(r.said)
	return r.status == http.StatusBadRequest && (strings.Contains(said, "context_length") || strings.Contains(said, "context length") ||
		strings.Contains(said, "context window") || strings.Contains(said, "context size"))
}

// errUnreadable is an answer that comes out the same way every time.
var errUnreadable = errors.New("unreadable")

// chat asks for an answer, with tries until one succeeds, the retries are used up or ctx ends. If ctx ended before any try had
// failed by itself, the error is context.Cause(ctx): so a model that is slow is told from one that is broken.
func (c *client) chat(ctx context.Context, r chatRequest, turn int) (answer, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return answer{}, fmt.Errorf("encode the conversation: %w", err)
	}
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = c.pause, 20*c.pause
	var failed error
	tries := 0
	for ctx.Err() == nil {
		reply, err := c.ask(ctx, http.MethodPost, pathChat, body)
		if err == nil {
			a, err := read(reply, turn)
			if err == nil {
				return a, nil
			}
			return a, fmt.Errorf("ask %s: %w: %w", c.base, errUnreadable, err)
		}
		if ctx.Err() != nil {
			break
		}
		failed, tries = err, tries+1
		var refused *refusal
		if errors.As(err, &refused) && !refused.temporary() || tries > c.retries {
			break
		}
		c.warn(err)
		wait := pause.NextBackOff()
		if refused != nil {
			wait = max(wait, refused.after)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	if failed == nil {
		return answer{}, context.Cause(ctx)
	}
	return answer{}, fmt.Errorf("ask %s, try %d of %d: %w", c.base, tries, c.retries+1, failed)
}

// models are the names of the models that the server has.
func (c *client) models(ctx context.Context) ([]string, error) {
	body, err := c.ask(ctx, http.MethodGet, pathModels, nil)
	if err != nil {
		return nil, err
	}
	var list struct{ Data []struct{ ID string } }
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("the answer is no list of models: %w", err)
	}
	var names []string
	for _, m := range list.Data {
		names = append(names, m.ID)
	}
	return names, nil
}

// ask is one try.
func (c *client) ask(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no answer in %v (envserver.request_timeout)", c.timeout))
		defer cancel()
	}
	data, err := c.once(ctx, method, path, body)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return data, err
}

func (c *client) once(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, values := range c.header {
		request.Header[name] = values
	}
	request.Header.Set("Content-Type", "application/json")
	token, err := c.server.Token()
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, longestReply+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer: %w", err)
	case resp.StatusCode != http.StatusOK:
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // a date counts as none
		return nil, &refusal{resp.StatusCode, plain(said(data)), time.Duration(min(max(seconds, 0), 600)) * time.Second}
	case len(data) > longestReply:
		return nil, fmt.Errorf("the answer has over %d bytes", longestReply)
	}
	return data, nil
}

// said is what an error says, by OpenAI's shape or in whatever text there is.
func said(body []byte) string {
	var shaped struct {
		Error struct {
			Message string
			Code    any
		}
	}
	text := strings.TrimSpace(string(body))
	if json.Unmarshal(body, &shaped) == nil && shaped.Error.Message != "" {
		text = shaped.Error.Message
		if code, ok := shaped.Error.Code.(string); ok && code != "" {
			text = code + ": " + text
		}
	}
	const most = 300
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "…"
	}
	return text
}
