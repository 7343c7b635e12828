package ui

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// What the page's server takes from its readers. A browser has at most six connections to a server.
const (
	maxConnections = 256
	headerTime     = 5 * time.Second
	requestTime    = time.Minute     // to send a request whole; streams and queries take it off once they have read theirs
	answerTime     = 2 * time.Minute // to take an answer, from the request on; each event has its own time
	idleTime       = time.Minute
	maxHeader      = 64 << 10
)

// server is the page's server: whoever is slow, or opens many connections, is cut off rather than waited for.
func (u *UI) server(ctx context.Context) *http.Server {
	return &http.Server{
		Handler: u.handler(), ReadHeaderTimeout: headerTime, ReadTimeout: requestTime, WriteTimeout: answerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
}

// patient lets a handler whose request was read whole take longer than requestTime.
func patient(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // a writer without deadlines has none to take off
}

// bounded is a listener that holds at most so many connections. One more is told so and closed: a reader is better off with an
// answer than in a queue.
type bounded struct {
	net.Listener
	free chan struct{}
}

func bound(l net.Listener, most int) net.Listener {
	b := &bounded{l, make(chan struct{}, most)}
	for range most {
		b.free <- struct{}{}
	}
	return b
}

const tooMany = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\nRetry-After: 5\r\n" +
	"Content-Length: 69\r\n\r\n" + `{"error":"the page has too many connections: close some, then retry"}`

func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case <-b.free:
			return &held{Conn: c, release: sync.OnceFunc(func() { b.free <- struct{}{} })}, nil
		default:
			_ = c.SetDeadline(time.Now().Add(time.Second))
			_, _ = c.Write([]byte(tooMany)) // it fits the kernel's buffer
			_ = c.Close()
		}
	}
}

// held is a connection that has a place.
type held struct {
	net.Conn
	release func()
}

func (h *held) Close() error {
	defer h.release()
	return h.Conn.Close()
}
