package inference

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
	"github.com/prl-project/prl/stages/internal/safetensors"
	"github.com/prl-project/prl/stages/internal/weights"
)

// A lineage is a run whose versions are published in every way: 0 full, 1 and 2 deltas, 3 and 4 adapters for 2, 5 full.
type lineage struct {
	rt      *pipeline.Runtime
	records []*schemas.PolicyVersion
	models  []*lm.Model // that must be served
}

func newLineage(t testing.TB) lineage {
	t.Helper()
	l := lineage{rt: testRuntime(t, t.TempDir())}
	var last Policy
	for v := range int64(6) {
		m, tok := testModel(t, 0)
		switch v {
		case 1, 2, 5: // two tensors change
			copyParams(t, m, l.models[v-1])
			for _, p := range m.Params()[v : v+2] {
				p.Data[int(v)%len(p.Data)] += 0.75
			}
			copyParams(t, m, m)
		case 3, 4:
			copyParams(t, m, l.models[2])
		}
		p := policyOf(t, v, m, tok)
		record := store(t, l.rt, p)
		switch v {
		case 1, 2:
			asDelta(t, l.rt, record, last, p)
		case 3, 4:
			asAdapter(t, l.rt, record, l.records[2], m)
		}
		l.records, l.models, last = append(l.records, record), append(l.models, m), p
	}
	return l
}

// copyParams gives a model the weights of another, or, where they are the same, tells it that they were changed.
func copyParams(t testing.TB, to, from *lm.Model) {
	t.Helper()
	if err := to.Load(from.Params()); err != nil {
		t.Fatal(err)
	}
}

// asDelta publishes next as what it changes of base; the whole weights are not in the store.
func asDelta(t testing.TB, rt *pipeline.Runtime, record *schemas.PolicyVersion, base, next Policy) {
	t.Helper()
	dir := t.TempDir()
	a, b, out := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "delta")
	if err := errors.Join(os.WriteFile(a, base.Weights, 0o600), os.WriteFile(b, next.Weights, 0o600)); err != nil {
		t.Fatal(err)
	}
	d, err := weights.WriteDelta(out, a, b)
	if err != nil {
		t.Fatal(err)
	}
	if d.Tensors == 0 || d.Tensors == d.Of {
		t.Fatalf("%d of %d tensors changed", d.Tensors, d.Of)
	}
	d.Record(record)
	remove(t, rt, record.Weights)
	if record.Weights, err = rt.Blobs.PutFile(t.Context(), "weights", out); err != nil {
		t.Fatal(err)
	}
}

