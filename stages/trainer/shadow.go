package trainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// Shadow is the name of the stage that is a shadow trainer, and of the label that says which.
const Shadow = "shadow"

// ShadowConfig is the section [shadow]: a second trainer on the same batches, with settings of its own in [trainer], that
// publishes nothing.
type ShadowConfig struct {
	// Name of the shadow trainer, and of its folder in <run>/shadow; none is run without.
	Name string `toml:"name"`
	// FromVersion is the version of the run that it begins with, which must have a checkpoint; 0 for the run's first.
	FromVersion int64 `toml:"from_version"`
	// Keep is the number of newest checkpoints that are kept; the first version and the final one stay, too.
	Keep int `toml:"keep"`
}

// DefaultShadowConfig names none.
func DefaultShadowConfig() ShadowConfig { return ShadowConfig{Keep: 2} }

// Validate checks the section on its own.
func (c ShadowConfig) Validate() error {
	switch {
	case c.Name != "" && !pipeline.ValidName(c.Name):
		return fmt.Errorf("shadow.name = %q: letters, digits, dashes and underscores (it names a folder)", c.Name)
	case c.FromVersion < 0:
		return fmt.Errorf("shadow.from_version = %d: a version of the run", c.FromVersion)
	case c.Keep < 1:
		return fmt.Errorf("shadow.keep = %d: at least 1, which a restart needs", c.Keep)
	}
	return nil
}

// A ShadowTrainer trains every batch of a run as the run's trainer does, from the same version on, with settings of its own. The
// run is not changed by it, and does not wait for it.
//
//	Reads   batches, as the trainer does; policies and metrics when it starts
//	Writes  metrics: the points that the trainer has, of the stage shadow with the label shadow=<name>, each once
//	State   its folder: versions.jsonl has a line for each of its versions, blobs the weights and optimizer states of those with
//	        a checkpoint. A line is the commit of a step; points that a crash kept from the topic are written at the next start
//
// With the trainer's settings, on a learner that is Exact, its versions are the run's, byte for byte. On one that is not, the
// steps after the last checkpoint are made again after a restart, up to rounding.
type ShadowTrainer struct {
	*Trainer
	name     string
	dir      string
	settings []byte
}

var errNameless = pipeline.Fatal("a shadow trainer has a name (--shadow NAME), by which its folder and its curves are found")

// NewShadow checks the configuration; Run starts the work. dir is the shadow trainer's folder, settings what is kept there for
// readers.
func NewShadow(rt *pipeline.Runtime, cfg Config, model ModelConfig, shadow ShadowConfig, dir string, settings []byte) (*ShadowTrainer, error) {
	cfg.Torch.WorldSize, cfg.Torch.Rank, cfg.FullInterval = 1, 0, 1 // it trains alone, and keeps whole weights
	own := *rt
	own.Scratch, own.Tracing = filepath.Join(dir, "scratch"), nil
	t, err := newTrainer(&own, Shadow, cfg, model)
	if err != nil {
		return nil, err
	}
	t.source = rt
	t.home = &inFolder{rt: rt, own: &own, cfg: shadow, path: filepath.Join(dir, "versions.jsonl")}
	return &ShadowTrainer{Trainer: t, name: shadow.Name, dir: dir, settings: settings}, nil
}

// Run trains until the final step, or until ctx ends.
func (s *ShadowTrainer) Run(ctx context.Context) (err error) {
	if s.name == "" {
		return errNameless
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of a shadow trainer: %w", err)
	}
	lock, err := lockFolder(s.dir)
	if err != nil {
		return fmt.Errorf("%s is another process's, which trains under this name (or it cannot be locked): %w", s.dir, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if s.rt.Blobs, err = pipeline.OpenBlobs(filepath.Join(s.dir, "blobs")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.rt.Blobs.Close()) }()
	if err := os.WriteFile(filepath.Join(s.dir, "config.toml"), s.settings, 0o644); err != nil {
		return fmt.Errorf("write down the settings of a shadow trainer: %w", err)
	}
	return s.Trainer.Run(ctx)
}

// origin is the version of the run that a shadow trainer begins with; it waits until the run has begun.
func (h *inFolder) origin(ctx context.Context) (*schemas.PolicyVersion, error) {
	for told := false; ; told = true {
		published, err := versions(ctx, h.rt)
		if err != nil {
			return nil, err
		}
		if len(published) > 0 {
			from := h.cfg.FromVersion
			if from == 0 {
				from = published[0].Version
			}
			v, err := OriginAmong(ctx, h.rt.Blobs, published, h.rt.Run.Name, from)
			if err != nil {
				return nil, pipeline.Fatal("%w", err)
			}
			return v, nil
		}
		if !told {
			h.rt.Log.Info("the run has no version yet; waiting for its first", "stage", Shadow)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// takeMade gives the learner what is published of a step that it has made again and that is not exact. A shadow trainer keeps no
// weights between checkpoints: what it has made again is what it has.
func (t *Trainer) takeMade(ctx context.Context, published history, old *schemas.PolicyVersion) error {
	if t.as == Shadow {
		t.stored = stored{old.Version, old.Weights.SHA256}
		return nil
	}
	return t.take(ctx, published, old)
}
