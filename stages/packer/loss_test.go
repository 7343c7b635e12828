package packer

import (
	"bytes"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/prl-project/prl/schemas"
)

// imitated gives some samples of a group, and some tokens of those, to the components ce and ref_kl, and takes others
// from rl.
func imitated(rng *rand.Rand, g *schemas.SampleGroup) *schemas.SampleGroup {
	for i := range g.Samples {
		s := &g.Samples[i]
		n := s.TokenIDs.Len()
		weights := func() schemas.Float32s {
			w := make([]float32, n)
			for k := 1; k < n; k++ {
				w[k] = float32(rng.IntN(3)) / 10
			}
			return schemas.PackFloat32s(w)
		}
		if rng.IntN(3) == 0 {
			s.CeWeights = weights()
		}
		if rng.IntN(3) == 0 {
			s.RefKlWeights, s.RefLogprobs = weights(), schemas.PackFloat32s(make([]float32, n))
			for k := range n {
				s.RefLogprobs[4*k] = byte(rng.IntN(9))
			}
		}
		for k := range n {
			s.Mask[k] &= byte(rng.IntN(2))
		}
	}
	return g
}

// TestInvariant_EveryToken: each token of each sample is in one micro-batch, with what each component says of it, and each
// component is counted over the whole step.
func TestInvariant_EveryToken(t *testing.T) {
	type key struct {
		group   int64
		rollout int
	}
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 8))
		run, cfg := config(), DefaultConfig()
		run.BatchSize, run.Ranks, run.SeqLen, cfg.Overlong = 1+rng.IntN(20), 1+rng.IntN(4), 4+rng.IntN(20), OverlongCut
		want, left := map[key]schemas.Sample{}, run.BatchSize
		var groups []*schemas.SampleGroup
		var count lossTokens
		for id := int64(0); left > 0; id++ {
			g := imitated(rng, group(id, version(0), 1+rng.IntN(30), 1+rng.IntN(30)))
			var samples []*schemas.Sample
			for i := range g.Samples {
				samples = append(samples, &g.Samples[i])
			}
			for _, s := range cutTo(samples, run.SeqLen) {
				want[key{id, s.RolloutIndex}] = *s
				count.add(lossTokensOf(s))
			}
			groups, left = append(groups, g), left-2
		}
		if len(want) == 0 {
			continue
		}
		o := feed(t, newRunner(t, run, cfg), groups...)
		weighed := 0
		for _, mb := range o.batches {
			n := mb.TokenIDs.Len()
			if n > run.SeqLen || !reflect.DeepEqual(mb.LossTokens, count.record()) {
				t.Fatalf("seed %d: a micro-batch of %d tokens in steps of %v, packed were %v", seed, n, mb.LossTokens, count.record())
			}
			if has := mb.CeWeights.Len() + mb.RefKlWeights.Len(); has > 0 {
				weighed++
			}
			at := 0
			for i, p := range mb.Samples {
				s, ok := want[key{p.GroupID, p.RolloutIndex}]
				delete(want, key{p.GroupID, p.RolloutIndex})
				end := at + int(mb.SeqLens.At(i))
				slice := func(t schemas.Float32s) schemas.Float32s { return t.Slice(min(at, t.Len()), min(end, t.Len())) }
				if !ok || !bytes.Equal(mb.TokenIDs.Slice(at, end), s.TokenIDs) || !bytes.Equal(mb.Mask[at:end], s.Mask) ||
					!bytes.Equal(slice(mb.Logprobs), s.Logprobs) || !bytes.Equal(slice(mb.Advantages), s.Advantages) ||
					!bytes.Equal(slice(mb.Temperatures), s.Temperatures) || !sameOrZero(slice(mb.CeWeights), s.CeWeights) ||
					!sameOrZero(slice(mb.RefKlWeights), s.RefKlWeights) || !sameOrZero(slice(mb.RefLogprobs), s.RefLogprobs) {
					t.Fatalf("seed %d: rollout %d of group %d is not as it came, or comes twice", seed, p.RolloutIndex, p.GroupID)
				}
				at = end
			}
		}
		if len(want) > 0 {
			t.Fatalf("seed %d: %d samples are in no micro-batch", seed, len(want))
		}
		if count.ce+count.refKL > 0 && weighed == 0 {
			t.Fatalf("seed %d: no micro-batch has weights", seed)
		}
	}
}

