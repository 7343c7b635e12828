package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAskReady(t *testing.T) {
	status, asked := http.StatusOK, ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Path
		w.WriteHeader(status)
	}))
	addr := server.Listener.Addr().String()
	if err := askReady(addr); err != nil || asked != "/readyz" {
		t.Errorf("a process that works: asked %q, %v", asked, err)
	}
	status = http.StatusServiceUnavailable
	if err := askReady(addr); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("a process that does not work yet: %v", err)
	}
	server.Close()
	if err := askReady(addr); err == nil {
		t.Error("no process: ready")
	}
}
