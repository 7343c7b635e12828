package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/inference"
)

// healthServers is what /readyz calls the servers that serve what is not pinned: not ready where none of them is good for
// anything. Where all are given a version, they are: requests are held meanwhile.
const healthServers = "inference servers"

// Backend is inference.Backend on servers of other makes.
type Backend struct {
	cfg     inference.Config
	longest int // tokens of a sequence, as configured
	rt      *pipeline.Runtime
	folders *folders
	home    *fleet // serves what is not pinned
	aside   *fleet // serves what is; nil where nothing is set aside

	mu      sync.Mutex
	newest  int64
	refused []int64 // versions that were put into their folders and not loaded: nobody unloads them
}

// New makes the backend that a configuration names. It does no I/O. dir is where weights are put unless the configuration
// says where.
func New(rt *pipeline.Runtime, cfg inference.Config, dir string) (*Backend, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	var d dialect
	switch cfg.Backend {
	case inference.BackendVLLM:
		d = vllm{}
	case inference.BackendSGLang:
		d = sglang{}
	case inference.BackendOpenAI:
		d = openAI{model: cfg.Model}
	default:
		return nil, fmt.Errorf("inference.backend = %q has no servers", cfg.Backend)
	}
	m, err := newMetrics(rt.Registry)
	if err != nil {
		return nil, fmt.Errorf("metrics of the servers beside inference: %w", err)
	}
	if cfg.Remote.Dir != "" {
		dir = cfg.Remote.Dir
	}
	if dir, err = filepath.Abs(filepath.Join(dir, rt.Run.Name+"-"+rt.Instance)); err != nil {
		return nil, fmt.Errorf("inference.remote.dir: %w", err)
	}
	onServers := ""
	if cfg.Remote.DirOnServers != "" {
		onServers = filepath.Join(cfg.Remote.DirOnServers, filepath.Base(dir))
	}
	b := &Backend{cfg: cfg, rt: rt, longest: cfg.MaxModelLen, newest: -1, folders: newFolders(rt.Run.Name, dir, onServers)}
	if b.longest == 0 {
		b.longest = rt.Run.SeqLen
	}
	b.home = newFleet(cfg.Remote, cfg.URLs, d, cfg.Backend == inference.BackendOpenAI, rt.Log, m)
	rt.Health.Set(healthServers, false)
	b.home.tell = func(alive bool) { rt.Health.Set(healthServers, alive) }
	if len(cfg.Remote.EvalURLs) > 0 {
		b.aside = newFleet(cfg.Remote, cfg.Remote.EvalURLs, d, false, rt.Log, m)
	}
	return b, nil
}

// Run implements inference.Backend.
func (b *Backend) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { b.home.run(ctx) })
	if b.aside != nil {
		wg.Go(func() { b.aside.run(ctx) })
	}
	wg.Wait()
	return nil
}

// Load implements inference.Backend. The newest version goes to the servers, and is ready when one of them holds it; others
// are kept in their folders for the servers set aside. What the servers do with a newest one that they cannot load, the one
// before cannot serve: its weights may be gone.
func (b *Backend) Load(ctx context.Context, p inference.Policy) error {
	if b.home.fixed {
		if p.Name == "" {
			return errors.New(`inference.backend = "openai" has a model that is not trained: it cannot be given policy versions`)
		}
		b.home.begin()
		return nil
	}
	if p.Name != "" {
		return fmt.Errorf("frozen.%s.folder: inference.backend = %q serves the policy that is trained only: give a frozen one a server of its own (frozen.%s.url)", p.Name, b.cfg.Backend, p.Name)
	}
	b.mu.Lock()
	newest := b.newest
	b.mu.Unlock()
	if p.Version < newest && b.aside == nil {
		return gone(p.Version, newest)
	}
	t, err := b.folders.put(p)
	if err != nil || p.Version < newest {
		return err
	}
	b.mu.Lock()
	b.newest = p.Version
	b.mu.Unlock()
	err = b.home.aim(ctx, &t)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, v := range b.refused {
		if v != p.Version {
			b.Unload(v)
		}
	}
	if b.refused = nil; err != nil {
		b.refused = []int64{p.Version}
	}
	return err
}

// Unload implements inference.Backend.
func (b *Backend) Unload(version int64) {
	if b.aside != nil {
		b.aside.forget(version)
	}
	if err := b.folders.remove(version); err != nil {
		b.rt.Log.Warn("the folder of an old policy version cannot be removed", "version", version, "error", err)
	}
}

