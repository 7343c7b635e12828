package inference

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/prl-project/prl/pipeline/tracing"
)

// Client asks a server for completions and probes over /inference/v1/generate. It is a Host; a call ends with its context.
type Client struct {
	base  string
	http  *http.Client
	Token string // sent as bearer token where not empty
}

const (
	// clientConns is how many idle connections are kept to a server: as many as calls that run at once, so that none is
	// opened anew for each.
	clientConns = 1 << 14
	// connBuffer is the size of a connection's buffers, of which thousands wait at once; what is larger passes them by.
	connBuffer = 2 << 10
)

// NewClient is a client of the server at baseURL, such as http://localhost:8000.
func NewClient(baseURL string) *Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost, t.IdleConnTimeout = clientConns, clientConns, 90*time.Second
	t.ReadBufferSize, t.WriteBufferSize = connBuffer, connBuffer
	return &Client{base: strings.TrimRight(baseURL, "/"), http: &http.Client{Transport: t}}
}

// String is the server's address.
func (c *Client) String() string { return c.base }

// Models implements Host.
func (c *Client) Models(ctx context.Context) ([]ModelCard, error) {
	var list modelList
	req, err := c.request(ctx, http.MethodGet, pathModels)
	if err != nil {
		return nil, err
	}
	err = c.call(req, func(data []byte) error { return json.Unmarshal(data, &list) })
	return list.Data, err
}

// Close drops the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Generate implements Generator.
func (c *Client) Generate(ctx context.Context, r Request) (Completion, error) {
	if err := r.validate(); err != nil {
		return Completion{}, err
	}
	if r.TopLogprobs > 0 {
		return Completion{}, refuse(http.StatusBadRequest, CodeUnsupported, "top_logprobs = %d: over %s there are none", r.TopLogprobs, pathGenerate)
	}
	var reply generateReply
	if err := c.ask(ctx, newGenerateRequest(r), &reply); err != nil {
		return Completion{}, err
	}
	done, err := reply.completion(r.Policy != "")
	if err != nil {
		return Completion{}, c.invalid(err)
	}
	return done, nil
}

// ask sends a question and reads the reply.
func (c *Client) ask(ctx context.Context, r generateRequest, reply *generateReply) error {
	q, err := newQuestion(r)
	if err != nil {
		return err
	}
	req, err := c.request(ctx, http.MethodPost, pathGenerate)
	if err != nil {
		return err
	}
	req.Body, req.ContentLength = q.body(), q.length()
	req.GetBody = func() (io.ReadCloser, error) { return q.body(), nil } // where a connection was closed meanwhile
	return c.call(req, reply.read)
}

// request is one without a body.
func (c *Client) request(ctx context.Context, method, path string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, nil)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, CodeInvalid, "server address %s: %v", c.base, err)
	}
	req.Header.Set("Content-Type", "application/json")
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	tracing.Inject(ctx, req.Header)
	return req, nil
}

// call sends a request and lets read have the reply.
func (c *Client) call(req *http.Request, read func([]byte) error) error {
	ctx := req.Context()
	resp, err := c.http.Do(req)
	if err != nil {
		return c.lost(ctx, err)
	}
	defer resp.Body.Close()
	data, err := readAll(io.LimitReader(resp.Body, maxReplyBytes+1), resp.ContentLength)
	switch {
	case err != nil:
		return c.lost(ctx, err)
	case resp.StatusCode != http.StatusOK:
		return errorOf(resp.StatusCode, data)
	case len(data) > maxReplyBytes:
		return &Error{Code: CodeConnection, Message: fmt.Sprintf("the reply of %s has over %d bytes", c.base, maxReplyBytes)}
	}
	if err := read(data); err != nil {
		return &Error{Code: CodeConnection, Message: "the reply of " + c.base + " is no JSON", Cause: err}
	}
	return nil
}

// readAll is io.ReadAll for a body whose length may be known, negative where it is not: it need not grow then.
func readAll(body io.Reader, length int64) ([]byte, error) {
	data := bytes.NewBuffer(make([]byte, 0, min(max(length, 0), 1<<20)+bytes.MinRead))
	_, err := data.ReadFrom(body)
	return data.Bytes(), err
}

// invalid is the error of a whole reply that is no answer. Unless the server gave up, the next would be the same, since answers
// depend on the request alone.
func (c *Client) invalid(err error) error {
	code := CodeUnusable
	if errors.Is(err, errAborted) {
		code = CodeConnection
	}
	return &Error{Code: code, Message: "the reply of " + c.base + " is invalid", Cause: err}
}

// maxReplyBytes bounds what a client reads: some 200 bytes a token.
const maxReplyBytes = 64 << 20

func (c *Client) lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("ask %s: %w", c.base, ctx.Err())
	}
	return &Error{Code: CodeConnection, Message: "no reply from " + c.base, Cause: err}
}

// errorOf reads an OpenAI-style error object; what is none becomes the message as it is, shortened.
func errorOf(status int, body []byte) *Error {
	var o errorReply
	if err := json.Unmarshal(body, &o); err == nil && o.Error.Message != "" {
		code := o.Error.Code
		if code == "" {
			code = o.Error.Type
		}
		return &Error{Status: status, Code: code, Message: o.Error.Message}
	}
	const most = 300
	text := strings.TrimSpace(string(body))
	if len(text) > most {
		text = text[:most] + "…"
	}
	return &Error{Status: status, Code: http.StatusText(status), Message: text}
}
