package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// modelShare is the part of the requests that a fault of the model hits.
const modelShare = 0.3

// A proxy stands between environment servers and inference, and does to requests and replies what networks and
// overloaded servers do. It never changes what a whole reply says.
type proxy struct {
	upstream string // root URL
	client   *http.Client
	server   *http.Server
	url      string

	mu     sync.Mutex
	fault  Kind // empty: none
	rng    *rand.Rand
	counts map[Kind]int // requests hit
}

// newProxy serves on a free port.
func newProxy(upstream string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("serve the model's proxy: %w", err)
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 1024, 1024
	p := &proxy{upstream: upstream, client: &http.Client{Transport: t}, url: "http://" + l.Addr().String(), rng: rand.New(rand.NewPCG(0, 0)), counts: map[Kind]int{}}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = p.server.Serve(l) }() // ends with close
	return p, nil
}

func (p *proxy) close() {
	_ = p.server.Close() // nobody is left to tell
	p.client.CloseIdleConnections()
}

// set puts a fault in force; an empty one ends it.
func (p *proxy) set(k Kind, seed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.rng = k, rand.New(rand.NewPCG(seed, 0))
}

// next draws what happens to a request: a fault or none, and a fraction that says how much.
func (p *proxy) next() (Kind, float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fault == "" || p.rng.Float64() >= modelShare {
		return "", 0
	}
	p.counts[p.fault]++
	return p.fault, p.rng.Float64()
}

// hits is how many requests each fault has hit.
func (p *proxy) hits(k Kind) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[k]
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	fault, fraction := p.next()
	switch {
	case fault == ModelSlow:
		select {
		case <-time.After(time.Duration(fraction * float64(2*time.Second))):
		case <-r.Context().Done():
			return
		}
	case fault == ModelRefuse:
		http.Error(w, `{"error":{"message":"overloaded by chaos","code":"overloaded"}}`, http.StatusServiceUnavailable)
		return
	case fault == ModelDrop && fraction < 0.5: // before the model has seen it
		panic(http.ErrAbortHandler)
	}
	status, header, reply, err := p.forward(r.Context(), r, body)
	if fault == ModelDrop || errors.Is(err, context.Canceled) {
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	for k, v := range header {
		w.Header()[k] = v
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(reply)))
	w.WriteHeader(status)
	if fault == ModelCut {
		_, _ = w.Write(reply[:int(fraction*float64(len(reply)))]) // cut either way
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(reply) // a client that has gone asks again
}

func (p *proxy) forward(ctx context.Context, r *http.Request, body []byte) (status int, header http.Header, reply []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, p.upstream+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil, fmt.Errorf("forward to the model: %w", err)
	}
	req.Header = r.Header.Clone()
	resp, err := p.client.Do(req)
	if err != nil {
		return 0, nil, nil, fmt.Errorf("forward to the model: %w", err)
	}
	defer resp.Body.Close()
	reply, err = io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, nil, fmt.Errorf("forward the model's reply: %w", err)
	}
	return resp.StatusCode, resp.Header, reply, nil
}
