package inference

import (
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prl-project/prl/pipeline"
)

// What can serve the policy: inference.backend.
const (
	BackendNative = "native" // this process, on the CPU
	BackendVLLM   = "vllm"   // vLLM servers beside this process
	BackendSGLang = "sglang" // SGLang servers beside this process
	BackendOpenAI = "openai" // servers with OpenAI's API, of a model that nobody trains
)

// What becomes of requests that run when a server gets new weights: inference.remote.swap.
const (
	SwapKeep   = "keep"   // they are frozen and go on under the new ones, their keys and values computed again
	SwapFinish = "finish" // they end under the old ones; new requests wait
)

// RemoteConfig is the section [inference.remote]: how the servers of inference.urls are led. It does nothing with the native
// backend. A server belongs to one inference stage: two beside it would take it from each other with every version.
//
// The stage has the weights of a version whole in memory while it writes them to Dir, beside those of the version before until
// these are collected: its machine needs twice their size, and four times where versions are adapters, which are merged in a
// copy. With GOMEMLIMIT set it is half of that.
type RemoteConfig struct {
	// Token is sent to the servers as bearer token; empty for none. Give it in PRL__INFERENCE__REMOTE__TOKEN.
	Token pipeline.Secret `toml:"token"`
	// Dir is where weights are put for the servers, as Hugging Face folders; empty is the folder "served" of the run. There
	// are never more than inference.versions of them, and one that is written.
	Dir string `toml:"dir"`
	// DirOnServers is Dir as the servers see it, where they have it under another path; empty is the same path.
	DirOnServers string `toml:"dir_on_servers"`
	// Tokenizer is the folder with the tokenizer.json of the model, with backend = "openai" only; the tokenizers of others come
	// with the policy.
	Tokenizer string `toml:"tokenizer"`
	// Swap is what becomes of running requests when a server gets new weights: "keep" or "finish".
	Swap string `toml:"swap"`
	// EvalURLs are servers set aside for requests that are pinned to a version, as those of evals are. They hold one version
	// at a time, too, and change it when no request needs it any more.
	EvalURLs []string `toml:"eval_urls"`
	// HealthInterval is how often a server is looked at: whether it is healthy and holds the version it should.
	HealthInterval pipeline.Duration `toml:"health_interval"`
	// HealthTimeout bounds such a look, and every other call that does no work.
	HealthTimeout pipeline.Duration `toml:"health_timeout"`
	// HealthFailures is after how many failed looks in a row a server gets no more requests and those it has go elsewhere.
	// One look is enough after a request has failed there, or where the weights are not those it should have.
	HealthFailures int `toml:"health_failures"`
	// DrainTimeout is how long running requests may take to end before new weights are loaded (swap = "finish"); then they are
	// kept.
	DrainTimeout pipeline.Duration `toml:"drain_timeout"`
	// LoadTimeout bounds a change of weights: from the pause to the first request.
	LoadTimeout pipeline.Duration `toml:"load_timeout"`
	// Patience is how long a request waits for a server while none can answer. Where that is because they are given new weights
	// it waits until they have them, or inference.timeout is over.
	Patience pipeline.Duration `toml:"patience"`
	// Attempts is how often a request is sent, each time to another server where there is one.
	Attempts int `toml:"attempts"`
	// Overload is how many times the mean load a server may have before the conversations that belong to it go to the one with
	// the least.
	Overload float64 `toml:"overload"`
}

// DefaultRemoteConfig keeps requests over new weights, as the native backend does.
func DefaultRemoteConfig() RemoteConfig {
	return RemoteConfig{
		Swap: SwapKeep, HealthInterval: pipeline.Duration(2 * time.Second), HealthTimeout: pipeline.Duration(20 * time.Second), HealthFailures: 3,
		DrainTimeout: pipeline.Duration(10 * time.Minute), LoadTimeout: pipeline.Duration(10 * time.Minute), Patience: pipeline.Duration(5 * time.Minute),
		Attempts: 4, Overload: 1.5,
	}
}

