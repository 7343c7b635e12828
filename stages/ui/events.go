package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

const (
	tellEvery   = time.Second
	maxReaders  = 64
	writeLimit  = 10 * time.Second // for one event to a reader that is slow
	reconnectMs = 2000
)

// hub hands the newest events to all readers; a reader that is slow misses those in between.
type hub struct {
	most int

	mu      sync.Mutex
	readers map[chan event]bool
}

// event is what readers are told at one time.
type event struct{ flow, change []byte }

func newHub() *hub { return &hub{most: maxReaders, readers: map[chan event]bool{}} }

func (h *hub) join() (chan event, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.readers) >= h.most {
		return nil, errors.New("too many pages are open: close some, or ask /api/now")
	}
	c := make(chan event, 1)
	h.readers[c] = true
	return c, nil
}

func (h *hub) leave(c chan event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.readers, c)
}

func (h *hub) send(e event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.readers {
		select {
		case <-c: // what it has not taken is old
		default:
		}
		c <- e
	}
}

func (h *hub) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.readers)
}

// change says that there is more to see.
type change struct {
	Rev      int64 `json:"rev"`
	Rollouts int   `json:"rollouts"`
	Version  int64 `json:"version"`
	Step     int64 `json:"step"`
}

// tell tells the readers how things are, each second.
func (u *UI) tell(ctx context.Context) error {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if u.hub.count() == 0 {
			continue
		}
		e, err := u.event()
		if err != nil {
			return err
		}
		u.hub.send(e)
	}
}

func (u *UI) event() (e event, err error) {
	view := u.flowView()
	c := change{Version: -1, Rollouts: u.model.rollouts.Len()}
	u.model.locked(func() {
		c.Rev, c.Step = u.model.rev, u.model.run.Packed()
		if v, ok := u.model.run.Newest(); ok {
			c.Version = v.Version
		}
	})
	if e.flow, err = json.Marshal(view); err != nil {
		return e, err
	}
	e.change, err = json.Marshal(c)
	return e, err
}

// getNow is what the events tell, for those who get none.
func (u *UI) getNow(*http.Request) (any, error) {
	e, err := u.event()
	return map[string]json.RawMessage{"flow": e.flow, "change": e.change}, err
}

func (u *UI) events(w http.ResponseWriter, r *http.Request) {
	c, err := u.hub.join()
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, err)
		return
	}
	defer u.hub.leave(c)
	w.Header().Set("Content-Type", "text/event-stream")
	ctl := http.NewResponseController(w)
	first, err := u.event()
	if err != nil {
		refuse(w, http.StatusInternalServerError, err)
		return
	}
	write := func(text string) bool {
		_ = ctl.SetWriteDeadline(time.Now().Add(writeLimit)) // where there is none to be set, the write fails by itself
		_, err := fmt.Fprint(w, text)
		return err == nil && ctl.Flush() == nil
	}
	if !write(fmt.Sprintf("retry: %d\n\n", reconnectMs)) {
		return
	}
	for e, sent := first, ""; ; {
		text := fmt.Sprintf("event: flow\ndata: %s\n\n", e.flow)
		if string(e.change) != sent {
			sent = string(e.change)
			text += fmt.Sprintf("event: change\ndata: %s\n\n", e.change)
		}
		if !write(text) {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case e = <-c:
		}
	}
}
