package remote

import (
	"context"
	"math"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/internal/lm"
	"github.com/prl-project/prl/stages/internal/standin"
)

// TestAFrozenPolicyOnVLLM: what asks a section [frozen.<name>] with a url understands vLLM.
func TestAFrozenPolicyOnVLLM(t *testing.T) {
	m, _ := model(t, 3)
	c := inference.NewClient(standin.NewVLLM(t, m).URL)
	defer c.Close()
	r := request(1, 5)
	r.Policy = "served"
	got, err := c.Generate(soon(t), r)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range scores(t, 3, r.Tokens, got.Tokens, r.Temperature) {
		if math.Abs(float64(want-got.Logprobs[i])) > 1e-4 {
			t.Errorf("log-probability %d is %g, want %g", i, got.Logprobs[i], want)
		}
	}
	if _, err := c.Probe(soon(t), inference.Probe{Tokens: []int32{3, 4, 5}, Mask: []byte{0, 1, 1}, Temperature: 1, Policy: "served"}); err != nil {
		t.Error(err)
	}
}

// TestAFixedModel is the stage on a server with OpenAI's API: it serves the model as a frozen policy, over the HTTP that
// others expect of a section [frozen.<name>], and takes no weights.
func TestAFixedModel(t *testing.T) {
	m, tok := model(t, 3)
	folder := filepath.Join(t.TempDir(), "model")
	if err := lm.SaveFolder(folder, m, tok); err != nil {
		t.Fatal(err)
	}
	cfg := config(inference.BackendOpenAI, standin.NewVLLM(t, m).URL)
	cfg.Model, cfg.Remote.Tokenizer, cfg.Listen = "served", folder, "localhost:0"
	rt := runtime(t)
	rt.Health = &pipeline.Health{}
	b, err := New(rt, cfg, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s, err := inference.NewFixed(rt, cfg, b)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	<-s.Listening()
	c := inference.NewClient("http://" + s.Addr().String())
	defer c.Close()
	cards, err := c.Models(soon(t))
	if err != nil || len(cards) != 1 || cards[0].ID != "served" || cards[0].Renderer == "" {
		t.Fatalf("models %+v, %v", cards, err)
	}
	r := request(1, 5)
	r.Policy = "served"
	got, err := c.Generate(soon(t), r)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + s.Addr().String() + "/health")
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode != http.StatusOK {
		t.Errorf("health: %s", resp.Status)
	}
	if len(got.Tokens) != 5 || len(got.Versions) != 0 {
		t.Errorf("%d tokens, versions %v", len(got.Tokens), got.Versions)
	}
	want := scores(t, 3, r.Tokens, got.Tokens, r.Temperature)
	for i := range want {
		if math.Abs(float64(want[i]-got.Logprobs[i])) > 1e-4 {
			t.Errorf("log-probability %d is %g, want %g", i, got.Logprobs[i], want[i])
		}
	}
	all := append(append([]int32{}, r.Tokens...), got.Tokens...)
	mask := make([]byte, len(all))
	mask[len(all)-1] = 1
	logprobs, err := c.Probe(soon(t), inference.Probe{Tokens: all, Mask: mask, Temperature: 1, Policy: "served"})
	if last := scores(t, 3, r.Tokens, got.Tokens, 1)[4]; err != nil || math.Abs(float64(logprobs[len(all)-1]-last)) > 1e-4 {
		t.Errorf("probe: %v, %v; want %g at the end", logprobs, err, last)
	}
	if _, err := c.Generate(soon(t), inference.Request{Tokens: r.Tokens, Temperature: 1, Policy: "other"}); !coded(err, inference.CodeNoModel) {
		t.Errorf("another model: %v", err)
	}
	if err := b.Load(soon(t), policy(t, 0)); err == nil || !strings.Contains(err.Error(), "not trained") {
		t.Errorf("weights for a fixed model: %v", err)
	}
}
