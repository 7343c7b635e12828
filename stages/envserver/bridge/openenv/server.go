package openenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/prl-project/prl/pipeline/tracing"
	"github.com/prl-project/prl/stages/envserver/env"
)

// server is the other end.
type server struct {
	cfg     Config
	base    *url.URL
	client  *http.Client
	limit   time.Duration // for one answer
	ping    time.Duration
	largest int64 // bytes of an answer
}

func newServer(cfg Config, target string) (*server, error) {
	base, err := cfg.base(target)
	if err != nil {
		return nil, err
	}
	return &server{
		cfg: cfg, base: base, client: &http.Client{Transport: tracing.Carry(nil)}, limit: seconds(cfg.TimeoutS), ping: seconds(cfg.PingS), largest: int64(cfg.ReplyKB) << 10,
	}, nil
}

func (s *server) url(path string) string { return strings.TrimRight(s.base.String(), "/") + path }

// header has the token, as it is now.
func (s *server) header() (http.Header, error) {
	token, err := s.cfg.bearer().Token()
	if err != nil || token == "" {
		return nil, err
	}
	return http.Header{"Authorization": {"Bearer " + token}}, nil
}

// get asks for the JSON of a path.
func (s *server) get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url(path), nil)
	if err != nil {
		return err
	}
	header, err := s.header()
	if err != nil {
		return err
	}
	if header != nil {
		request.Header = header
	}
	response, err := s.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, s.largest+1))
	switch {
	case err != nil:
		return fmt.Errorf("GET %s: %w", path, err)
	case int64(len(text)) > s.largest:
		return fmt.Errorf("GET %s: %w: more than %d KiB (reply_kb)", path, errForeign, s.cfg.ReplyKB)
	case response.StatusCode >= http.StatusBadGateway && response.StatusCode <= http.StatusGatewayTimeout:
		return fmt.Errorf("GET %s: %s", path, response.Status) // a gateway, whose server may start
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("GET %s: %w: %s: %.200q", path, errForeign, response.Status, text)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("GET %s: %w: %.200q", path, errForeign, text)
	}
	return nil
}

// errForeign says that somebody answers who is no server of OpenEnv.
var errForeign = errors.New("no answer of an OpenEnv server")

// about is what a server says of its environment.
type about struct {
	version string
	action  json.RawMessage // JSON Schema
}

// look asks the server what it is. One that does not answer yet is waited for.
func (s *server) look(ctx context.Context) (about, error) {
	var health struct{ Status string }
	var why error
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := s.get(ctx, "/health", &health)
		if err == nil {
			break
		}
		if why == nil || ctx.Err() == nil {
			why = err
		}
		if errors.Is(err, errForeign) || !sleep(ctx, pause) {
			if ctx.Err() != nil {
				why = fmt.Errorf("%w: %w", context.Cause(ctx), why)
			}
			return about{}, fmt.Errorf("%w; want an OpenEnv server there", why)
		}
	}
	if health.Status == "unhealthy" {
		return about{}, fmt.Errorf("GET /health: the server says that it is %s", health.Status)
	}
	var schema struct{ Action json.RawMessage }
	if err := s.get(ctx, "/schema", &schema); err != nil {
		return about{}, err
	}
	// Servers may make an environment to answer this, which may fail; nothing depends on it.
	var metadata struct{ Version string }
	_ = s.get(ctx, "/metadata", &metadata)
	version := fmt.Sprintf("%08x", uint32(env.Hash(string(schema.Action))))
	if metadata.Version != "" {
		version = fmt.Sprintf("%.64s-%s", metadata.Version, version)
	}
	return about{version: version, action: schema.Action}, nil
}

// sleep waits; false if ctx has ended.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