// sameOrZero compares a tensor of a micro-batch with one that its sample may not have.
func sameOrZero(packed, sample schemas.Float32s) bool {
	if len(sample) == 0 {
		sample = make(schemas.Float32s, len(packed))
	}
	return bytes.Equal(packed, sample)
}

// A sample that only imitates is packed, and a micro-batch has weights only where one of its samples has any.
func TestComponents(t *testing.T) {
	run := config()
	run.BatchSize, run.Ranks, run.SeqLen = 3, 1, 4
	g := group(0, version(0), 4, 2, 2)
	g.Samples[0].Mask = make(schemas.Uint8s, 4)
	g.Samples[0].CeWeights = schemas.PackFloat32s([]float32{0, 1, 0, 0.5})
	g.Samples[1].RefKlWeights, g.Samples[1].RefLogprobs = schemas.PackFloat32s([]float32{0, 2}), schemas.PackFloat32s([]float32{0, -3})
	o := feed(t, newRunner(t, run, DefaultConfig()), g)
	if len(o.batches) != 2 {
		t.Fatalf("%d micro-batches", len(o.batches))
	}
	for _, mb := range o.batches {
		if want := []schemas.LossTokens{{Component: "rl", Tokens: 2}, {Component: "ce", Tokens: 2}, {Component: "ref_kl", Tokens: 1}}; !reflect.DeepEqual(mb.LossTokens, want) {
			t.Errorf("%v", mb.LossTokens)
		}
	}
	first, second := o.batches[0], o.batches[1]
	if first.SeqLens.Len() > 1 {
		first, second = second, first
	}
	if got := first.CeWeights.Values(); !reflect.DeepEqual(got, []float32{0, 1, 0, 0.5}) || first.RefKlWeights.Len() != 0 || first.RefLogprobs.Len() != 0 {
		t.Errorf("the first has %v, %v, %v", got, first.RefKlWeights, first.RefLogprobs)
	}
	if got := second.RefKlWeights.Values(); !reflect.DeepEqual(got, []float32{0, 2, 0, 0}) || second.CeWeights.Len() != 0 {
		t.Errorf("the second has %v, %v", got, second.CeWeights)
	}
	if got := second.RefLogprobs.Values(); !reflect.DeepEqual(got, []float32{0, -3, 0, 0}) {
		t.Errorf("the second has the teacher's %v", got)
	}
	for _, m := range o.metrics {
		if m.Name == "trained_tokens" && m.Value != 4 {
			t.Errorf("%v tokens are in a loss", m.Value)
		}
	}
}

// Where a cut at seq_len leaves weights, a sample stays; where it leaves none, it goes.
func TestCutOfWeights(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Overlong = OverlongCut
	g := group(0, nil, 12, 12, 12, 12)
	weights := func(at int) schemas.Float32s {
		w := make([]float32, 12)
		w[at] = 1
		return schemas.PackFloat32s(w)
	}
	for i := range g.Samples {
		g.Samples[i].Mask = make(schemas.Uint8s, 12)
	}
	g.Samples[0].CeWeights, g.Samples[1].CeWeights = weights(9), weights(10)
	for i, at := range []int{9, 10} {
		g.Samples[2+i].RefKlWeights, g.Samples[2+i].RefLogprobs = weights(at), weights(at)
	}
	o := feed(t, newRunner(t, config(), cfg), g)
	if f := o.outcomes[0].Rollouts; f[0].Fate != "packed" || f[1].Fate != "overlong" || f[2].Fate != "packed" || f[3].Fate != "overlong" {
		t.Errorf("%+v", f)
	}
}

