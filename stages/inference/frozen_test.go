package inference

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/internal/lm"
)

// folder saves a model as --stage all does and returns its section.
func folder(t testing.TB, m *lm.Model, tok *lm.Tokenizer) FrozenConfig {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	if err := lm.SaveFolder(dir, m, tok); err != nil {
		t.Fatal(err)
	}
	return FrozenConfig{Folder: dir}
}

// wider is a model of another shape with the tokenizer of the others.
func wider(t testing.TB) (*lm.Model, *lm.Tokenizer) {
	t.Helper()
	m, tok := testModel(t, 0)
	cfg := m.Config()
	cfg.HiddenSize, cfg.MaxPositionEmbeddings = 24, 48
	big, err := lm.New(cfg, 77)
	if err != nil {
		t.Fatal(err)
	}
	return big, tok
}

// TestFrozenPoliciesAreServed asks for frozen policies, two of the trained one's shape and one of another, beside it.
func TestFrozenPoliciesAreServed(t *testing.T) {
	same, tok := testModel(t, 5)
	twin, _ := testModel(t, 6)
	other, _ := wider(t)
	s, hs := serveFrozen(t, map[string]FrozenConfig{"teacher": folder(t, same, tok), "twin": folder(t, twin, tok), "large": folder(t, other, tok)}, nil)
	live, _ := testModel(t, 0)
	cl := NewClient(hs.URL)
	defer cl.Close()
	var wg sync.WaitGroup
	for i := range 48 {
		r := Request{Tokens: []int32{5, int32(i / 4), 11}, MaxTokens: 10, Temperature: 0.8, Seed: int64(i), StopTokens: []int32{tok.EOS()}}
		model, maxLen := live, 64
		switch i % 4 {
		case 0:
			r.Policy, model = "teacher", same
		case 1:
			r.Policy, model = "twin", twin
		case 2:
			r.Policy, model, maxLen = "large", other, 48
		}
		asked := Model(s)
		if i%5 == 0 {
			asked = cl
		}
		wg.Go(func() {
			got, err := asked.Generate(t.Context(), r)
			if err != nil {
				t.Error(err)
				return
			}
			want := alone(t, r, maxLen, []*lm.Model{model}, []int64{0}, []int{0})
			if r.Policy != "" {
				want.Versions = nil
			}
			sameBits(t, r.Policy, got, want)
		})
	}
	wg.Wait()
	for range 5 { // newer versions come and go, and change nothing
		publish(t, s, store(t, s.rt, testPolicy(t, s.backend.(*native).newest+1)))
	}
	r := Request{Tokens: []int32{5}, MaxTokens: 4, Temperature: 1, Policy: "teacher"}
	got, err := s.Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	want := alone(t, r, 64, []*lm.Model{same}, []int64{0}, []int{0})
	want.Versions = nil
	sameBits(t, "after newer versions", got, want)
}

func TestFrozenPoliciesByName(t *testing.T) {
	m, tok := wider(t)
	_, hs := serveFrozen(t, map[string]FrozenConfig{"teacher": folder(t, m, tok)}, nil)
	status, data := post(t, hs.URL+pathGenerate, `{"model":"teacher","token_ids":[5],"sampling_params":{"max_tokens":1}}`)
	if c := decode[generateReply](t, data).Choices; status != http.StatusOK || len(c[0].Versions) != 0 {
		t.Errorf("%d %s", status, data)
	}
	status, data = post(t, hs.URL+"/v1/chat/completions", `{"model":"teacher","messages":[{"role":"user","content":"a"}],"max_tokens":1}`)
	if got := decode[textReply[chatChoice]](t, data); status != http.StatusOK || got.Model != "teacher" {
		t.Errorf("%d %s", status, data)
	}
	for body, want := range map[string]string{
		`{"model":"student","token_ids":[5]}`:                 `model "student" is not served here: test, teacher are`,
		`{"model":"teacher","token_ids":[5],"pin_version":0}`: `the frozen policy "teacher" has no versions`,
	} {
		status, data := post(t, hs.URL+pathGenerate, body)
		if got := decode[errorReply](t, data).Error; status < 400 || status >= 500 || !strings.Contains(got.Message, want) {
			t.Errorf("%s: %d %s", body, status, data)
		}
	}
	resp, err := http.Get(hs.URL + pathModels)
	if err != nil {
		t.Fatal(err)
	}
	_, data = reply(t, resp)
	if got := decode[modelList](t, data).Data; len(got) != 2 || got[1].ID != "teacher" || got[1].Renderer != got[0].Renderer ||
		got[0].Weights != "" || len(got[1].Weights) != 64 || got[1].MaxModelLen != 48 || got[1].MaxProbeLen != 48 {
		t.Errorf("models %s", data)
	}
}

