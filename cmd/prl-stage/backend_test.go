package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// TestBackendFlags: --backend and --url are settings like others, and --url may be repeated.
func TestBackendFlags(t *testing.T) {
	configured := func(args ...string) (backend string, urls []string, err error) {
		var f flags
		parser, err := kong.New(&f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(append([]string{"--stage", "inference"}, args...)); err != nil {
			t.Fatal(err)
		}
		cfg, err := configure(f)
		if err != nil {
			return "", nil, err
		}
		return cfg.Inference.Backend, cfg.Inference.URLs, nil
	}
	backend, urls, err := configured("--backend", "vllm", "--url", "http://a:8000", "--url", "http://b:8000/x,y")
	if err != nil || backend != "vllm" || !slices.Equal(urls, []string{"http://a:8000", "http://b:8000/x,y"}) {
		t.Errorf("backend %q, urls %q, %v", backend, urls, err)
	}
	if backend, _, err := configured(); err != nil || backend != "native" {
		t.Errorf("without flags: %q, %v", backend, err)
	}
	if _, _, err := configured("--url", "http://a:8000"); err == nil || !strings.Contains(err.Error(), "inference.backend") {
		t.Errorf("a url without a backend: %v", err)
	}
	if _, _, err := configured("--backend", "tgi"); err == nil || !strings.Contains(err.Error(), "sglang") {
		t.Errorf("an unknown backend: %v", err)
	}
}
