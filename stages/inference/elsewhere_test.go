package inference

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/internal/lm"
)

// TestDirectory asks for a policy elsewhere: there it is the one that is trained, under another name, with versions.
func TestDirectory(t *testing.T) {
	home, _ := serve(t, nil)
	there, hs := serve(t, func(c *Config) { c.Model, c.Token = "other", pipeline.NewSecret("word") })
	publish(t, there, store(t, there.rt, testPolicy(t, 3)))
	d := NewDirectory(home, map[string]FrozenConfig{
		"teacher": {URL: hs.URL, Model: "other", Token: pipeline.NewSecret("word")}, "own": {Folder: "of the home server"},
	}, nil, slog.New(slog.DiscardHandler))
	r := Request{Tokens: []int32{5, 10}, MaxTokens: 5, Temperature: 1, Policy: "teacher"}
	got, err := d.Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	m3, _ := testModel(t, 3)
	want := alone(t, r, 64, []*lm.Model{m3}, []int64{3}, []int{0})
	want.Versions = nil
	sameBits(t, "elsewhere", got, want)
	probed, err := d.Probe(t.Context(), probeOf(r, got))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(probed[2:], got.Logprobs) {
		t.Errorf("probed %v, sampled %v", probed, got.Logprobs)
	}
	r.Policy = ""
	if got, err = d.Generate(t.Context(), r); err != nil || len(got.Versions) != 1 || got.Versions[0].Version != 0 {
		t.Errorf("at home: %v %v", got, err)
	}
	if _, err := d.Probe(t.Context(), Probe{Tokens: r.Tokens, Mask: []byte{0, 1}, Temperature: 1, Policy: "own"}); err == nil || !strings.Contains(err.Error(), `"own" is not served here`) {
		t.Errorf("at home: %v", err)
	}
}

// TestVerify looks at servers that have one fault each, for what envs.e.policy or envs.e.teacher asks of them.
func TestVerify(t *testing.T) {
	m, tok := wider(t) // of 48 positions
	home, hs := serveFrozen(t, map[string]FrozenConfig{"near": folder(t, m, tok)}, nil)
	own, err := tok.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	other, err := lm.NewTokenizer("abc")
	if err != nil {
		t.Fatal(err)
	}
	others, err := other.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	lists := func(body string) string {
		hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }))
		t.Cleanup(hs.Close)
		return hs.URL
	}
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	defer refusing.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	foreign := FrozenConfig{URL: lists(`{"object":"list","data":[{"id":"m","object":"model","max_model_len":40}]}`), Model: "m"}
	reserved := FrozenConfig{URL: lists(`{"data":[{"id":"m","weights_sha256":"evil"}]}`), Model: "m"}
	ours, near := FrozenConfig{URL: hs.URL, Model: "test"}, FrozenConfig{Folder: "x"}
	const silent = "cannot be compared"
	plays, teaches := Use{Key: "envs.e.policy", Tokens: 64, Temperature: 0.5}, Use{Key: "envs.e.teacher", Teaches: true, Tokens: 39, Temperature: 1}
	with := func(u Use, change func(*Use)) Use {
		change(&u)
		return u
	}
	for what, c := range map[string]struct {
		name      string
		section   FrozenConfig
		use       Use
		tokenizer []byte
		want      string // in the error; empty for none
		fatal     bool
		logged    string
	}{
		"the same":             {"far", ours, teaches, own, "", false, ""},
		"another tokenizer":    {"far", ours, plays, others, "frozen.far at " + hs.URL + ": it has another tokenizer", true, ""},
		"another model":        {"far", FrozenConfig{URL: hs.URL, Model: "m"}, plays, own, `frozen.far.model = "m": ` + hs.URL + " serves test", true, ""},
		"it does not say":      {"far", reserved, teaches, own, "", false, silent},
		"refused":              {"far", FrozenConfig{URL: refusing.URL, Model: "m"}, plays, own, "frozen.far: list", true, ""},
		"nobody there":         {"far", FrozenConfig{URL: gone.URL, Model: "m"}, plays, own, "frozen.far: list", false, ""},
		"no tokenizer.json":    {"far", ours, plays, []byte("{"), "tokenizer of the run", true, ""},
		"at home":              {"near", near, plays, own, "", false, ""},
		"at home, others":      {"near", near, plays, others, "frozen.near at the inference stage of this process: it has another", true, ""},
		"not at home":          {"away", near, plays, own, "frozen.away.folder: the inference stage of this process serves test, near: give", true, ""},
		"all positions":        {"near", near, with(teaches, func(u *Use) { u.Tokens = 48 }), own, "", false, ""},
		"too few positions":    {"near", near, with(teaches, func(u *Use) { u.Tokens = 49 }), own, `envs.e.teacher = "near": rollouts have up to 49 tokens (max_rollout_tokens), the inference stage of this process takes at most 48`, true, ""},
		"a token behind":       {"far", foreign, teaches, own, "", false, silent},
		"no token behind":      {"far", foreign, with(teaches, func(u *Use) { u.Tokens = 40 }), own, "takes at most 39", true, silent},
		"plays in a short one": {"far", foreign, plays, own, "takes at most 40", true, silent},
		"cooler teacher":       {"far", foreign, with(teaches, func(u *Use) { u.Temperature = 0.7 }), own, "rollouts are sampled at 0.7", true, silent},
		"our cooler teacher":   {"far", ours, with(teaches, func(u *Use) { u.Temperature = 0.7 }), own, "", false, ""},
	} {
		var log bytes.Buffer
		c.use.Policy = c.name
		d := NewDirectory(home, map[string]FrozenConfig{c.name: c.section}, []Use{c.use}, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})))
		err := d.Verify(t.Context(), c.tokenizer)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || errors.Is(err, pipeline.ErrFatal) != c.fatal {
			t.Errorf("%s: got %v, want %q, fatal: %v", what, err, c.want, c.fatal)
		}
		if (log.Len() > 0) != (c.logged != "") || !strings.Contains(log.String(), c.logged) {
			t.Errorf("%s: logged %q", what, &log)
		}
		d.Close()
	}
}

