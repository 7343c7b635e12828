package main

import (
	"strings"
	"testing"
)

// TestTrainerFlags: they are settings like others, and all ranks in one process are refused.
func TestTrainerFlags(t *testing.T) {
	rank, size := 0, 2
	f := flags{Stage: "all", Set: []string{"run.ranks=2"}, Trainer: trainerFlags{Learner: "torch", Rank: &rank, WorldSize: &size, Rendezvous: "gpu-0:29500"}}
	cfg, err := configure(f)
	if err != nil {
		t.Fatal(err)
	}
	if c := cfg.Trainer; c.Learner != "torch" || c.Torch.Rank != 0 || c.Torch.WorldSize != 2 || c.Torch.Rendezvous != "gpu-0:29500" {
		t.Errorf("[trainer] is %+v", c)
	}
	if err := run(f); err == nil || !strings.Contains(err.Error(), "--rank 0 … --rank 1") {
		t.Errorf("--stage all with two ranks: %v", err)
	}
	f.Trainer.Rank = &size
	if _, err := configure(f); err == nil || !strings.Contains(err.Error(), "trainer.torch.rank = 2") {
		t.Errorf("rank 2 of 2: %v", err)
	}
}
