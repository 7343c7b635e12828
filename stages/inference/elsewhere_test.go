package inference

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

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
	}, slog.New(slog.DiscardHandler))
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

func TestVerify(t *testing.T) {
	_, tok := testModel(t, 0)
	_, hs := serve(t, nil)
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
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
	}))
	defer silent.Close()
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	defer refusing.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	for what, c := range map[string]struct {
		section   FrozenConfig
		tokenizer []byte
		want      string // in the error; empty for none
		fatal     bool
		logged    string
	}{
		"the same":           {FrozenConfig{URL: hs.URL, Model: "test"}, own, "", false, ""},
		"another tokenizer":  {FrozenConfig{URL: hs.URL, Model: "test"}, others, "frozen.far: it has another tokenizer", true, ""},
		"another model":      {FrozenConfig{URL: hs.URL, Model: "m"}, own, `frozen.far.model = "m": ` + hs.URL + " serves test", true, ""},
		"it does not say":    {FrozenConfig{URL: silent.URL, Model: "m"}, own, "", false, "cannot be compared"},
		"refused":            {FrozenConfig{URL: refusing.URL, Model: "m"}, own, "frozen.far.url", true, ""},
		"nobody there":       {FrozenConfig{URL: gone.URL, Model: "m"}, own, "frozen.far.url", false, ""},
		"no tokenizer.json":  {FrozenConfig{URL: hs.URL, Model: "test"}, []byte("{"), "tokenizer of the run", true, ""},
		"a folder, not here": {FrozenConfig{Folder: "x"}, others, "", false, ""},
	} {
		var log bytes.Buffer
		d := NewDirectory(nil, map[string]FrozenConfig{"far": c.section}, slog.New(slog.NewTextHandler(&log, nil)))
		err := d.Verify(t.Context(), c.tokenizer)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || errors.Is(err, pipeline.ErrFatal) != c.fatal {
			t.Errorf("%s: got %v, want %q, fatal: %v", what, err, c.want, c.fatal)
		}
		if (log.Len() > 0) != (c.logged != "") || !strings.Contains(log.String(), c.logged) {
			t.Errorf("%s: logged %q", what, &log)
		}
	}
}
