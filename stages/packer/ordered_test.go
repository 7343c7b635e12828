package packer

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
)

func ordered() pipeline.RunConfig {
	run := config()
	run.MaxAsyncLevel = 0
	return run
}

func TestWaves(t *testing.T) {
	r := newRunner(t, ordered(), DefaultConfig())
	first := []*schemas.SampleGroup{
		in(without(1, 2, "filtered", "zero_advantage"), 1, 1, 0, 1), in(group(0, version(0), 2, 2), 1, 1, 0, 1),
	}
	o := feed(t, r, first...)
	if len(o.outcomes) != 0 || len(o.requests) != 1 || *o.requests[0] != (schemas.Request{Kind: "wave", Step: 1, Wave: 2, Rollouts: 2}) {
		t.Fatalf("after the first wave: %s %+v", fates(o), o.requests)
	}
	r.Restart(t)
	o = feed(t, r, in(group(2, version(0), 2, 2), 1, 2, 2, 2))
	if got := fates(o); got != "0 packed 1; 1 filtered zero_advantage; 2 packed 1; " {
		t.Fatalf("after the second: %s", got)
	}
	o = feed(t, r, in(group(4, version(1), 2, 2), 2, 1, 3, 4), in(group(3, version(1), 2, 2), 2, 1, 3, 4))
	if got := fates(o); got != "3 packed 2; 4 packed 2; " {
		t.Fatalf("second step: %s", got)
	}
}

func TestMaxWaves(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxWaves = 2
	r := newRunner(t, ordered(), cfg)
	o := feed(t, r, in(group(0, nil, 2, 2), 1, 1, 0, 0), in(without(1, 2, "errored", ""), 1, 2, 1, 1))
	if got := fates(o); got != "0 packed 1; 1 errored; " {
		t.Errorf("what there is: %s", got)
	}
	r = newRunner(t, ordered(), cfg)
	feed(t, r, in(without(0, 2, "filtered", "zero_advantage"), 1, 1, 0, 0), in(without(1, 2, "errored", ""), 1, 2, 1, 1))
	if len(r.Poison) != 1 || !errors.Is(r.Poison[0], pipeline.ErrFatal) {
		t.Fatalf("nothing: %v", r.Poison)
	}
	if got := r.Poison[0].Error(); !strings.Contains(got, "no sample after 2 waves (groups by what ended them: errored 1, filter zero_advantage 1)") {
		t.Error(got)
	}
}

// A group that cannot be decoded counts for its wave, whether it comes first, last or alone.
func TestUndecodableInWave(t *testing.T) {
	for name, steps := range map[string][]pipelinetest.Step{
		"first":      {undecodable(0, "0"), at(1, in(group(1, nil, 2, 2), 1, 1, 0, 1))},
		"last":       {at(0, in(group(0, nil, 2, 2), 1, 1, 0, 1)), undecodable(1, "1")},
		"disagrees":  {at(0, in(group(0, nil, 2, 2), 1, 1, 0, 1)), at(1, in(group(1, nil, 2, 2), 1, 1, 1, 1))},
		"wrong step": {at(0, in(group(0, nil, 2, 2), 1, 1, 0, 1)), at(1, group(1, nil, 2, 2))},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRunner(t, ordered(), DefaultConfig())
			for _, s := range steps {
				r.Step(t, s)
			}
			o := sorted(t, r.Emitted)
			if len(o.outcomes) != 1 || o.outcomes[0].Fate != "errored" || len(o.requests) != 1 || o.requests[0].Rollouts != 2 {
				t.Fatalf("%s %+v", fates(o), o.requests)
			}
			r.Restart(t)
			r.Step(t, undecodable(2, "2")) // all of the second wave
			o = sorted(t, r.Emitted)
			if len(o.requests) != 2 || o.requests[1].Wave != 3 {
				t.Fatalf("%s %+v", fates(o), o.requests)
			}
			r.Restart(t)
			r.Step(t, at(3, in(group(3, nil, 2, 2), 1, 3, 3, 3)))
			if o = sorted(t, r.Emitted); len(o.outcomes) != 4 || len(o.batches) == 0 {
				t.Fatalf("%s", fates(o))
			}
		})
	}
}

// The first wave of the second step cannot be decoded at all: its size follows from that of the first step's groups.
func TestUndecodableWave(t *testing.T) {
	r := newRunner(t, ordered(), DefaultConfig())
	feed(t, r, in(group(0, nil, 2, 2), 1, 1, 0, 1), in(group(1, nil, 2, 2), 1, 1, 0, 1))
	r.Restart(t)
	r.Step(t, undecodable(10, "3"))
	if len(sorted(t, r.Emitted).requests) != 0 {
		t.Fatal("half of the wave was taken for all of it")
	}
	r.Step(t, undecodable(11, "2"))
	if o := sorted(t, r.Emitted); len(o.requests) != 1 || o.requests[0].Step != 2 || o.requests[0].Wave != 2 || o.requests[0].Rollouts != 4 {
		t.Fatalf("%s %+v", fates(o), o.requests)
	}
}

func at(offset int64, g *schemas.SampleGroup) pipelinetest.Step {
	return pipelinetest.Step{Record: &pipeline.Record{Ref: pipeline.Ref{Topic: pipeline.TopicSamples, Offset: offset}, Value: g}}
}

// A run in ordered mode: the groups of each wave come in any order, some twice.
func playOrdered(t testing.TB, arrival *rand.Rand) []byte {
	t.Helper()
	run := ordered()
	run.BatchSize, run.Ranks = 24, 3
	r := newRunner(t, run, DefaultConfig())
	content := rand.New(rand.NewPCG(9, 9))
	next := int64(0)
	for step := int64(1); step <= run.MaxSteps; step++ {
		missing := run.BatchSize
		for wave := 1; missing > 0; wave++ {
			first, last := next, next+int64((missing+3)/4)-1
			var groups []*schemas.SampleGroup
			for id := first; id <= last; id++ {
				g := without(id, 4, "filtered", "zero_advantage")
				if content.IntN(3) > 0 {
					g = group(id, version(step-1), 1+content.IntN(10), 1+content.IntN(10), 1+content.IntN(10), 1+content.IntN(10))
				}
				for i := range g.Rollouts {
					reward := content.Float64()
					g.Rollouts[i].Reward = &reward
				}
				groups = append(groups, in(imitated(content, g), step, wave, first, last))
			}
			next = last + 1
			arrival.Shuffle(len(groups), func(i, j int) { groups[i], groups[j] = groups[j], groups[i] })
			missing = 0
			for _, g := range groups {
				o := feed(t, r, g)
				if arrival.IntN(3) == 0 {
					feed(t, r, g)
				}
				for _, req := range o.requests {
					missing = req.Rollouts
				}
			}
		}
	}
	if len(r.Unfinished()) > 0 {
		t.Fatalf("%d groups are unfinished", len(r.Unfinished()))
	}
	var b bytes.Buffer
	for _, e := range r.Emitted {
		enc, err := schemas.Encode(e.Value)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(enc)
	}
	return b.Bytes()
}

func TestInvariant_Determinism(t *testing.T) {
	want := playOrdered(t, rand.New(rand.NewPCG(0, 0)))
	for seed := range uint64(10) {
		if !bytes.Equal(playOrdered(t, rand.New(rand.NewPCG(seed, 1))), want) {
			t.Fatalf("seed %d: another order of arrival gave other bytes", seed)
		}
	}
}