// Limits implements inference.Backend.
func (b *Backend) Limits(string) (completed, probed int) {
	longest := b.home.longest()
	switch {
	case longest == 0 && b.home.fixed: // its servers need not say
		longest = b.longest
	case longest == 0:
		return 0, 0
	}
	longest = min(longest, b.longest)
	return longest, longest - 1 // a probe samples a token
}

// fleetFor is the servers that a request is for, which hold the version it is pinned to until release is called.
func (b *Backend) fleetFor(ctx context.Context, pin *int64) (f *fleet, release func(), err error) {
	if pin == nil || b.aside == nil {
		return b.home, func() {}, nil
	}
	t, ok := b.folders.of(*pin)
	if !ok {
		return nil, nil, fmt.Errorf("policy version %d is not in inference.remote.dir", *pin)
	}
	release, err = b.aside.hold(ctx, &t, time.Duration(b.cfg.Timeout))
	if err != nil {
		return nil, nil, unavailable(ctx, err)
	}
	return b.aside, release, nil
}

// Alive says whether a server is good for requests, now or when it has the version that it is given.
func (b *Backend) Alive() bool {
	b.home.mu.Lock()
	defer b.home.mu.Unlock()
	return b.home.alive()
}

// Generate implements inference.Generator.
func (b *Backend) Generate(ctx context.Context, r inference.Request) (inference.Completion, error) {
	longest, _ := b.Limits(r.Policy)
	if longest > 0 && len(r.Tokens) >= longest {
		return inference.Completion{}, tooLong("the prompt has %d tokens, which leaves no room in a context of %d", len(r.Tokens), longest)
	}
	if room := longest - len(r.Tokens); longest > 0 && (r.MaxTokens == 0 || r.MaxTokens > room) {
		r.MaxTokens = room
	}
	f, release, err := b.fleetFor(ctx, r.PinVersion)
	if err != nil {
		return inference.Completion{}, err
	}
	defer release()
	key := f.routes.key(r.Tokens)
	var c inference.Completion
	err = f.ask(ctx, key, r.PinVersion, func(ctx context.Context, s *server) error {
		a, err := f.make.generate(ctx, s.client, r)
		if err != nil {
			return err
		}
		if a, err = a.checked(r); err != nil {
			return err
		}
		c = inference.Completion{Tokens: a.tokens, Top: a.top, Cached: a.cached, FinishReason: a.finish}
		if a.prompt != nil && !slices.Equal(a.prompt, r.Tokens) {
			c.Prompt = a.prompt
		}
		for _, l := range a.logprobs {
			c.Logprobs = append(c.Logprobs, float32Of(l))
		}
		if f.fixed {
			return nil
		}
		if c.Versions, err = f.versions(a.spans, len(a.tokens)); err != nil {
			return err
		}
		return onlyBy(r.PinVersion, c.Versions)
	})
	if err != nil {
		return inference.Completion{}, err
	}
	f.routes.answered(key, r.Tokens, c.Tokens)
	return c, nil
}

// Probe implements inference.Prober.
func (b *Backend) Probe(ctx context.Context, p inference.Probe) ([]float32, error) {
	if p.Temperature != 1 {
		return nil, &inference.Error{Status: http.StatusBadRequest, Code: inference.CodeUnsupported, Message: fmt.Sprintf(
			"inference.backend = %q gives log-probabilities of given tokens at temperature 1 only, these were sampled at %g: sample at temperature 1", b.cfg.Backend, p.Temperature)}
	}
	needed := len(p.Tokens)
	for needed > 0 && p.Mask[needed-1] == 0 {
		needed--
	}
	logprobs := make([]float32, len(p.Tokens))
	if needed == 0 {
		return logprobs, nil
	}
	if _, longest := b.Limits(p.Policy); longest > 0 && needed > longest {
		return nil, tooLong("the sequence has %d tokens, a probe takes at most %d", needed, longest)
	}
	f, release, err := b.fleetFor(ctx, p.PinVersion)
	if err != nil {
		return nil, err
	}
	defer release()
	err = f.ask(ctx, f.routes.key(p.Tokens), p.PinVersion, func(ctx context.Context, s *server) error {
		all, spans, err := f.make.probe(ctx, s.client, p.Tokens[:needed])
		if err != nil {
			return err
		}
		for i, l := range all {
			if p.Mask[i] == 1 {
				logprobs[i] = l
			}
		}
		if f.fixed {
			return nil
		}
		runs, err := f.versions(spans, 1)
		if err != nil {
			return err
		}
		return onlyBy(p.PinVersion, runs)
	})
	if err != nil {
		return nil, err
	}
	return logprobs, nil
}

func tooLong(format string, args ...any) error {
	return &inference.Error{Status: http.StatusBadRequest, Code: inference.CodeTooLong, Message: fmt.Sprintf(format, args...)}
}