// host is a Host that answers its list.
type host struct {
	Model
	models func(ctx context.Context) ([]ModelCard, error)
}

func (h *host) Models(ctx context.Context) ([]ModelCard, error) { return h.models(ctx) }
func (h *host) String() string                                  { return "home" }

// A server that takes the question and never answers is given up in time, and asked again.
func TestVerifyEnds(t *testing.T) {
	_, tok := testModel(t, 0)
	own, err := tok.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		hung := &host{models: func(ctx context.Context) ([]ModelCard, error) {
			<-ctx.Done()
			return nil, fmt.Errorf("ask home: %w", ctx.Err())
		}}
		d := NewDirectory(hung, nil, []Use{{Policy: "near"}}, slog.New(slog.DiscardHandler))
		start := time.Now()
		err := d.Verify(t.Context(), own)
		if err == nil || errors.Is(err, pipeline.ErrFatal) || time.Since(start) != lookTimeout {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// Servers of policies that nothing names are not asked before somebody asks for one of them, and then once.
func TestUnusedPoliciesAreLookedAtLate(t *testing.T) {
	m, tok := testModel(t, 5)
	other, err := lm.NewTokenizer("abc")
	if err != nil {
		t.Fatal(err)
	}
	own, err := tok.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	section := folder(t, m, tok)
	inner, _ := serveFrozen(t, map[string]FrozenConfig{"old": section}, nil)
	lists := 0
	home := &host{Model: inner, models: func(ctx context.Context) ([]ModelCard, error) { lists++; return inner.Models(ctx) }}
	strange := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"data":[{"id":"m","renderer":%q}]}`, rendererOf(t, other).ID())
	}))
	defer strange.Close()
	d := NewDirectory(home, map[string]FrozenConfig{"old": section, "strange": {URL: strange.URL, Model: "m"}}, nil, slog.New(slog.DiscardHandler))
	defer d.Close()
	if err := d.Verify(t.Context(), own); err != nil || lists != 0 || d.Recorded("old") != "old" {
		t.Fatalf("%v, asked %d times, %q", err, lists, d.Recorded("old"))
	}
	for range 2 {
		if _, err := d.Generate(t.Context(), Request{Tokens: []int32{5}, MaxTokens: 1, Temperature: 1, Policy: "old"}); err != nil {
			t.Fatal(err)
		}
	}
	weights := must(os.ReadFile(filepath.Join(section.Folder, "model.safetensors")))
	if want := fmt.Sprintf("old@%.8s", fmt.Sprintf("%x", sha256.Sum256(weights))); lists != 1 || d.Recorded("old") != want {
		t.Errorf("asked %d times, recorded as %q, want %q", lists, d.Recorded("old"), want)
	}
	_, err = d.Probe(t.Context(), Probe{Tokens: []int32{5, 6}, Mask: []byte{0, 1}, Temperature: 1, Policy: "strange"})
	if err == nil || !strings.Contains(err.Error(), "another tokenizer") || Retryable(err) {
		t.Errorf("a policy with another tokenizer: %v", err)
	}
	if d.Server("strange") != strange.URL || d.Server("") != "home" {
		t.Errorf("servers %q, %q", d.Server("strange"), d.Server(""))
	}
}

// Close gives up connections, so that the other end sees them go.
func TestDirectoryCloses(t *testing.T) {
	var hs [2]*httptest.Server
	closed := make(chan int, 8)
	for i := range hs {
		hs[i] = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"data":[]}`) }))
		hs[i].Config.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed {
				closed <- i
			}
		}
		hs[i].Start()
		defer hs[i].Close()
	}
	d := NewDirectory(NewClient(hs[0].URL), map[string]FrozenConfig{"far": {URL: hs[1].URL, Model: "m"}}, nil, slog.New(slog.DiscardHandler))
	for _, policy := range []string{"", "far"} {
		host, _ := d.at(policy)
		if _, err := host.Models(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	d.Close()
	seen := map[int]bool{}
	for len(seen) < len(hs) {
		select {
		case i := <-closed:
			seen[i] = true
		case <-time.After(10 * time.Second):
			t.Fatalf("a connection is still open; closed are those to %v", seen)
		}
	}
}
