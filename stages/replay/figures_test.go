package replay

import (
	"maps"
	"slices"
	"testing"

	"github.com/prl-project/prl/schemas"
)

func TestFigures(t *testing.T) {
	f := newFigures()
	f.batch(&schemas.MicroBatch{
		Step: 5, Rank: 0, Index: 0, SeqLens: schemas.PackInt32s([]int32{3, 2}),
		Mask: []byte{0, 1, 1, 0, 1}, Advantages: schemas.PackFloat32s([]float32{0, 2, 2, 0, -1}),
		CeWeights: schemas.PackFloat32s([]float32{0, 1, 0, 0.5, 0}), RefKlWeights: schemas.PackFloat32s([]float32{0, 0, 0, 0, 0}),
		Samples: []schemas.PackedSample{{GroupID: 1, PolicyStart: new(int64(4))}, {GroupID: 2}},
	}, 8)
	f.batch(&schemas.MicroBatch{Step: 5, Rank: 1, Index: 0, Mask: []byte{0}, Advantages: schemas.PackFloat32s([]float32{0})}, 8)
	f.batch(&schemas.MicroBatch{
		Step: 6, Rank: 0, Index: 0, SeqLens: schemas.PackInt32s([]int32{2}), Mask: []byte{0, 1}, Advantages: schemas.PackFloat32s([]float32{0, 0}),
		Samples: []schemas.PackedSample{{GroupID: 3, PolicyStart: new(int64(2))}},
	}, 8)
	if f.Steps != 2 || f.MicroBatches != 3 || f.Samples != 3 || f.Tokens != 7 || f.Trained != 5 || f.Room != 24 || f.Padding() != 17.0/24 {
		t.Errorf("%+v", f)
	}
	if !maps.Equal(f.OffPolicy, map[int64]int64{0: 1, 3: 1}) || f.Frozen != 1 || f.offPolicyMean() != 1.5 {
		t.Errorf("off-policy steps %v, mean %v, %d frozen", f.OffPolicy, f.offPolicyMean(), f.Frozen)
	}
	if a := &f.Advantages; a.N != 4 || a.Mean() != 0.75 || a.Zero() != 0.25 || !slices.Equal(a.Quantiles(0.25, 0.5, 1), []float64{-1, 0, 2}) {
		t.Errorf("advantages %+v", f.Advantages)
	}
	rollouts := []schemas.RolloutFate{{Fate: schemas.FatePacked, Reward: new(1.0)}, {Fate: schemas.FateFiltered, Reward: new(8.0)}, {Fate: schemas.FatePacked}}
	f.group(outcomeOf(&schemas.GroupOutcome{Fate: schemas.FatePacked, Step: new(int64(5)), Rollouts: rollouts}))
	f.group(outcomeOf(&schemas.GroupOutcome{Fate: schemas.FateFiltered, Filter: "length", Rollouts: rollouts}))
	if !maps.Equal(f.Groups, map[string]int64{"packed": 1, "filtered by length": 1}) || f.Packed.N != 1 || f.Packed.Mean() != 1 {
		t.Errorf("groups %v, rewards %+v", f.Groups, f.Packed)
	}
}

func TestSetSteps(t *testing.T) {
	packed := func(step int64) outcome { return outcome{by: schemas.FatePacked, step: step} }
	// Groups 2, 5 and 8 were not packed: each was judged for the step that was being filled.
	outcomes := map[int64]outcome{1: packed(5), 4: packed(5), 6: packed(6), 7: packed(6)}
	var turns []turn
	for _, id := range []int64{1, 2, 4, 5, 6, 7, 8} {
		turns = append(turns, turn{group: id})
	}
	setSteps(turns, outcomes)
	var steps []int64
	for _, t := range turns {
		steps = append(steps, t.step)
	}
	if want := []int64{5, 5, 5, 6, 6, 6, 7}; !slices.Equal(steps, want) {
		t.Errorf("steps %v, want %v", steps, want)
	}
}

func TestTable(t *testing.T) {
	var c Comparison
	c.Recorded, c.Recomputed = newFigures(), newFigures()
	c.Recorded.Groups["packed"], c.Recomputed.Groups["stale"] = 1_234_567, 12
	got := (&table{rows: [][3]string{{"", "recorded", "recomputed"}}})
	got.counts("groups", c.Recorded.Groups, c.Recomputed.Groups)
	got.row("figures", number(0.00012345), number(-1.5))
	want := "" +
		"           recorded  recomputed\n" +
		"groups    1,234,567          12\n" +
		"  packed  1,234,567           0\n" +
		"  stale           0          12\n" +
		"figures    0.000123     -1.5000\n"
	if got.String() != want {
		t.Errorf("\n%swant\n%s", got, want)
	}
	for n, want := range map[int64]string{0: "0", 999: "999", -1000: "-1,000", 1_000_000: "1,000,000"} {
		if count(n) != want {
			t.Errorf("%d is %s", n, count(n))
		}
	}
}
