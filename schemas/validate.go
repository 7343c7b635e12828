package schemas

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
)

// Validate checks that the message graph is a forest and that its tensors agree.
func (r *Trace) Validate() error {
	if r.Env == "" || r.GroupID < 0 || r.GroupSize < 1 || r.RolloutIndex < 0 || r.RolloutIndex >= r.GroupSize {
		return fmt.Errorf("env %q, group %d, rollout %d of %d", r.Env, r.GroupID, r.RolloutIndex, r.GroupSize)
	}
	if r.Attempt < 0 {
		return fmt.Errorf("attempt %d", r.Attempt)
	}
	l := lengthsOf(r.Blobs)
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if n.Parent < -1 || n.Parent >= i {
			return fmt.Errorf("nodes.%d: parent %d is not an earlier node", i, n.Parent)
		}
		at := place{"nodes", i}
		count, err := l.equal(at,
			tensor{"token_ids", n.TokenIDs, 4, false}, tensor{"mask", n.Mask, 1, false}, tensor{"logprobs", n.Logprobs, 4, false},
			tensor{"token_rewards", n.TokenRewards, 4, true}, tensor{"ref_logprobs", n.RefLogprobs, 4, true})
		if err != nil {
			return err
		}
		if err := errors.Join(zeroOrOne(at, "mask", n.Mask), finite(at, "logprobs", n.Logprobs),
			finite(at, "token_rewards", n.TokenRewards), finite(at, "ref_logprobs", n.RefLogprobs)); err != nil {
			return err
		}
		if err := l.images(at, n.Images); err != nil {
			return err
		}
		if n.Reward != nil && !isFinite(*n.Reward) {
			return fmt.Errorf("nodes.%d: reward is %v", i, *n.Reward)
		}
		if n.BodyFrom < 0 || n.BodyTo < n.BodyFrom || int64(n.BodyTo) > count {
			return fmt.Errorf("nodes.%d: the content is tokens %d to %d of %d", i, n.BodyFrom, n.BodyTo, count)
		}
		last := -1
		for _, v := range n.Versions {
			if v.Offset <= last || int64(v.Offset) >= count || v.Version < 0 {
				return fmt.Errorf("nodes.%d: version %d from token %d of %d", i, v.Version, v.Offset, count)
			}
			last = v.Offset
		}
	}
	for name, v := range r.Rewards {
		if v != nil && !isFinite(*v) {
			return fmt.Errorf("reward %s is %v; one that does not apply is null", name, *v)
		}
	}
	if r.Reward != nil && !isFinite(*r.Reward) {
		return fmt.Errorf("reward is %v", *r.Reward)
	}
	return nil
}

// images checks that the images of a node are there, and named by what they hold.
func (l lengths) images(node place, images []Image) error {
	for k, i := range images {
		at := place{node.path("images"), k}
		if n, err := l.elements(at, "data", i.Data, 1); err != nil || n == 0 {
			return fmt.Errorf("%v: no data", at)
		}
		if sum, err := hex.DecodeString(i.SHA256); err != nil || len(sum) != sha256.Size {
			return fmt.Errorf("%v: %q is no SHA-256", at, i.SHA256)
		}
	}
	return nil
}

// Validate checks that every sample's tensors agree.
func (r *SampleGroup) Validate() error {
	if r.Env == "" || r.GroupID < 0 || r.Emitted < 0 {
		return fmt.Errorf("env %q, group %d, %d emitted", r.Env, r.GroupID, r.Emitted)
	}
	if (r.Reason == "") != (len(r.Samples) > 0) {
		return fmt.Errorf("%d samples with reason %q", len(r.Samples), r.Reason)
	}
	l := lengthsOf(r.Blobs)
	for i := range r.Samples {
		s := &r.Samples[i]
		at := place{"samples", i}
		n, err := l.equal(at,
			tensor{"token_ids", s.TokenIDs, 4, false}, tensor{"mask", s.Mask, 1, false}, tensor{"logprobs", s.Logprobs, 4, false},
			tensor{"advantages", s.Advantages, 4, false}, tensor{"temperatures", s.Temperatures, 4, false},
			tensor{"ce_weights", s.CeWeights, 4, true}, tensor{"ref_kl_weights", s.RefKlWeights, 4, true}, tensor{"ref_logprobs", s.RefLogprobs, 4, true})
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("%s is empty", at.path("token_ids"))
		}
		if err := trainable(at, s.Mask, s.Logprobs, s.Advantages, s.Temperatures, s.CeWeights, s.RefKlWeights, s.RefLogprobs); err != nil {
			return err
		}
		if err := l.taught(at, s.RefKlWeights, s.RefLogprobs); err != nil {
			return err
		}
	}
	return nil
}

