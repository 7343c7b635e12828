package inference

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// stream is a reply of many events: run sends them, from any goroutine. Where it fails before the first, the reply is the
// error with its status; after that the error is an event of its own.
type stream func(send func(event any) error) error

// writeTimeout is how long a client may take for one event: one that reads no more is let go.
const writeTimeout = time.Minute

// events are server-sent events, as OpenAI has them: one JSON value each, and [DONE] at the end.
type events struct {
	w http.ResponseWriter

	mu    sync.Mutex
	begun bool
}

// send writes an event. An error is that the client is gone, or has not read for too long.
func (e *events) send(event any) error {
	data, err := json.Marshal(event)
	if err != nil {
		return fmt.Errorf("encode an event: %w", err)
	}
	return e.write(data)
}

func (e *events) write(data []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.begun {
		h := e.w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no") // nginx
	}
	c := http.NewResponseController(e.w)
	if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return fmt.Errorf("send an event: %w", err)
	}
	e.begun = true
	if _, err := fmt.Fprintf(e.w, "data: %s\n\n", data); err != nil {
		return fmt.Errorf("send an event: %w", err)
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("send an event: %w", err)
	}
	return nil
}

// streamOut sends a stream. An error is that of a stream which never began.
func (a *API) streamOut(w http.ResponseWriter, r *http.Request, run stream) error {
	e := &events{w: w}
	err := run(e.send)
	if err != nil && !e.begun {
		return err
	}
	if err != nil && r.Context().Err() == nil {
		_, reply := errorOut(err)
		err = e.send(reply)
	}
	if err == nil {
		err = e.write([]byte("[DONE]"))
	}
	if err != nil {
		a.log.Debug("a stream was not taken", "path", r.URL.Path, "error", err)
	}
	return nil
}
