package stages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/replay"
	"github.com/prl-project/prl/stages/trainer"
)

// trainedOn are the topics that a replay to train writes; metrics are the trainer's.
var trainedOn = []string{pipeline.TopicSamples, pipeline.TopicBatches, pipeline.TopicOutcomes}

// train makes a run of its own that begins with a version of the app's run and is trained on the recomputed batches, one
// version for each, and no further. Started again, it goes on where it stopped.
func (a *App) train(ctx context.Context, out io.Writer, src replay.Source, recorded pipeline.RunConfig, r Replay) error {
	b := r.Into
	if b == nil {
		return fmt.Errorf("replay to train: --into names the run that is trained")
	}
	published, err := replay.Policies(ctx, src)
	if err != nil {
		return fmt.Errorf("replay to train: %w", err)
	}
	origin, err := trainer.OriginAmong(ctx, a.Runtime.Blobs, published, a.Config.Run.Name, r.Select.FromVersion)
	if err != nil {
		return fmt.Errorf("replay to train: %w", err)
	}
	cfg, err := a.recomputing(ctx, src, recorded, r)
	if err != nil {
		return err
	}
	if r.DryRun {
		plan, err := replay.Plan(ctx, src, cfg)
		fmt.Fprint(out, plan, b.plan(trainedOn))
		fmt.Fprintf(out, "would train from version %d, a version for each of the batches\n", origin.Version)
		return err
	}
	if err := b.SetUp(ctx); err != nil {
		return err
	}
	if err := trainer.Begin(ctx, b.Runtime, a.Config.Run.Name, a.Runtime.Blobs, origin, nil); err != nil {
		return err
	}
	show, end := r.progress()
	defer end()
	last := origin.Version
	err = b.write(ctx, out, trainedOn, func(write writeFunc) error {
		cfg.Write, cfg.Progress = write, show
		compared, err := replay.Recompute(ctx, src, cfg)
		if err == nil {
			last += compared.Recomputed.Steps
			fmt.Fprint(out, compared)
		}
		return err
	})
	if err != nil {
		return err
	}
	made, err := b.trainTo(ctx, show, origin.Version, last)
	if err != nil {
		return err
	}
	end()
	if made == nil {
		fmt.Fprintf(out, "stopped; the same command goes on from here\n")
		return nil
	}
	return b.trained(ctx, out, made, published)
}

// trainTo runs trainer and sink until a version is published, and gives that; nil where ctx ends before.
func (a *App) trainTo(ctx context.Context, show replay.Progress, first, last int64) (made *schemas.PolicyVersion, err error) {
	f, err := a.Runtime.Follow(pipeline.TopicPolicies)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	wanted := func(s Stage) bool { return s.Name == "trainer" || s.Name == "sink" }
	err = a.runStages(ctx, wanted, func(ctx context.Context) error {
		for ctx.Err() == nil && made == nil {
			poll, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			recs, err := f.Poll(poll)
			if errors.Is(err, pipeline.ErrTransient) {
				<-poll.Done() // it may fail at once, again and again
				err = nil
			}
			cancel()
			if err != nil {
				return err
			}
			for _, r := range recs {
				v, ok := r.Value.(*schemas.PolicyVersion)
				if !ok {
					continue
				}
				show("training", v.Version-first, last-first)
				if v.Version == last {
					made = v
				}
			}
		}
		return nil
	})
	return made, err
}

// trained tells what was trained, and whether it is what the other run had trained.
func (a *App) trained(ctx context.Context, out io.Writer, made *schemas.PolicyVersion, before []*schemas.PolicyVersion) error {
	as := "which that run has not"
	if i := slices.IndexFunc(before, func(v *schemas.PolicyVersion) bool { return v.Version == made.Version }); i >= 0 {
		as = "other than that run's"
		if before[i].WeightsSHA256() == made.WeightsSHA256() {
			as = "the same as that run's, byte for byte"
		}
	}
	fmt.Fprintf(out, "Run %s is trained to version %d (weights SHA-256 %s), %s.\n", a.Config.Run.Name, made.Version, made.WeightsSHA256(), as)
	dir, err := a.export(ctx, made.Version)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "The model, as a Hugging Face folder:  %s\n%s", dir, a.query())
	return nil
}
