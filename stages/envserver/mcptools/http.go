package mcptools

import (
	"net/http"

	"github.com/prl-project/prl/pipeline/tracing"
)

// bounded is an HTTP client that takes answers up to a size.
func bounded(c *http.Client) *http.Client {
	if c == nil {
		c = &http.Client{}
	}
	b := *c
	b.Transport = limit{tracing.Carry(c.Transport)}
	return &b
}

type limit struct{ http.RoundTripper }

func (l limit) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, mostBytes)
	}
	return resp, err
}