// Native says whether this process samples itself.
func (c Config) Native() bool { return c.Backend == BackendNative }

// OneVersion says whether only the newest version can be asked.
func (c Config) OneVersion() bool { return !c.Native() && len(c.Remote.EvalURLs) == 0 }

// validateBackend checks what has to do with servers of other makes.
func (c Config) validateBackend() error {
	makes := []string{BackendNative, BackendVLLM, BackendSGLang, BackendOpenAI}
	if !slices.Contains(makes, c.Backend) {
		return fmt.Errorf("inference.backend = %q: one of %v", c.Backend, makes)
	}
	if c.Native() {
		if len(c.URLs) > 0 || len(c.Remote.EvalURLs) > 0 {
			return fmt.Errorf("inference.urls are of servers of another make: set inference.backend (--backend vllm), which is %q, or leave the urls out", c.Backend)
		}
		return nil
	}
	if len(c.URLs) == 0 {
		return fmt.Errorf("inference.backend = %q without inference.urls: name its servers (--url http://localhost:8000)", c.Backend)
	}
	seen := map[string]bool{}
	for _, list := range []struct {
		key  string
		urls []string
	}{{"inference.urls", c.URLs}, {"inference.remote.eval_urls", c.Remote.EvalURLs}} {
		for _, s := range list.urls {
			u, err := url.Parse(s)
			switch {
			case err == nil && u.User != nil:
				return fmt.Errorf("%s: %s has a password in it: it goes to inference.remote.token", list.key, u.Redacted())
			case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
				return fmt.Errorf("%s has %q: a URL such as http://localhost:8000", list.key, s)
			}
			root := u.Host + strings.TrimRight(u.Path, "/")
			if seen[root] {
				return fmt.Errorf("%s: %s is named twice", list.key, s)
			}
			seen[root] = true
		}
	}
	return c.Remote.validate(c)
}

func (r RemoteConfig) validate(c Config) error {
	const section = "inference.remote."
	switch {
	case c.Backend == BackendOpenAI && len(r.EvalURLs) > 0:
		return fmt.Errorf("%seval_urls: the model of inference.backend = %q has no versions", section, c.Backend)
	case c.Backend == BackendOpenAI && c.Model == "":
		return fmt.Errorf("inference.model is empty: with inference.backend = %q it is the name of the model at its servers", c.Backend)
	case (c.Backend == BackendOpenAI) != (r.Tokenizer != ""):
		return fmt.Errorf("%stokenizer = %q with inference.backend = %q: the folder with the model's tokenizer.json where that is %q, and nothing otherwise", section, r.Tokenizer, c.Backend, BackendOpenAI)
	case r.Swap != SwapFinish && r.Swap != SwapKeep:
		return fmt.Errorf("%sswap = %q: %q or %q", section, r.Swap, SwapKeep, SwapFinish)
	case r.DirOnServers != "" && r.Dir == "":
		return fmt.Errorf("%sdir_on_servers = %q without dir: say where that is on this machine", section, r.DirOnServers)
	case r.DirOnServers != "" && !filepath.IsAbs(r.DirOnServers):
		return fmt.Errorf("%sdir_on_servers = %q: an absolute path", section, r.DirOnServers)
	case r.HealthFailures < 1:
		return fmt.Errorf("%shealth_failures = %d: at least 1", section, r.HealthFailures)
	case r.Attempts < 1:
		return fmt.Errorf("%sattempts = %d: at least 1", section, r.Attempts)
	case !(r.Overload >= 1):
		return fmt.Errorf("%soverload = %g: at least 1, the mean load", section, r.Overload)
	}
	for _, d := range []struct {
		key string
		of  pipeline.Duration
	}{
		{"health_interval", r.HealthInterval}, {"health_timeout", r.HealthTimeout}, {"drain_timeout", r.DrainTimeout},
		{"load_timeout", r.LoadTimeout}, {"patience", r.Patience},
	} {
		if d.of <= 0 {
			return fmt.Errorf("%s%s = %v: must be positive, e.g. \"10s\"", section, d.key, d.of)
		}
	}
	return nil
}