func TestBrokenTensors(t *testing.T) {
	weights := func(values ...float32) schemas.Float32s { return schemas.PackFloat32s(values) }
	for name, spoil := range map[string]func(s *schemas.Sample){
		"left in the blob store":   func(s *schemas.Sample) { s.Logprobs = nil },
		"ce_weights":               func(s *schemas.Sample) { s.CeWeights = weights(0, 1) },
		"ref_kl_weights":           func(s *schemas.Sample) { s.RefKlWeights, s.RefLogprobs = weights(0, 1), weights(0, 1) },
		"no teacher":               func(s *schemas.Sample) { s.RefKlWeights = weights(0, 1, 1, 1) },
		"a teacher of nothing":     func(s *schemas.Sample) { s.RefLogprobs = weights(0, 1, 1, 1) },
		"first token, rl":          func(s *schemas.Sample) { s.Mask[0] = 1 },
		"first token, ce":          func(s *schemas.Sample) { s.CeWeights = weights(1, 0, 0, 0) },
		"first token, ref_kl":      func(s *schemas.Sample) { s.RefKlWeights, s.RefLogprobs = weights(1, 0, 0, 0), weights(1, 0, 0, 0) },
		"no tokens, whatever else": func(s *schemas.Sample) { *s = schemas.Sample{RolloutIndex: 2} },
	} {
		g := group(0, nil, 4, 4, 4, 4)
		spoil(&g.Samples[2])
		if got := fates(feed(t, newRunner(t, config(), DefaultConfig()), g)); got != "0 errored; " {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// What filters saw that only monitor, and what the stale are like beside the packed, is in the metrics of the step.
func TestMonitoredAndStale(t *testing.T) {
	run := config()
	run.MaxOffPolicySteps = 1
	r := newRunner(t, run, DefaultConfig())
	feed(t, r, group(0, version(0), 1, 1, 1, 2), group(5, version(0), 1, 1, 1, 2)) // steps 1 and 2
	stale := group(1, version(0), 9, 7)
	stale.Monitored = map[string]int64{"length": 2, "repetition": 1}
	lost := without(2, 2, "stale", "") // cancelled while it was played
	for i := range lost.Rollouts {
		lost.Rollouts[i].Reward, lost.Rollouts[i].Error, lost.Rollouts[i].Tokens = nil, "stale: too old", 1
	}
	filtered := without(3, 2, "filtered", "length")
	filtered.Monitored = map[string]int64{"length": 3}
	feed(t, r, stale, lost)
	r.Restart(t)
	o := feed(t, r, filtered, group(4, version(1), 2, 3, 4, 7))
	got := map[string]float64{}
	for _, m := range o.metrics {
		if strings.HasPrefix(m.Name, "fate_") || m.Name == "monitored" {
			got[strings.Join([]string{m.Name, m.Labels["env"], m.Labels["fate"], m.Labels["filter"]}, " ")] = m.Value
		}
	}
	if want := (map[string]float64{
		"monitored   length": 5, "monitored   repetition": 1,
		"fate_rollouts catch stale ": 4, "fate_tokens catch stale ": 8, "fate_reward catch stale ": 0.5,
		"fate_rollouts catch packed ": 4, "fate_tokens catch packed ": 4, "fate_reward catch packed ": 1.5,
	}); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Rewards that are finite, and of which sums are not, leave a state that can be written.
func TestStateOfLargeRewards(t *testing.T) {
	var s state
	huge, small := math.MaxFloat64, 1e100
	s.Since.count(&schemas.SampleGroup{Env: "e"}, schemas.FatePacked, []schemas.RolloutFate{
		{Fate: schemas.FatePacked, Reward: &huge}, {Fate: schemas.FatePacked, Reward: &huge}, {Fate: schemas.FatePacked, Reward: &small}, {Fate: schemas.FatePacked, Reward: &small},
	})
	b, err := s.bytes()
	if err != nil {
		t.Fatal(err)
	}
	again, err := readState(b)
	if err != nil || again.Since.Rewards["e"] != (mean{2e100, 2}) || again.Since.Packed["e"].Reward != (mean{2e100, 2}) {
		t.Errorf("%+v, %v", again.Since, err)
	}
}
