package scorer

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/idset"
	"github.com/prl-project/prl/stages/scorer/advantage"
)

func averaging() Config { return with(func(s *Settings) { s.Advantage = advantage.RAE }) }

// The moving average outlives groups and restarts, and is moved by decided groups alone.
func TestAveragesInState(t *testing.T) {
	r := pipelinetest.NewRunner(t, coreOf(averaging(), 1, 0))
	feed(t, r, trace(1, 2, 0, 100))
	if groups := feed(t, r, trace(0, 2, 0, 1), trace(0, 2, 1, 1)); groups[0].Samples[1].Advantages.At(2) != 0.95 {
		t.Fatalf("%v", groups[0].Samples[1].Advantages.Values())
	}
	r.Restart(t)
	groups := feed(t, r, trace(1, 2, 1, 0))
	if got, want := groups[0].Samples[0].Advantages.At(2), float32(100-0.0975); got != want {
		t.Errorf("advantage %v after a restart, want %v", got, want)
	}
}

// Without averages a state is the bytes it always was; with them it cannot be taken for those.
func TestState(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var ids idset.Set
		averages := advantage.Averages{}
		for range rng.IntN(8) {
			ids.Add(rng.Int64N(1 << rng.IntN(40)))
		}
		if plain := writeState(&ids, averages); string(plain) != string(ids.Bytes()) {
			t.Fatalf("state %x of the set %x", plain, ids.Bytes())
		}
		for i := range rng.IntN(3) {
			averages[advantage.Key{Env: "e", Agent: string('a' + rune(i))}] = rng.NormFloat64()
		}
		state := writeState(&ids, averages)
		gotIDs, gotAverages, err := readState(state)
		if err != nil || string(gotIDs.Bytes()) != string(ids.Bytes()) || !reflect.DeepEqual(gotAverages, averages) {
			t.Fatalf("%x came back as %x, %v, %v", state, gotIDs.Bytes(), gotAverages, err)
		}
		for cut := range state {
			_, _, _ = readState(state[:cut]) // whatever it says, it does not panic
		}
	}
	if _, _, err := readState([]byte{0x80, 0, 9, 0, 0}); err == nil {
		t.Error("a set that is cut off was read")
	}
}

func TestConformanceOfAverages(t *testing.T) {
	for seed := range uint64(5) {
		var steps []pipelinetest.Step
		for i, trace := range failing(rand.New(rand.NewPCG(seed, 7)), 4) {
			if seed%2 == 0 && trace.Nodes != nil {
				trace.Nodes[1].Agent = []string{"solver", "other"}[i%2]
			}
			steps = append(steps, pipelinetest.Step{Record: &pipeline.Record{
				Ref: pipeline.Ref{Topic: pipeline.TopicTraces, Offset: int64(i)}, Value: trace}})
		}
		pipelinetest.Check(t, coreOf(averaging(), 1, 0), steps)
	}
}

// In ordered mode the order of the log is chance: groups of a wave are decided in the order of their ids, in any case.
func TestAveragesInOrderedMode(t *testing.T) {
	run := pipeline.DefaultRunConfig()
	run.TracePartitions, run.MaxAsyncLevel = 1, 0
	factory := New(run, averaging(), 2)
	newCore := func(state []byte) (pipeline.Core, error) { return factory(0, state) }
	var want []*schemas.SampleGroup
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		r := pipelinetest.NewRunner(t, newCore)
		var got []*schemas.SampleGroup
		for wave := range int64(3) { // groups 7 to 18: a run that goes on where another one was
			var traces []*schemas.Trace
			for g := 7 + 4*wave; g < 11+4*wave; g++ {
				for i := range 2 {
					tr := trace(g, 2, i, float64(g)+float64(i))
					tr.Step, tr.Wave, tr.WaveFirst, tr.WaveLast = wave+1, 1, 7+4*wave, 10+4*wave
					traces = append(traces, tr)
				}
			}
			rng.Shuffle(len(traces), func(i, j int) { traces[i], traces[j] = traces[j], traces[i] })
			for _, tr := range traces {
				if rng.IntN(4) == 0 {
					r.Restart(t)
				}
				got = append(got, feed(t, r, tr)...)
			}
		}
		if want == nil {
			want = got
		}
		if len(got) != 12 || len(r.Unfinished()) > 0 || !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: %d groups, %d unfinished, as the first time: %v", seed, len(got), len(r.Unfinished()), reflect.DeepEqual(got, want))
		}
	}
}
