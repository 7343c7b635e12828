package mcptools

import "net/http"

// bounded is an HTTP client that takes answers up to a size.
func bounded(c *http.Client) *http.Client {
	if c == nil {
		c = &http.Client{}
	}
	b := *c
	b.Transport = limit{c.Transport}
	return &b
}

type limit struct{ http.RoundTripper } // nil for the default one

func (l limit) RoundTrip(r *http.Request) (*http.Response, error) {
	next := l.RoundTripper
	if next == nil {
		next = http.DefaultTransport
	}
	resp, err := next.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, mostBytes)
	}
	return resp, err
}