func remove(t testing.TB, rt *pipeline.Runtime, ref schemas.BlobRef) {
	t.Helper()
	for b, err := range rt.Blobs.List(t.Context()) {
		if err == nil && b.URI == ref.URI {
			err = rt.Blobs.Delete(t.Context(), b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// asAdapter publishes an adapter of rank 1 with factors of whole numbers for a matrix of base, and puts what it adds, 0.5
// times their product, into m.
func asAdapter(t testing.TB, rt *pipeline.Runtime, record, base *schemas.PolicyVersion, m *lm.Model) {
	t.Helper()
	i := slices.IndexFunc(m.Params(), func(p lm.Param) bool { return p.Name == "model.layers.1.self_attn.q_proj.weight" })
	w := m.Params()[i]
	rows, cols := w.Shape[0], w.Shape[1]
	const name = "base_model.model.model.layers.1.self_attn.q_proj."
	h, err := safetensors.MakeHeader(map[string]string{"adapter_config": `{"peft_type":"LORA","r":1,"lora_alpha":0.5}`}, []safetensors.Tensor{
		{Name: name + "lora_A.weight", DType: "F32", Shape: []int{1, cols}}, {Name: name + "lora_B.weight", DType: "F32", Shape: []int{rows, 1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	factors := make([]float32, cols+rows)
	for i := range factors {
		factors[i] = float32((i + int(record.Version)) % 3)
	}
	for i := range w.Data {
		w.Data[i] += 0.5 * factors[cols+i/cols] * factors[i%cols]
	}
	copyParams(t, m, m)
	data := append(h.Raw, make([]byte, 4*len(factors))...)
	if err := safetensors.PutFloats("F32", data[len(h.Raw):], factors); err != nil {
		t.Fatal(err)
	}
	remove(t, rt, record.Weights)
	if record.Weights, err = rt.Blobs.Put(t.Context(), "weights", data); err != nil {
		t.Fatal(err)
	}
	record.Kind, record.BaseSHA256 = schemas.KindLoRA, base.WeightsSHA256()
}

// server has the versions of a lineage published up to one, all at once.
func (l lineage) server(t *testing.T, keepMiB int, upTo int64) *Server {
	t.Helper()
	cfg := testConfig()
	cfg.KeepMiB, cfg.Versions = keepMiB, 2
	s, err := New(l.rt, cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	runBackend(t, s.backend)
	publish(t, s, l.records[:upTo+1]...)
	return s
}

// check asks a server for a version, and compares with what the model gives that it must be.
func (l lineage) check(t *testing.T, s *Server, version int64) {
	t.Helper()
	r := Request{Tokens: []int32{9, 8, 7}, MaxTokens: 12, Temperature: 1, Seed: version, PinVersion: &version}
	got, err := s.Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	sameBits(t, fmt.Sprintf("version %d", version), got, alone(t, r, s.cfg.MaxModelLen, l.models[version:version+1], []int64{version}, []int{0}))
}

// TestDeltasAndAdaptersAreServed serves versions that are published in parts as if they were whole: one after the other,
// from each of them on, and again after they were unloaded; with the weights of the version before in memory and without.
func TestDeltasAndAdaptersAreServed(t *testing.T) {
	l := newLineage(t)
	for _, keepMiB := range []int{0, 100} {
		for first := range int64(len(l.records)) {
			s := l.server(t, keepMiB, first)
			l.check(t, s, first)
			for v := first + 1; v < int64(len(l.records)); v++ {
				publish(t, s, l.records[v])
				l.check(t, s, v)
			}
			for _, v := range []int64{1, 3, 0, 4, 2, 5} {
				l.check(t, s, v)
			}
		}
	}
}

// A tally counts what is read.
type tally struct {
	weights.Store
	read []string
}

func (s *tally) Get(ctx context.Context, ref schemas.BlobRef) ([]byte, error) {
	s.read = append(s.read, ref.URI)
	return s.Store.Get(ctx, ref)
}

// TestADeltaNeedsItsOwnBlobAlone: with the weights of the version before in memory. Where they are larger than what may be
// kept, the chain is read.
func TestADeltaNeedsItsOwnBlobAlone(t *testing.T) {
	l := newLineage(t)
	for keepMiB, want := range map[int]int{100: 3, 0: 5} {
		store := &tally{Store: l.rt.Blobs}
		loader := newLoader(store, keepMiB)
		loader.publish(l.records...)
		for _, v := range []*schemas.PolicyVersion{l.records[1], l.records[0], l.records[2]} { // an older one between
			store.read = nil
			_, whole, err := loader.policy(t.Context(), v)
			if err != nil {
				t.Fatal(err)
			}
			loader.keep(whole, v.Version)
		}
		if len(store.read) != want || store.read[len(store.read)-3] != l.records[2].Weights.URI {
			t.Errorf("with %d MiB kept, version 2 took %v", keepMiB, store.read)
		}
	}
	loader := newLoader(l.rt.Blobs, 100)
	loader.publish(l.records[0], l.records[5])
	_, whole, err := loader.policy(t.Context(), l.records[5])
	loader.keep(whole, 5)
	if err != nil || loader.kept.Bytes != nil {
		t.Errorf("a run of full versions keeps %d bytes, error %v", len(loader.kept.Bytes), err)
	}
}

// TestADeltaThatGivesOtherWeightsIsNotServed: the version before goes on serving, the failure is not logged at every try, and
// the next version whose record is right comes.
func TestADeltaThatGivesOtherWeightsIsNotServed(t *testing.T) {
	l := newLineage(t)
	for _, keepMiB := range []int{0, 100} {
		s := l.server(t, keepMiB, 1)
		l.check(t, s, 1)
		var log strings.Builder
		wrong := *l.records[2]
		wrong.FullSHA256 = l.records[0].Weights.SHA256
		s.rt.Log = slog.New(slog.NewTextHandler(&log, nil))
		publish(t, s, &wrong)
		publish(t, s) // the next try
		if n := strings.Count(log.String(), "cannot be served"); n != 1 {
			t.Errorf("logged %d times: %s", n, log.String())
		}
		r := Request{Tokens: []int32{9, 8, 7}, MaxTokens: 3, Temperature: 1}
		if got, err := s.Generate(t.Context(), r); err != nil || got.Versions[0].Version != 1 {
			t.Errorf("%v serves, error %v", got.Versions, err)
		}
		publish(t, s, l.records[5])
		l.check(t, s, 5)
	}
}

// TestTheArrivalOfAVersionIsMeasured counts each version once, by its kind, when it has sampled its first token: one that was
// overtaken is not.
func TestTheArrivalOfAVersionIsMeasured(t *testing.T) {
	l := newLineage(t)
	s := l.server(t, 100, 0)
	measured := func(kind string) uint64 {
		var d dto.Metric
		if err := s.metrics.arrival.seconds.WithLabelValues(kind).(prometheus.Metric).Write(&d); err != nil {
			t.Error(err)
		}
		return d.GetHistogram().GetSampleCount()
	}
	for _, c := range []struct {
		kind     string
		versions []*schemas.PolicyVersion
	}{{schemas.KindFull, nil}, {schemas.KindDelta, l.records[1:3]}, {schemas.KindLoRA, l.records[3:4]}} {
		publish(t, s, c.versions...)
		if n := measured(c.kind); n != 0 {
			t.Errorf("a version of kind %s that has sampled nothing was measured", c.kind)
		}
		for shown := 0; shown < 2; { // one that is sampled at once may be over before it is shown
			r := Request{Tokens: []int32{9, 8, 7}, MaxTokens: 20, Temperature: 1, OnTokens: func(soFar Completion) bool {
				shown++
				if n := measured(c.kind); n != 1 {
					t.Errorf("%d versions of kind %s were measured at the first token", n, c.kind)
				}
				return true
			}}
			if _, err := s.Generate(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		if n := measured(c.kind); n != 1 {
			t.Errorf("%d versions of kind %s were measured", n, c.kind)
		}
	}
}

// TestWeightsKeptAreNotTheBackends changes what a backend was given, as one that reuses memory might: a version that is
// made from it is refused, not served.
func TestWeightsKeptAreNotTheBackends(t *testing.T) {
	l := newLineage(t)
	loader := newLoader(l.rt.Blobs, 100)
	loader.publish(l.records...)
	p, whole, err := loader.policy(t.Context(), l.records[1])
	if err != nil {
		t.Fatal(err)
	}
	loader.keep(whole, 1)
	p.Weights[len(p.Weights)-1] ^= 1
	if _, _, err := loader.policy(t.Context(), l.records[2]); err == nil {
		t.Error("version 2 is made from weights that are not those of version 1")
	}
	got, _, err := loader.policy(t.Context(), l.records[2]) // read anew
	want := policyOf(t, 2, l.models[2], nil)
	if err != nil || !bytes.Equal(got.Weights, want.Weights) {
		t.Errorf("version 2 read anew: error %v", err)
	}
}
