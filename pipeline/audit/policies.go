package audit

import (
	"context"
	"slices"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// policies is the log of the policy versions.
type policies struct {
	list   []*schemas.PolicyVersion
	refs   []pipeline.Ref
	newest int64        // version that sampled a token
	seen   pipeline.Ref // of such a token
}

func (p *policies) sampled(version int64, ref pipeline.Ref) {
	if version >= p.newest {
		p.newest, p.seen = version, ref
	}
}

// branched reports whether the run began with a version of another one.
func (p *policies) branched() bool { return len(p.list) > 0 && p.list[0].FromRun != "" }

// before is the last step that was made before the run began: of another run, or 0.
func (p *policies) before() int64 {
	if p.branched() {
		return p.list[0].Step
	}
	return 0
}

// policy holds a version against the one before it.
func (a *auditor) policy(r record, v *schemas.PolicyVersion) {
	if r.Injected {
		return
	}
	p := &a.policies
	want := int64(0)
	switch {
	case len(p.list) > 0:
		want = p.list[len(p.list)-1].Version + 1
	case v.FromRun != "": // the run began with a version of another one
		want = v.Version
	}
	if v.Version != want {
		a.violate(TrainedOnce, "%v is version %d, version %d must come: the log has a gap or a fork", r.Ref, v.Version, want)
	}
	if len(p.list) > 0 && v.FromRun != "" {
		a.violate(TrainedOnce, "%v: version %d is said to be of run %s, and is not the first", r.Ref, v.Version, v.FromRun)
	}
	if v.Step != v.Version {
		a.violate(TrainedOnce, "%v: version %d was made by step %d", r.Ref, v.Version, v.Step)
	}
	if n := len(p.list); n > 0 {
		last := p.list[n-1]
		if last.Final {
			a.violate(TrainedOnce, "%v: version %d comes after the final one", r.Ref, v.Version)
		}
		if v.Skipped && v.WeightsSHA256() != last.WeightsSHA256() {
			a.violate(TrainedOnce, "%v: version %d made no update and has other weights than version %d", r.Ref, v.Version, last.Version)
		}
	}
	if v.Final != (v.Version == a.run.MaxSteps) {
		a.violate(TrainedOnce, "%v: version %d of %d has final = %v", r.Ref, v.Version, a.run.MaxSteps, v.Final)
	}
	a.checkBase(r.Ref, v)
	for _, b := range blobsOf(v) {
		if b.URI == "" || len(b.SHA256) != 64 || b.Bytes < 0 {
			a.violate(TrainedOnce, "%v: version %d names a blob %q of %d bytes with SHA-256 %q", r.Ref, v.Version, b.URI, b.Bytes, b.SHA256)
		}
	}
	p.list, p.refs = append(p.list, v), append(p.refs, r.Ref)
}

func (a *auditor) checkBase(ref pipeline.Ref, v *schemas.PolicyVersion) {
	known := slices.ContainsFunc(a.policies.list, func(b *schemas.PolicyVersion) bool {
		return b.Kind != schemas.KindLoRA && b.WeightsSHA256() == v.BaseSHA256
	})
	switch v.Kind {
	case schemas.KindFull:
		if v.BaseSHA256 != "" {
			a.violate(TrainedOnce, "%v: version %d is full and has the base %s", ref, v.Version, v.BaseSHA256)
		}
	case schemas.KindDelta, schemas.KindLoRA:
		if !known {
			a.violate(TrainedOnce, "%v: version %d is a %s of %q, which no version before it has", ref, v.Version, v.Kind, v.BaseSHA256)
		}
	default:
		a.violate(TrainedOnce, "%v: version %d is of kind %q", ref, v.Version, v.Kind)
	}
}

// checkPolicies holds the versions against the batches and the traces.
func (a *auditor) checkPolicies() {
	p := &a.policies
	a.report.Versions = int64(len(p.list))
	for i, v := range p.list {
		if len(v.NextOffsets) != a.run.Ranks {
			a.violate(TrainedOnce, "%v: version %d holds the offsets of %d ranks of %d", p.refs[i], v.Version, len(v.NextOffsets), a.run.Ranks)
			continue
		}
		for rank, next := range v.NextOffsets {
			want := int64(0)
			if end := a.ranks[int32(rank)]; end != nil {
				want = end.ends[v.Step]
			}
			if v.Step > 0 && v.FromRun == "" && want == 0 {
				a.violate(TrainedOnce, "%v: version %d was made by a step that is not in the batches of rank %d", p.refs[i], v.Version, rank)
			} else if next != want {
				a.violate(TrainedOnce, "%v: version %d goes on at offset %d of rank %d, its step ends at %d", p.refs[i], v.Version, next, rank, want)
			}
		}
	}
	newest := int64(-1)
	if n := len(p.list); n > 0 {
		newest = p.list[n-1].Version
	}
	if p.newest > newest && p.seen.Topic != "" {
		a.violate(Staleness, "%v was sampled by version %d, the newest is %d", p.seen, p.newest, newest)
	}
	if !a.cfg.Ended {
		return
	}
	if n := len(p.list); n == 0 || !p.list[n-1].Final {
		a.violate(TrainedOnce, "the run has ended, and none of its %d versions is final", n)
	}
}

// blobsOf lists the blobs a version names.
func blobsOf(v *schemas.PolicyVersion) []schemas.BlobRef {
	refs := []schemas.BlobRef{v.Weights, v.Config, v.Tokenizer}
	if v.Checkpoint != nil {
		refs = append(refs, *v.Checkpoint)
	}
	return refs
}

// checkBlobs reads every blob that a version names.
func (a *auditor) checkBlobs(ctx context.Context, store *pipeline.Blobs) error {
	read := map[schemas.BlobRef]bool{}
	for i, v := range a.policies.list {
		for _, b := range blobsOf(v) {
			if read[b] {
				continue
			}
			read[b] = true
			_, err := store.Get(ctx, b)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				a.violate(TrainedOnce, "%v: version %d: %v", a.policies.refs[i], v.Version, err)
			}
		}
	}
	return nil
}
