package cleanup

import (
	"slices"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/eval"
	"github.com/prl-project/prl/stages/internal/weights"
)

// checkpoint is the version from which the trainer starts again: the newest with a checkpoint; nil before there is one.
func (k *known) checkpoint() *schemas.PolicyVersion {
	for _, v := range slices.Backward(k.versions) {
		if v.Checkpoint != nil {
			return v
		}
	}
	return nil
}

// kept are the blobs of policy versions that stay, with all that their weights are made from. Versions from pins are those
// that unfinished tasks name.
func (k *known) kept(cfg Config, evals map[string]eval.Config, pins []int64) []schemas.BlobRef {
	var refs []schemas.BlobRef
	if len(k.versions) == 0 {
		return nil
	}
	newest, restart, history := k.versions[len(k.versions)-1].Version, k.checkpoint(), weights.NewHistory(k.versions...)
	for _, v := range k.versions {
		refs = append(refs, v.Config, v.Tokenizer) // small, and the same for all
		forever := v == k.versions[0] || v.Final || cfg.KeepEvery > 0 && v.Version%cfg.KeepEvery == 0
		again := restart != nil && v.Version >= restart.Version
		if forever || again || v.Version > newest-cfg.KeepVersions || slices.Contains(pins, v.Version) || k.awaited(v, evals) {
			refs = append(refs, madeFrom(history, v)...)
		}
		if v.Checkpoint != nil && (forever || again) {
			refs = append(refs, *v.Checkpoint)
		}
	}
	return refs
}

// madeFrom are the blobs from which the weights of a version are made. A version of which nobody can make weights, as what
// it applies to is not among the records, has its own.
func madeFrom(history *weights.History, v *schemas.PolicyVersion) []schemas.BlobRef {
	chain, err := history.Chain(v)
	if err != nil {
		return []schemas.BlobRef{v.Weights}
	}
	var refs []schemas.BlobRef
	for _, link := range chain.Versions() {
		refs = append(refs, link.Weights)
	}
	return refs
}

// awaited reports whether an eval of a version is due and has no result yet.
func (k *known) awaited(v *schemas.PolicyVersion, evals map[string]eval.Config) bool {
	for name, e := range evals {
		if e.Due(v.Version, eval.End(v)) && !k.measured[measurement{name, v.Version}] {
			return true
		}
	}
	return false
}