// TestFrozenFolderIsRefused starts a server with a folder that has one fault.
func TestFrozenFolderIsRefused(t *testing.T) {
	m, tok := testModel(t, 5)
	other, err := lm.NewTokenizer(strings.ToUpper(alphabet[:26]) + alphabet[26:])
	if err != nil {
		t.Fatal(err)
	}
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for what, c := range map[string]struct {
		tok   *lm.Tokenizer
		spoil func(t *testing.T, dir string)
		want  string
	}{
		"no folder":    {tok, func(t *testing.T, dir string) { must(0, os.RemoveAll(dir)) }, "there is no such folder"},
		"no config":    {tok, remove("config.json"), "it has no config.json"},
		"no tokenizer": {tok, remove("tokenizer.json"), "it has no tokenizer.json"},
		"no weights":   {tok, remove("model.safetensors"), "it has no model.safetensors"},
		"a pickle": {tok, func(t *testing.T, dir string) {
			must(0, os.WriteFile(filepath.Join(dir, "model.safetensors"), []byte("\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix"), 0o644))
		}, "safetensors"},
		"another tokenizer": {other, func(*testing.T, string) {}, "another tokenizer"},
	} {
		t.Run(what, func(t *testing.T) {
			section := folder(t, m, c.tok)
			c.spoil(t, section.Folder)
			rt := testRuntime(t, t.TempDir())
			s, err := New(rt, testConfig(), map[string]FrozenConfig{"teacher": section})
			if err != nil {
				t.Fatal(err)
			}
			if err = s.loadFrozen(t.Context()); err == nil {
				err = s.publish(t.Context(), []pipeline.Record{{Value: store(t, rt, testPolicy(t, 0))}})
			}
			if !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "teacher") {
				t.Errorf("got %v, want a fatal error with %q", err, c.want)
			}
		})
	}
}

// The tokenizer is compared in whatever order the two come.
func TestFrozenTokenizerAfterTheTrainedOne(t *testing.T) {
	s, _ := serve(t, nil)
	other, err := lm.NewTokenizer(alphabet[1:] + alphabet[:1])
	if err != nil {
		t.Fatal(err)
	}
	m, _ := testModel(t, 1)
	p := policyOf(t, 0, m, other)
	p.Name = "teacher"
	if err := s.install(t.Context(), p); !errors.Is(err, errTokenizer) {
		t.Errorf("got %v", err)
	}
	if most, _ := s.backend.Limits("teacher"); most != 0 {
		t.Error("it is served all the same")
	}
}

func TestRequestsForFrozenPoliciesWaitForThem(t *testing.T) {
	m, tok := testModel(t, 5)
	s, err := New(testRuntime(t, t.TempDir()), testConfig(), map[string]FrozenConfig{"teacher": folder(t, m, tok)})
	if err != nil {
		t.Fatal(err)
	}
	runBackend(t, s.backend)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := Request{Tokens: []int32{5}, MaxTokens: 1, Temperature: 1, Policy: "teacher"}
	if _, err := s.Generate(ctx, r); !errors.Is(err, context.Canceled) {
		t.Errorf("before it is loaded: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := s.Generate(t.Context(), r)
		done <- err
	}()
	if err := s.loadFrozen(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestFrozenConfig(t *testing.T) {
	for want, sections := range map[string]map[string]FrozenConfig{
		"":                                  {"a": {Folder: "x"}, "b-2": {URL: "http://h:1", Model: "m"}},
		"frozen.self: the name stands for":  {"self": {Folder: "x"}},
		"frozen.a b: the name of":           {"a b": {Folder: "x"}},
		"frozen.a: either folder":           {"a": {}},
		"frozen.b: either folder":           {"b": {Folder: "x", URL: "http://h", Model: "m"}},
		"frozen.a.folder: model and token":  {"a": {Folder: "x", Model: "m"}},
		"frozen.a.model: the name of":       {"a": {URL: "http://h"}},
		`frozen.a.url = "ftp://h"`:          {"a": {URL: "ftp://h", Model: "m"}},
		"frozen.test: the policy that is t": {"test": {Folder: "x"}},
	} {
		_, err := New(testRuntime(t, t.TempDir()), testConfig(), sections)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", sections, err, want)
		}
	}
}
