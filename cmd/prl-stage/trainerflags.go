package main

import (
	"fmt"

	"github.com/prl-project/prl/stages"
)

// trainerFlags are settings of the trainer that differ from process to process, or that one likes to try.
type trainerFlags struct {
	Learner    string `help:"What trains (trainer.learner): native, torch or null." placeholder:"NAME" for:"trainer all shadow"`
	Rank       *int   `help:"Number of this process among the trainers that train together, from 0 (trainer.torch.rank)." placeholder:"N" for:"trainer all"`
	WorldSize  *int   `help:"Number of trainers that train together, one per GPU (trainer.torch.world_size)." placeholder:"N" for:"trainer all"`
	Rendezvous string `help:"Where they meet: an address of rank 0's machine and a free port there (trainer.torch.rendezvous)." placeholder:"HOST:PORT" for:"trainer all"`
}

// sets are the settings that the flags are.
func (f trainerFlags) sets() (sets []string) {
	if f.Learner != "" {
		sets = append(sets, fmt.Sprintf("trainer.learner=%q", f.Learner))
	}
	if f.Rank != nil {
		sets = append(sets, fmt.Sprintf("trainer.torch.rank=%d", *f.Rank))
	}
	if f.WorldSize != nil {
		sets = append(sets, fmt.Sprintf("trainer.torch.world_size=%d", *f.WorldSize))
	}
	if f.Rendezvous != "" {
		sets = append(sets, fmt.Sprintf("trainer.torch.rendezvous=%q", f.Rendezvous))
	}
	return sets
}

// checkRanks refuses what one process cannot do.
func (f flags) checkRanks(cfg *stages.Config) error {
	if n := cfg.Trainer.Torch.WorldSize; n > 1 && f.Stage == "all" {
		return fmt.Errorf("trainer.torch.world_size = %d with --stage all, which has one trainer: start `prl-stage --stage trainer --rank 0 … --rank %d` beside the other stages, on Kafka or `prl-stage --stage broker`", n, n-1)
	}
	return nil
}
