package inference

import (
	"bytes"
	"context"
	"sync"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/weights"
)

// load brings a version from the blob store to the backend: whole, also where its record names a delta or an adapter.
func (s *Server) load(ctx context.Context, v *schemas.PolicyVersion) error {
	p, whole, err := s.loader.policy(ctx, v)
	if err != nil {
		return err
	}
	if err := s.install(ctx, p); err != nil {
		return err
	}
	s.loader.keep(whole, v.Version)
	s.rt.Log.Debug("policy version loaded", "version", v.Version, "kind", v.Kind, "sha256", v.WeightsSHA256())
	return nil
}

// A loader makes policies of published versions. The bytes are those whose SHA-256 the record names: of a delta the whole
// weights that it gives; of an adapter its own and those of the weights that it is merged into.
//
// It keeps the whole weights of one version in memory, the newest that was loaded, once a run has published deltas or
// adapters, so that the next needs nothing but its own blob. Without them, as at a start, the chain of versions is read from
// the blob store.
type loader struct {
	store weights.Store
	limit int // bytes of weights that are kept

	mu      sync.Mutex
	history *weights.History
	kept    weights.Held // empty where none are
	keptFor int64        // the version that was loaded with them
}

func newLoader(store weights.Store, keepMiB int) *loader {
	return &loader{store: store, limit: keepMiB << 20, history: weights.NewHistory()}
}

// publish makes versions known: what later ones apply to.
func (l *loader) publish(versions ...*schemas.PolicyVersion) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.history.Add(versions...)
}

// policy reads a version, and gives the whole weights that may be kept for the next once nobody uses the policy's.
func (l *loader) policy(ctx context.Context, v *schemas.PolicyVersion) (p Policy, whole weights.Held, err error) {
	chain, kept, keptFor, err := l.begin(v)
	if err != nil {
		return p, whole, err
	}
	whole, used, err := chain.Read(ctx, l.store, kept)
	if !used {
		l.keep(kept, keptFor)
	}
	if err != nil {
		return p, whole, err
	}
	p = Policy{Version: v.Version, Weights: whole.Bytes}
	if chain.Adapter != nil {
		if p.Weights, err = l.merged(ctx, chain.Adapter, whole.Bytes); err != nil {
			l.keep(whole, v.Version)
			return p, whole, err
		}
	}
	if p.Config, err = l.store.Get(ctx, v.Config); err != nil {
		return p, whole, err
	}
	p.Tokenizer, err = l.store.Get(ctx, v.Tokenizer)
	return p, whole, err
}

// begin finds what a version is made from, and takes the weights that are kept: nobody else changes them meanwhile.
func (l *loader) begin(v *schemas.PolicyVersion) (chain weights.Chain, kept weights.Held, keptFor int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if chain, err = l.history.Chain(v); err != nil {
		return chain, kept, keptFor, err
	}
	kept, l.kept = l.kept, weights.Held{}
	return chain, kept, l.keptFor, nil
}

// keep keeps the whole weights with which a version was loaded for the next one, where there may be one that applies to them,
// they are not too large, and none of a newer version are kept.
func (l *loader) keep(whole weights.Held, version int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(whole.Bytes) == 0 || len(whole.Bytes) > l.limit || !l.history.Based() || l.kept.Bytes != nil && version < l.keptFor {
		return
	}
	l.kept, l.keptFor = whole, version
}

// merged puts the adapter of a version into a copy of the weights that it is for.
func (l *loader) merged(ctx context.Context, v *schemas.PolicyVersion, whole []byte) ([]byte, error) {
	adapter, err := l.store.Get(ctx, v.Weights)
	if err != nil {
		return nil, err
	}
	whole = bytes.Clone(whole)
	return whole, weights.Merge(whole, adapter)
}
