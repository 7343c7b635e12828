package packer

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
)

// traffic is the groups 0 to n-1 out of order, some twice, some that cannot be decoded, as records of samples.
func traffic(rng *rand.Rand, n int) []pipelinetest.Step {
	var steps []pipelinetest.Step
	order := rng.Perm(n)
	for i := range n + n/3 {
		id, offset := int64(order[i%n]), int64(i)
		if i >= n {
			id = int64(order[rng.IntN(n)])
		}
		switch rng.IntN(8) {
		case 0:
			steps = append(steps, undecodable(offset, pipelineKey(id)))
		case 1:
			steps = append(steps, at(offset, without(id, 1+rng.IntN(2), []string{"filtered", "errored"}[rng.IntN(2)], "")))
		default:
			var start *int64
			if rng.IntN(4) > 0 {
				start = version(int64(rng.IntN(3)))
			}
			lengths := make([]int, 1+rng.IntN(3))
			for k := range lengths {
				lengths[k] = 1 + rng.IntN(11)
			}
			g := group(id, start, lengths...)
			if rng.IntN(2) == 0 {
				imitated(rng, g)
			}
			g.Monitored = map[string]int64{"length": rng.Int64N(3)}
			steps = append(steps, at(offset, g))
		}
	}
	return steps
}

func pipelineKey(id int64) string {
	topic, _ := pipeline.TopicOf(pipeline.TopicSamples)
	return topic.Key(&schemas.SampleGroup{GroupID: id})
}

// audit checks what a core has emitted in a run, with the groups it was fed.
func audit(t testing.TB, run pipeline.RunConfig, o output) {
	t.Helper()
	type key struct {
		group           int64
		rollout, branch int
	}
	trained := map[int64]map[key]bool{} // by step
	said, counted := map[int64][]schemas.LossTokens{}, map[int64]lossTokens{}
	ranks := map[int64][]int{}
	for _, mb := range o.batches {
		if mb.Step > run.MaxSteps || mb.TokenIDs.Len() > run.SeqLen {
			t.Fatalf("step %d with %d tokens", mb.Step, mb.TokenIDs.Len())
		}
		if trained[mb.Step] == nil {
			trained[mb.Step], ranks[mb.Step] = map[key]bool{}, make([]int, mb.Ranks)
			said[mb.Step] = mb.LossTokens
		}
		ranks[mb.Step][mb.Rank]++
		count := counted[mb.Step]
		count.add(countLoss(mb.Mask, mb.CeWeights, mb.RefKlWeights))
		counted[mb.Step] = count
		if !reflect.DeepEqual(mb.LossTokens, said[mb.Step]) {
			t.Fatalf("step %d: %v and %v", mb.Step, mb.LossTokens, said[mb.Step])
		}
		for _, s := range mb.Samples {
			k := key{s.GroupID, s.RolloutIndex, s.Branch}
			for _, step := range trained {
				if step[k] {
					t.Fatalf("%v is trained twice", k)
				}
			}
			trained[mb.Step][k] = true
			if s.PolicyStart != nil {
				if off := mb.Step - 1 - *s.PolicyStart; off < 0 || off > int64(run.MaxOffPolicySteps) {
					t.Fatalf("%v is %d steps off-policy", k, off)
				}
			}
		}
	}
	for step, loss := range said {
		if !reflect.DeepEqual(loss, counted[step].record()) {
			t.Fatalf("step %d trains %+v, its micro-batches say %v", step, counted[step], loss)
		}
		for _, count := range ranks[step] {
			if count != ranks[step][0] {
				t.Fatalf("step %d: micro-batches by rank: %v", step, ranks[step])
			}
		}
	}
	ended := map[int64]bool{}
	for _, g := range o.outcomes {
		if ended[g.GroupID] {
			t.Fatalf("group %d ended twice", g.GroupID)
		}
		ended[g.GroupID] = true
		if (g.Fate == schemas.FatePacked) != (g.Step != nil) {
			t.Fatalf("%+v", g)
		}
		for _, f := range g.Rollouts {
			if f.Fate == "" {
				t.Fatalf("group %d: rollout %d has no fate", g.GroupID, f.RolloutIndex)
			}
			if f.Fate == schemas.FatePacked && !trained[*g.Step][key{g.GroupID, f.RolloutIndex, 0}] {
				t.Fatalf("group %d: rollout %d is in no micro-batch of step %d", g.GroupID, f.RolloutIndex, *g.Step)
			}
		}
	}
}

