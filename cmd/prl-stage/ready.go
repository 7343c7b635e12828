package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// readyPatience bounds a look at /readyz.
const readyPatience = 4 * time.Second

// askReady is an error unless the process whose telemetry is at addr, host:port, says that it does its work. Containers that hold
// nothing but this binary are looked after with it.
func askReady(addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), readyPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("--ready %s: want host:port of --telemetry: %w", addr, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask whether it is ready: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil {
		return fmt.Errorf("ask whether it is ready: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("not ready: %s %s", resp.Status, strings.TrimSpace(string(text)))
	}
	return nil
}
