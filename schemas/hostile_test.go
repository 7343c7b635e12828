package schemas

import (
	"bytes"
	"encoding/binary"
	"flag"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// hostile is the corpus of records that nobody may believe; the pipeline's tests read it, too. A record that ever got
// through is put there as a file of its own.
const hostile = "testdata/hostile"

var update = flag.Bool("update", false, "write the corpus of hostile records anew")

// TestHostileCorpus refuses every record of the corpus with a reason.
func TestHostileCorpus(t *testing.T) {
	made := makeHostile(t)
	if *update {
		for name, b := range made {
			if err := os.WriteFile(filepath.Join(hostile, name), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(made)) {
		if _, err := os.Stat(filepath.Join(hostile, name)); err != nil {
			t.Errorf("%v: go test ./schemas -run Hostile -update", err)
		}
	}
	entries, err := os.ReadDir(hostile)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(hostile, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if r, err := Decode(b); err == nil {
			t.Errorf("%s is believed to be a %s", e.Name(), r.SchemaName())
		}
	}
}

// makeHostile breaks good records, each in one way.
func makeHostile(t *testing.T) map[string][]byte {
	t.Helper()
	good := func(r Record) []byte {
		b, err := Encode(r)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	trace := func(change func(*Trace)) []byte { r := exampleTrace(3, 4); change(r); return good(r) }
	samples := func(change func(*SampleGroup)) []byte { r := exampleSamples(); change(r); return good(r) }
	batch := func(change func(*MicroBatch)) []byte { r := exampleBatch(); change(r); return good(r) }
	nan := func(n int) []byte { return bytes.Repeat(PackFloat32s([]float32{float32(math.NaN())}), n) }
	whole := good(exampleTrace(3, 4))
	negative := append(header("Trace"), binary.AppendVarint(nil, -5)...) // the length of the first string
	huge := append(header("Trace"), binary.AppendVarint(nil, math.MaxInt64)...)
	return map[string][]byte{
		"empty":                   {},
		"text":                    []byte("{\"env\": \"catch\"}"),
		"zeros":                   make([]byte, 64),
		"marker":                  {0xC3, 0x01},
		"unknown-schema":          append([]byte{0xC3, 0x01, 1, 2, 3, 4, 5, 6, 7, 8}, whole[10:]...),
		"confluent-framing":       append([]byte{0, 0, 0, 0, 1}, whole[10:]...),
		"header-alone":            header("Trace"),
		"truncated":               whole[:len(whole)/2],
		"one-byte-short":          whole[:len(whole)-1],
		"one-byte-long":           append(bytes.Clone(whole), 0),
		"twice":                   append(bytes.Clone(whole), whole...),
		"negative-length":         negative,
		"huge-length":             huge,
		"another-records-body":    append(header("Task"), whole[10:]...),
		"trace-no-env":            trace(func(r *Trace) { r.Env = "" }),
		"trace-negative-group":    trace(func(r *Trace) { r.GroupID = math.MinInt64 }),
		"trace-rollout-outside":   trace(func(r *Trace) { r.RolloutIndex = 8 }),
		"trace-unknown-parent":    trace(func(r *Trace) { r.Nodes[1].Parent = 77 }),
		"trace-cycle":             trace(func(r *Trace) { r.Nodes[0].Parent, r.Nodes[1].Parent = 1, 0 }),
		"trace-own-parent":        trace(func(r *Trace) { r.Nodes[2].Parent = 2 }),
		"trace-short-mask":        trace(func(r *Trace) { r.Nodes[1].Mask = r.Nodes[1].Mask[:3] }),
		"trace-odd-bytes":         trace(func(r *Trace) { r.Nodes[0].TokenIDs = r.Nodes[0].TokenIDs[:7] }),
		"trace-mask-of-two":       trace(func(r *Trace) { r.Nodes[0].Mask[3] = 2 }),
		"trace-logprob-nan":       trace(func(r *Trace) { r.Nodes[0].Logprobs = nan(4) }),
		"trace-token-reward-nan":  trace(func(r *Trace) { r.Nodes[0].TokenRewards = nan(4) }),
		"trace-reward-nan":        trace(func(r *Trace) { r.Reward = new(math.NaN()) }),
		"trace-reward-infinite":   trace(func(r *Trace) { r.Rewards["green"] = new(math.Inf(1)) }),
		"trace-version-negative":  trace(func(r *Trace) { r.Nodes[0].Versions[0].Version = -1 }),
		"trace-version-outside":   trace(func(r *Trace) { r.Nodes[0].Versions[1].Offset = 4 }),
		"trace-blob-negative":     trace(func(r *Trace) { claim(r, "nodes.0.mask", -4) }),
		"samples-none":            samples(func(r *SampleGroup) { r.Samples = nil }),
		"samples-advantage-nan":   samples(func(r *SampleGroup) { r.Samples[0].Advantages = nan(2) }),
		"samples-short":           samples(func(r *SampleGroup) { r.Samples[0].Temperatures = nil }),
		"batch-lengths":           batch(func(r *MicroBatch) { r.SeqLens = PackInt32s([]int32{1 << 30, 1}) }),
		"batch-negative-length":   batch(func(r *MicroBatch) { r.SeqLens = PackInt32s([]int32{4, -1}) }),
		"batch-logprob-nan":       batch(func(r *MicroBatch) { r.Logprobs = nan(3) }),
		"task-no-env":             good(&Task{GroupSize: 1}),
		"task-rollout-outside":    good(&Task{Env: "catch", GroupSize: 1, RolloutIndex: 1}),
		"outcome-no-fate":         good(&GroupOutcome{Env: "catch"}),
		"request-of-nothing":      good(&Request{}),
		"policy-without-weights":  good(&PolicyVersion{}),
		"policy-negative":         good(&PolicyVersion{Version: -1, Weights: BlobRef{URI: "weights/x", SHA256: "x"}}),
		"state-crossed":           good(&StageState{Stage: "scorer", Topic: "traces", LowOffset: 9, NextOffset: 3}),
		"env-info-without-name":   good(&EnvInfo{}),
		"eval-result-of-nothing":  good(&EvalResult{}),
		"metric-point-of-nothing": good(&MetricPoint{}),
	}
}
