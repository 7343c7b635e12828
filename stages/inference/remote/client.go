package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prl-project/prl/pipeline/tracing"
)

// client speaks JSON with one server.
type client struct {
	base  string // URL without a slash at the end
	token string
	http  *http.Client
}

// maxReplyBytes bounds what is read of a reply: some 200 bytes a token.
const maxReplyBytes = 64 << 20

// newTransport keeps as many idle connections as calls run at once, so that none is opened anew for each.
func newTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost, t.IdleConnTimeout = 4096, 1024, 90*time.Second
	return t
}

// statusError is a reply other than 200.
type statusError struct {
	call    string // method and URL
	status  int
	message string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s: %d %s: %s", e.call, e.status, http.StatusText(e.status), e.message)
}

// call sends a body, if there is one, and reads the reply into what is given, if anything. Its errors are *statusError, that
// of ctx, and those of the connection, all with what was called.
func (c *client) call(ctx context.Context, method, path string, body, reply any) error {
	what := method + " " + c.base + path
	var sent io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("%s: encode the request: %w", what, err)
		}
		sent = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, sent)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	tracing.Inject(ctx, req.Header)
	resp, err := c.http.Do(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			op.Source = nil // a port of ours: without it the same failure reads the same, and is logged once
		}
		return fmt.Errorf("%s: %w", what, because(ctx, err))
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxReplyBytes+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s: read the reply: %w", what, because(ctx, err))
	case resp.StatusCode != http.StatusOK:
		return &statusError{call: what, status: resp.StatusCode, message: messageOf(data)}
	case len(data) > maxReplyBytes:
		return fmt.Errorf("%s: the reply has over %d bytes", what, maxReplyBytes)
	case reply == nil:
		return nil
	}
	if err := json.Unmarshal(data, reply); err != nil {
		return fmt.Errorf("%s: the reply is not what is expected: %w", what, err)
	}
	return nil
}

// because is why a call was broken off, where ctx says so.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// messageOf finds the message in an error's body: {"error":{"message":…}}, {"error":…}, {"message":…}, {"detail":…}, or the
// text as it is, shortened.
func messageOf(body []byte) string {
	var o struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
	}
	text := strings.TrimSpace(string(body))
	if json.Unmarshal(body, &o) == nil {
		var inner struct {
			Message string `json:"message"`
		}
		switch {
		case json.Unmarshal(o.Error, &inner) == nil && inner.Message != "":
			text = inner.Message
		case o.Message != "":
			text = o.Message
		case len(o.Error) > 0:
			text = string(o.Error)
		case len(o.Detail) > 0:
			text = string(o.Detail)
		}
	}
	const most = 500
	if len(text) > most {
		text = text[:most] + "…"
	}
	return text
}
