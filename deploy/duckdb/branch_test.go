package duckdb_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
)

// A run that began from version 2 of another one is shown beside it, from that version on.
func TestBranch(t *testing.T) {
	dir := t.TempDir()
	for name, reward := range map[string]float64{"a": 0.25, "b": 0.5} {
		run := filepath.Join(dir, name)
		if err := os.Mkdir(run, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := sink.WriteSchemas(filepath.Join(run, "parquet")); err != nil {
			t.Fatal(err)
		}
		first, from := int64(0), ""
		if name == "b" {
			first, from = 2, "a"
		}
		weights := schemas.BlobRef{URI: "weights/x", SHA256: "x"}
		var outcomes []sink.Row
		for version := first; version < 4; version++ {
			outcomes = append(outcomes, row(t, &schemas.GroupOutcome{Env: "catch", GroupID: version, Fate: schemas.FatePacked, Rollouts: []schemas.RolloutFate{
				{Fate: schemas.FatePacked, Reward: new(reward), PolicyStart: new(version)},
			}}))
		}
		write(t, run, pipeline.TopicPolicies, row(t, &schemas.PolicyVersion{Version: first, Kind: "full", Weights: weights, FromRun: from}))
		write(t, run, pipeline.TopicOutcomes, outcomes...)
		write(t, run, pipeline.TopicEvals, row(t, &schemas.EvalResult{Eval: "held-out", Env: "catch", Version: 3, K: 1, AvgAtK: 2 * reward}))
	}
	db := open(t, filepath.Join(dir, "b"))
	want := []string{"eval held-out 3 1 0.5", "reward catch 2 0.5 0.25", "reward catch 3 0.5 0.25"}
	if got := ask(t, db, source(t, "branch.sql")); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
