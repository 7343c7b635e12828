package remote

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/internal/lm"
	"github.com/prl-project/prl/stages/internal/standin"
)

// TestRealServers runs against a server whose URL PRL_TEST_VLLM_URL or PRL_TEST_SGLANG_URL names, started (see the package
// comment) on the Hugging Face folder PRL_TEST_MODEL, with its weights in one model.safetensors. PRL_TEST_DIR is a folder that
// the server sees under the same path. Every version has the weights of that folder.
func TestRealServers(t *testing.T) {
	for backend, variable := range map[string]string{inference.BackendVLLM: "PRL_TEST_VLLM_URL", inference.BackendSGLang: "PRL_TEST_SGLANG_URL"} {
		t.Run(backend, func(t *testing.T) {
			url, dir := os.Getenv(variable), os.Getenv("PRL_TEST_DIR")
			if url == "" {
				t.Skipf("%s names no server", variable)
			}
			if dir == "" {
				dir = t.TempDir()
			}
			var p inference.Policy
			for name, to := range map[string]*[]byte{"config.json": &p.Config, "tokenizer.json": &p.Tokenizer, "model.safetensors": &p.Weights} {
				data, err := os.ReadFile(filepath.Join(os.Getenv("PRL_TEST_MODEL"), name))
				if err != nil {
					t.Fatalf("PRL_TEST_MODEL: %v", err)
				}
				*to = data
			}
			conforms(t, backend, url, dir, 0.1, func(version int64) inference.Policy {
				p.Version = version
				return p
			})
		})
	}
}

// TestStandinsConform holds the stand-ins to what real servers are held to.
func TestStandinsConform(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		conforms(t, backend, start(t, base(t)).URL, t.TempDir(), 1e-4, func(version int64) inference.Policy { return policy(t, version) })
	})
}

// conforms is what holds of a server of whatever weights. tolerance is of log-probabilities that are computed in two ways.
func conforms(t *testing.T, backend, url, dir string, tolerance float64, policyOf func(version int64) inference.Policy) {
	cfg := config(backend, url)
	cfg.Remote.HealthInterval = pipeline.Duration(time.Second)
	b := runIn(t, cfg, dir)
	if err := b.Load(soon(t), policyOf(0)); err != nil {
		t.Fatal(err)
	}
	r := inference.Request{Tokens: []int32{5, 9, 12, 7}, MaxTokens: 8, Temperature: 1, Seed: 3, TopLogprobs: 2}
	c, err := b.Generate(soon(t), r)
	if err != nil {
		t.Fatal(err)
	}
	by(t, c, from(0, 0))
	if len(c.Tokens) != 8 || c.FinishReason != inference.FinishLength || len(c.Top) != 8 || len(c.Top[0]) != 2 {
		t.Errorf("%d tokens, finish %q, %d lists of probable tokens", len(c.Tokens), c.FinishReason, len(c.Top))
	}
	all := append(slices.Clone(r.Tokens), c.Tokens...)
	p := inference.Probe{Tokens: all, Mask: slices.Repeat([]byte{1}, len(all)), Temperature: 1, PinVersion: pin(0)}
	p.Mask[0] = 0
	logprobs, err := b.Probe(soon(t), p)
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range c.Logprobs {
		if d := math.Abs(float64(l - logprobs[len(r.Tokens)+i])); d > tolerance {
			t.Errorf("token %d has the log-probability %g where it is sampled, %g where it is probed", i, l, logprobs[len(r.Tokens)+i])
		}
	}
	greedy := inference.Request{Tokens: r.Tokens, MaxTokens: 6}
	if c, err = b.Generate(soon(t), greedy); err != nil {
		t.Fatal(err)
	}
	greedy.StopTokens = c.Tokens[2:3]
	if c, err = b.Generate(soon(t), greedy); err != nil || c.FinishReason != inference.FinishStop || c.Tokens[len(c.Tokens)-1] != greedy.StopTokens[0] {
		t.Errorf("with a stop token: %+v, %v", c, err)
	}
	long := begin(t, b, inference.Request{Tokens: r.Tokens, MaxTokens: 50, Temperature: 1, Seed: 4})
	if err := b.Load(soon(t), policyOf(1)); err != nil {
		t.Fatal(err)
	}
	swapped := <-long
	if swapped.err != nil {
		t.Fatal(swapped.err)
	}
	for i, v := range swapped.Versions {
		if v.Version > 1 || i > 0 && v.Version <= swapped.Versions[i-1].Version {
			t.Errorf("versions %v over a change of weights", swapped.Versions)
		}
	}
	if c, err = b.Generate(soon(t), r); err != nil {
		t.Fatal(err)
	}
	by(t, c, from(0, 1))
}