// play runs traffic until every group has come to the end of the run.
func play(t *testing.T, check func(run pipeline.RunConfig, groups int, o output, unfinished int)) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 3))
		run, cfg := config(), DefaultConfig()
		run.MaxSteps, run.MaxOffPolicySteps, run.Ranks = 1+rng.Int64N(6), 1+rng.IntN(2), 1+rng.IntN(4)
		cfg.Overlong, cfg.ZeroOutputBatches = []Overlong{OverlongDrop, OverlongCut}[rng.IntN(2)], 1000
		r := newRunner(t, run, cfg)
		const groups = 30
		for _, s := range traffic(rng, groups) {
			if rng.IntN(6) == 0 {
				r.Restart(t)
			}
			r.Step(t, s)
		}
		if len(r.Poison) > 0 {
			t.Fatalf("seed %d: %v", seed, r.Poison)
		}
		check(run, groups, sorted(t, r.Emitted), len(r.Unfinished()))
	}
}

func TestInvariant_OneOutcome(t *testing.T) {
	play(t, func(run pipeline.RunConfig, groups int, o output, unfinished int) {
		if len(o.outcomes)+unfinished != groups {
			t.Fatalf("%d outcomes and %d groups held, of %d", len(o.outcomes), unfinished, groups)
		}
		audit(t, run, o)
	})
}

func TestInvariant_TrainedOnce(t *testing.T) {
	packed := 0
	play(t, func(run pipeline.RunConfig, _ int, o output, _ int) {
		audit(t, run, o)
		for _, mb := range o.batches {
			packed += len(mb.Samples)
		}
	})
	if packed == 0 {
		t.Fatal("nothing was packed")
	}
}

func TestInvariant_LossTokens(t *testing.T) {
	play(t, func(run pipeline.RunConfig, _ int, o output, _ int) { audit(t, run, o) })
}

func TestInvariant_WholeSteps(t *testing.T) {
	play(t, func(run pipeline.RunConfig, _ int, o output, _ int) {
		next := int64(1)
		for i := 0; i < len(o.batches); next++ {
			count := o.batches[i].Count * run.Ranks
			for k, mb := range o.batches[i : i+count] {
				if mb.Step != next || mb.Rank != k/mb.Count || mb.Index != k%mb.Count || mb.Count != o.batches[i].Count || mb.Ranks != run.Ranks {
					t.Fatalf("micro-batch %d of step %d: %+v", k, next, mb)
				}
			}
			i += count
		}
	})
}

func TestConformance(t *testing.T) {
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 4))
		pipelinetest.Check(t, newCore(config(), DefaultConfig()), traffic(rng, 25))

		var steps []pipelinetest.Step
		for id := range int64(4) { // two waves of the first step, and half of the second
			g := in(group(id, version(0), 3, 4), 1, 1, 0, 1)
			switch {
			case id == 1:
				g = in(without(id, 2, "filtered", "zero_advantage"), 1, 1, 0, 1)
			case id == 2:
				g = in(g, 1, 2, 2, 2)
			case id == 3:
				g = in(g, 2, 1, 3, 4)
			}
			steps = append(steps, at(2*id, g), at(2*id+1, g))
		}
		steps = append(steps, undecodable(8, "4"), undecodable(9, "5"))
		pipelinetest.Check(t, newCore(ordered(), DefaultConfig()), steps)
	}
}

// FuzzCore plays any sequence of groups, in both modes. Whatever comes, what audit checks holds, a restart changes
// nothing, and only the guards stop the run.
func FuzzCore(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, false)
	f.Add([]byte{0x10, 0x21, 0x32, 0x03, 0x44, 0x55, 0x66}, true)
	f.Fuzz(func(t *testing.T, b []byte, inOrder bool) {
		run, cfg := config(), DefaultConfig()
		if inOrder {
			run = ordered()
		}
		cfg.Overlong = OverlongCut
		r := newRunner(t, run, cfg)
		for i := 0; i+1 < len(b) && len(r.Poison) == 0; i += 2 {
			id, kind := int64(b[i]&15), b[i+1]
			g := group(id, version(int64(kind>>4&3)), 1+int(b[i]>>4), 1+int(kind>>4))
			switch kind & 15 {
			case 0:
				g = without(id, 2, "filtered", "zero_advantage")
			case 1:
				g.Samples[1].Branch, g.Samples[1].RolloutIndex = 1, 0
			case 2:
				g.Emitted = int(kind >> 4)
			case 3:
				r.Step(t, undecodable(int64(1000+i), pipelineKey(id)))
				continue
			case 4:
				r.Restart(t)
			case 5:
				g.Samples[0].Advantages = nil
			case 6, 7, 8:
				imitated(rand.New(rand.NewPCG(uint64(b[i]), uint64(kind))), g)
			}
			if inOrder {
				first := int64(b[i+1] & 12)
				in(g, 1+int64(b[i]>>6), 1+int(kind>>6), first, first+int64(kind&3))
			}
			feed(t, r, g)
		}
		audit(t, run, sorted(t, r.Emitted))
	})
}
