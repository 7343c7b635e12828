package trainer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"time"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/weights"
)

// store puts what a version names into the blob store: its model's files, its checkpoint, and its weights as a whole, as
// the tensors that changed, or as an adapter.
func (t *Trainer) store(ctx context.Context, v *made) (err error) {
	if err := t.storeFiles(ctx, v); err != nil {
		return err
	}
	if v.checkpoint {
		path := t.scratch.path(checkpointPrefix)
		defer os.Remove(path) // an error: it is in the blob store
		if err := v.snapshot.Checkpoint(ctx, path); err != nil {
			return err
		}
		ref, err := t.rt.Blobs.PutFile(ctx, checkpointPrefix, path)
		if err != nil {
			return err
		}
		v.Checkpoint = &ref
	}
	path := t.scratch.path(weightsPrefix)
	defer os.Remove(path)
	if err := v.snapshot.Weights(ctx, path); err != nil {
		return err
	}
	if err := t.storeWeights(ctx, v, path); err != nil {
		return err
	}
	t.stored = stored{v.Version, v.Weights.SHA256}
	return nil
}

// filesAnew is how long the model's files are taken to be in the blob store, since they are the same for every version: to look costs
// reading them. Clean-up leaves younger ones alone that nothing names.
const filesAnew = time.Minute

// modelFiles are what was stored of a model, and when.
type modelFiles struct {
	config, tokenizer       []byte
	configRef, tokenizerRef schemas.BlobRef
	at                      time.Time
}

// storeFiles puts the model's config.json and tokenizer.json into the blob store, unless they have just been.
func (t *Trainer) storeFiles(ctx context.Context, v *made) (err error) {
	f := &t.files
	if !bytes.Equal(f.config, v.config) || !bytes.Equal(f.tokenizer, v.tokenizer) || time.Since(f.at) > filesAnew {
		now := modelFiles{config: v.config, tokenizer: v.tokenizer, at: time.Now()}
		if now.configRef, err = t.rt.Blobs.Put(ctx, modelPrefix, v.config); err != nil {
			return err
		}
		if now.tokenizerRef, err = t.rt.Blobs.Put(ctx, modelPrefix, v.tokenizer); err != nil {
			return err
		}
		*f = now
	}
	v.Config, v.Tokenizer = f.configRef, f.tokenizerRef
	return nil
}

// storeWeights stores the weights of v, which the file at path holds. Where the next version may be a delta it keeps them.
func (t *Trainer) storeWeights(ctx context.Context, v *made, path string) (err error) {
	switch {
	case t.cfg.Torch.LoRA.Rank > 0 && v.Step > 0:
		v.Kind, v.BaseSHA256 = schemas.KindLoRA, t.first.Weights.SHA256
	case t.cfg.FullInterval > 1:
		return t.storeDelta(ctx, v, path)
	}
	if t.as == Shadow && !v.checkpoint { // nobody loads them
		v.Weights, err = named(path)
		return err
	}
	v.Weights, err = t.rt.Blobs.PutFile(ctx, weightsPrefix, path)
	return err
}

// storeDelta stores what changed in the weights since the version before, if that is at hand and less than all of them, and
// keeps the weights whole.
func (t *Trainer) storeDelta(ctx context.Context, v *made, path string) (err error) {
	before := t.whole
	t.whole = ""
	defer os.Remove(before)
	kept := t.scratch.path("whole")
	if before != "" && !v.checkpoint && v.Version%t.cfg.FullInterval != 0 {
		delta := t.scratch.path("delta")
		defer os.Remove(delta)
		d, err := weights.WriteDelta(delta, before, path)
		switch {
		case errors.Is(err, weights.ErrLayout):
		case err != nil:
			return err
		case smaller(delta, path):
			if v.Weights, err = t.rt.Blobs.PutFile(ctx, weightsPrefix, delta); err != nil {
				return err
			}
			d.Record(v.PolicyVersion)
			t.whole = kept
			return os.Rename(path, kept)
		}
	}
	if v.Weights, err = t.rt.Blobs.PutFile(ctx, weightsPrefix, path); err != nil {
		return err
	}
	t.whole = kept
	return t.rt.Blobs.Fetch(ctx, v.Weights, kept)
}

// smaller reports whether a file is worth being read instead of another.
func smaller(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && one.Size() < other.Size()-other.Size()/8
}

// named names the weights of a file that is not stored.
func named(path string) (ref schemas.BlobRef, err error) {
	f, err := os.Open(path)
	if err != nil {
		return ref, err
	}
	h := sha256.New()
	ref.Bytes, err = io.Copy(h, f)
	ref.SHA256 = hex.EncodeToString(h.Sum(nil))
	return ref, errors.Join(err, f.Close())
}