// Validate checks the packed tensors against the lengths of the samples.
func (r *MicroBatch) Validate() error {
	if r.Step < 1 || r.Ranks < 1 || r.Rank < 0 || r.Rank >= r.Ranks || r.Index < 0 || r.Index >= r.Count {
		return fmt.Errorf("step %d, rank %d of %d, micro-batch %d of %d", r.Step, r.Rank, r.Ranks, r.Index, r.Count)
	}
	l := lengthsOf(r.Blobs)
	n, err := l.equal(place{},
		tensor{"token_ids", r.TokenIDs, 4, false}, tensor{"mask", r.Mask, 1, false}, tensor{"logprobs", r.Logprobs, 4, false},
		tensor{"advantages", r.Advantages, 4, false}, tensor{"temperatures", r.Temperatures, 4, false},
		tensor{"ce_weights", r.CeWeights, 4, true}, tensor{"ref_kl_weights", r.RefKlWeights, 4, true}, tensor{"ref_logprobs", r.RefLogprobs, 4, true})
	if err != nil {
		return err
	}
	seqs, err := l.elements(place{}, "seq_lens", r.SeqLens, 4)
	if err != nil {
		return err
	}
	if seqs != int64(len(r.Samples)) {
		return fmt.Errorf("%d lengths for %d samples", seqs, len(r.Samples))
	}
	sum := int64(0)
	for i := range r.SeqLens.Len() {
		if r.SeqLens.At(i) < 1 {
			return fmt.Errorf("seq_lens: sample %d has %d tokens", i, r.SeqLens.At(i))
		}
		sum += int64(r.SeqLens.At(i))
	}
	if len(r.SeqLens) > 0 && sum != n {
		return fmt.Errorf("seq_lens sum to %d, there are %d tokens", sum, n)
	}
	if err := l.taught(place{}, r.RefKlWeights, r.RefLogprobs); err != nil {
		return err
	}
	return trainable(place{}, r.Mask, r.Logprobs, r.Advantages, r.Temperatures, r.CeWeights, r.RefKlWeights, r.RefLogprobs)
}

// Validate checks the record's coordinates.
func (r *Task) Validate() error {
	if r.Env == "" || r.GroupID < 0 || r.GroupSize < 1 || r.RolloutIndex < -1 || r.RolloutIndex >= r.GroupSize {
		return fmt.Errorf("env %q, group %d, rollout %d of %d", r.Env, r.GroupID, r.RolloutIndex, r.GroupSize)
	}
	return nil
}

// Validate checks the record's coordinates.
func (r *GroupOutcome) Validate() error {
	if r.Env == "" || r.GroupID < 0 || r.Fate == "" {
		return fmt.Errorf("env %q, group %d, fate %q", r.Env, r.GroupID, r.Fate)
	}
	return nil
}

// Validate checks the kind.
func (r *Request) Validate() error {
	if r.Kind != RequestWave && r.Kind != RequestRefill {
		return fmt.Errorf("kind %q is neither %s nor %s", r.Kind, RequestWave, RequestRefill)
	}
	return nil
}

// Validate checks that the weights are named, and those that they apply to.
func (r *PolicyVersion) Validate() error {
	if r.Version < 0 || r.Weights.SHA256 == "" || r.Weights.URI == "" {
		return fmt.Errorf("version %d names weights %q with SHA-256 %q", r.Version, r.Weights.URI, r.Weights.SHA256)
	}
	if based := r.Kind == KindDelta || r.Kind == KindLoRA; based && r.BaseSHA256 == "" || r.Kind == KindDelta && r.FullSHA256 == "" {
		return fmt.Errorf("version %d is a %s with the base %q and gives %q: a SHA-256 is missing", r.Version, r.Kind, r.BaseSHA256, r.FullSHA256)
	}
	return nil
}

// Validate checks the record's coordinates.
func (r *StageState) Validate() error {
	if r.Stage == "" || r.Topic == "" || r.Partition < 0 || r.LowOffset < 0 || r.NextOffset < r.LowOffset {
		return fmt.Errorf("stage %q, %s/%d, offsets %d to %d", r.Stage, r.Topic, r.Partition, r.LowOffset, r.NextOffset)
	}
	return nil
}

// Validate checks that the environment is named.
func (r *EnvInfo) Validate() error {
	const most = 1 << 53 // indices are exact as JSON numbers
	if r.Env == "" || r.TrainTasks < 0 || r.EvalTasks < 0 || r.TrainTasks > most || r.EvalTasks > most {
		return fmt.Errorf("env %q with %d training and %d eval tasks", r.Env, r.TrainTasks, r.EvalTasks)
	}
	return nil
}

// Validate checks that the eval is named.
func (r *EvalResult) Validate() error {
	if r.Eval == "" || r.Env == "" || r.K < 1 {
		return fmt.Errorf("eval %q of env %q with k = %d", r.Eval, r.Env, r.K)
	}
	return nil
}

// Validate checks that the metric is named.
func (r *MetricPoint) Validate() error {
	if r.Name == "" {
		return fmt.Errorf("no name")
	}
	return nil
}

func isFinite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// trainable checks the values a loss is made of.
func trainable(at place, mask Uint8s, logprobs, advantages, temperatures, ce, refKL, ref Float32s) error {
	return errors.Join(zeroOrOne(at, "mask", mask), finite(at, "logprobs", logprobs), finite(at, "advantages", advantages),
		finite(at, "temperatures", temperatures), finite(at, "ce_weights", ce), finite(at, "ref_kl_weights", refKL),
		finite(at, "ref_logprobs", ref))
}

// taught checks that a teacher's log-probabilities are there where they are weighed, and nowhere else.
func (l lengths) taught(at place, weights, ref Float32s) error {
	w, err := l.elements(at, "ref_kl_weights", weights, 4)
	if err != nil {
		return err
	}
	n, err := l.elements(at, "ref_logprobs", ref, 4)
	if err != nil {
		return err
	}
	if (w > 0) != (n > 0) {
		return fmt.Errorf("%s has %d elements, %s has %d", at.path("ref_kl_weights"), w, at.path("ref_logprobs"), n)
	}
	return nil
}

func zeroOrOne(at place, field string, mask Uint8s) error {
	if i := mask.NotBit(); i >= 0 {
		return fmt.Errorf("%s: element %d is %d, neither 0 nor 1", at.path(field), i, mask[i])
	}
	return nil
}

func finite(at place, field string, t Float32s) error {
	if i := t.NotFinite(); i >= 0 {
		return fmt.Errorf("%s: element %d is %v", at.path(field), i, t.At(i))
	}
	return nil
}
