package inference

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/internal/lm"
)

// TestOneTokenizer: a version with another tokenizer than the ones before, or one with more tokens than the model has, is
// not served; the former is the end of the run.
func TestOneTokenizer(t *testing.T) {
	other, err := lm.NewTokenizer("ab")
	if err != nil {
		t.Fatal(err)
	}
	bytes, err := lm.NewTokenizer("")
	if err != nil {
		t.Fatal(err)
	}
	s, _ := serve(t, nil)
	m, _ := testModel(t, 1)
	for _, tok := range []*lm.Tokenizer{other, bytes} {
		p := policyOf(t, 1, m, tok)
		if err := s.install(t.Context(), p); !errors.Is(err, errTokenizer) {
			t.Errorf("%d tokens: %v", tok.VocabSize(), err)
		}
		if err := s.publish(t.Context(), []pipeline.Record{{Value: store(t, s.rt, p)}}); !errors.Is(err, pipeline.ErrFatal) {
			t.Errorf("published: %v", err)
		}
	}
	fresh, err := New(testRuntime(t, t.TempDir()), testConfig(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := fresh.install(t.Context(), policyOf(t, 0, m, bytes)); err == nil || !strings.Contains(err.Error(), "vocab_size is 45, but the tokenizer has 264") {
		t.Errorf("a tokenizer with more tokens than the model: %v", err)
	}
	bad := policyOf(t, 0, m, other)
	bad.Tokenizer = []byte(`{}`)
	if err := fresh.install(t.Context(), bad); err == nil {
		t.Error("a tokenizer that is none")
	}
	fresh.voice.name = "nobody's"
	if err := fresh.install(t.Context(), policyOf(t, 0, m, other)); err == nil || !strings.Contains(err.Error(), "nobody's") {
		t.Errorf("a renderer that is none: %v", err)
	}
}

// TestHealth: the server says that it is well once a policy is served, and until it stops, to those without a token, too.
func TestHealth(t *testing.T) {
	cfg := testConfig()
	cfg.Token = pipeline.NewSecret("secret")
	s, err := New(testRuntime(t, t.TempDir()), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	hs := httptest.NewServer(s.handler())
	defer hs.Close()
	get := func(path string) (int, string) {
		resp, err := http.Get(hs.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(data)
	}
	if status, _ := get("/health"); status != http.StatusServiceUnavailable {
		t.Errorf("without a policy: %d", status)
	}
	publish(t, s, store(t, s.rt, testPolicy(t, 0)))
	for _, path := range []string{"/health", "/ping"} {
		if status, body := get(path); status != http.StatusOK || body != "" {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, body := get("/version"); status != http.StatusOK || !strings.Contains(body, `"version":"`) {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := get("/v1/models"); status != http.StatusUnauthorized {
		t.Errorf("models without a token: %d", status)
	}
	s.drain()
	if status, _ := get("/health"); status != http.StatusServiceUnavailable {
		t.Errorf("while it stops: %d", status)
	}
}
