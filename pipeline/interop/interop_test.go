// Package interop holds prl to its word that a topic is readable and writable by anybody who has the .avsc files: Python's
// confluent-kafka and fastavro (interop.py) read every kind of record as Go wrote it, and write traces that the scorer
// takes.
//
// `make python` installs the Python packages. Without them the test is skipped, or fails where PRL_TEST_PYTHON=required.
package interop

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/prl-project/prl/deploy/kafka/kafkatest"
	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/scorer"
)

// python is where `make python` puts the interpreter with the packages.
const python = "../../.cache/python"

//go:embed interop.py
var script string

// deadline bounds every wait of the tests.
const deadline = time.Minute

// A world is a run on a broker, in one of the framings.
type world struct {
	*pipeline.Runtime
	registry string // URL; empty for Avro single-object encoding
}

// each runs a test on every broker, and once with a schema registry.
func each(t *testing.T, test func(t *testing.T, w world)) {
	need.Clients(t, python)
	kafkatest.Each(t, func(t *testing.T, b kafkatest.Broker) {
		test(t, newWorld(t, b.Addrs, ""))
		if b.Fake != nil {
			t.Run("registry", func(t *testing.T) {
				reg := srfake.New()
				t.Cleanup(reg.Close)
				test(t, newWorld(t, b.Addrs, reg.URL()))
			})
		}
	})
}

func newWorld(t *testing.T, brokers []string, registry string) world {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	cfg := pipeline.DefaultSchemaRegistryConfig()
	if registry != "" {
		cfg.URLs = []string{registry}
	}
	ids, err := pipeline.NewSchemaRegistry(cfg, log)
	if err == nil && ids != nil {
		err = ids.Resolve(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := pipeline.OpenBlobs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { blobs.Close() })
	run := pipeline.DefaultRunConfig()
	run.Name = fmt.Sprintf("interop-%08x", rand.Uint32())
	rt := &pipeline.Runtime{Run: run, Brokers: brokers, Schemas: ids, Instance: "one", Blobs: blobs, Log: log,
		Metrics: pipeline.NewMetrics(prometheus.NewRegistry()), Health: &pipeline.Health{}}
	if err := rt.SetUp(t.Context(), []string{"interop"}); err != nil {
		t.Fatal(err)
	}
	return world{rt, registry}
}

// run runs a command of interop.py and returns what it prints.
func (w world) run(t *testing.T, command string, topics ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	args := []string{"-c", script, command, strings.Join(w.Brokers, ","), filepath.FromSlash("../../schemas"), w.registry}
	for _, name := range topics {
		args = append(args, w.TopicName(name))
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(python, "bin", "python3"), args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("interop.py %s: %v\n%s", command, err, stderr.String())
	}
	return out
}

// A line is a record as Python read it, or as it should have.
type line struct {
	Topic     string
	Partition int32
	Offset    int64
	Key, Name string
	Value     any
}

func (w world) read(t *testing.T, topics ...string) []line {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(w.run(t, "read", topics...)))
	dec.UseNumber()
	var lines []line
	for dec.More() {
		var l line
		if err := dec.Decode(&l); err != nil {
			t.Fatal(err)
		}
		l.Topic = w.BaseName(l.Topic)
		lines = append(lines, l)
	}
	order(lines)
	return lines
}

func order(lines []line) {
	slices.SortFunc(lines, func(a, b line) int {
		return strings.Compare(fmt.Sprintf("%s %03d %06d", a.Topic, a.Partition, a.Offset), fmt.Sprintf("%s %03d %06d", b.Topic, b.Partition, b.Offset))
	})
}

// same fails unless Python read what Go did.
func same(t *testing.T, got, want []line) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("Python read %d records, want %d", len(got), len(want))
	}
	for i := range min(len(got), len(want)) {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("Python read\n%+v\nwant\n%+v", got[i], want[i])
		}
	}
}

// TestPythonReads has Go write records of every kind in a transaction, after one that is aborted.
func TestPythonReads(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		cl, err := w.Client(kgo.TransactionalID(w.TopicName("interop")), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		rng := rand.New(rand.NewPCG(3, 5))
		var topics []string
		var want []line
		for _, commit := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
			if err := cl.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			var records []*kgo.Record
			topics, want = nil, nil
			for _, spec := range pipeline.Topics {
				if spec.Record == "" {
					continue
				}
				topic := spec.Name
				if _, ok := pipeline.EnvOfTasks(topic); ok {
					topic = pipeline.TopicTasks("interop")
				}
				topics = append(topics, topic)
				for range 10 {
					v := schemas.New(spec.Record)
					fill(rng, reflect.ValueOf(v).Elem())
					r, err := w.Encode(t.Context(), pipeline.Emission{Topic: topic, Partition: 0, Value: v})
					if err != nil {
						t.Fatal(err)
					}
					records = append(records, r)
					want = append(want, line{Topic: topic, Key: string(r.Key), Name: v.SchemaName(), Value: plain(reflect.ValueOf(v))})
				}
			}
			if err := pipeline.ProduceAll(t.Context(), cl, records); err != nil {
				t.Fatal(err)
			}
			if err := cl.EndTransaction(t.Context(), commit); err != nil {
				t.Fatal(err)
			}
			for i, r := range records {
				want[i].Offset = r.Offset
			}
		}
		order(want)
		same(t, w.read(t, topics...), want)
	})
}

// TestPythonWrites has the scorer decide a group of traces that Python wrote, and Python read what the scorer wrote.
func TestPythonWrites(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		p, err := pipeline.NewProcessor(w.Runtime, pipeline.ProcessorConfig{
			Stage: "scorer", Inputs: []string{pipeline.TopicTraces}, New: scorer.New(w.Run, scorer.DefaultConfig(), 2)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		w.run(t, "write", pipeline.TopicTraces)
		recs := w.follow(t, 1, pipeline.TopicSamples)
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		recs = append(recs, w.follow(t, 3, pipeline.TopicTraces, pipeline.TopicState)...)

		g := recs[0].Value.(*schemas.SampleGroup)
		if g.Env != "interop" || g.GroupID != 7 || g.TaskIndex != 17 || g.Emitted != 2 || g.Reason != "" || len(g.Samples) != 2 {
			t.Fatalf("the scorer decided %+v", g)
		}
		for i, s := range g.Samples {
			if !reflect.DeepEqual(s.TokenIDs.Values(), []int32{100, 101, int32(10 * i), 11, 12}) || s.Advantages.At(4) != float32(i)-0.5 || *g.Rollouts[i].PolicyStart != 4 {
				t.Errorf("sample %d: %+v", i, s)
			}
		}
		var want []line
		for _, r := range recs {
			want = append(want, line{r.Topic, r.Partition, r.Offset, r.Key, r.Value.SchemaName(), plain(reflect.ValueOf(r.Value))})
		}
		order(want)
		same(t, w.read(t, pipeline.TopicTraces, pipeline.TopicSamples, pipeline.TopicState), want)
	})
}

// follow reads topics until least records have come.
func (w world) follow(t *testing.T, least int, topics ...string) []pipeline.Record {
	t.Helper()
	f, err := w.Follow(topics...)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	recs, err := f.Load(ctx)
	for err == nil && len(recs) < least && ctx.Err() == nil {
		var more []pipeline.Record
		more, err = f.Poll(ctx)
		recs = append(recs, more...)
	}
	if err != nil || len(recs) < least {
		t.Fatalf("%d records of at least %d on %v: %v", len(recs), least, topics, err)
	}
	return recs
}

// plain is a value as interop.py prints it: fields by their Avro names, doubles by their bits, bytes in hexadecimal.
func plain(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return plain(v.Elem())
	case reflect.Struct:
		m := map[string]any{}
		for i := range v.NumField() {
			m[v.Type().Field(i).Tag.Get("avro")] = plain(v.Field(i))
		}
		return m
	case reflect.Map:
		m := map[string]any{}
		for k, e := range v.Seq2() {
			m[k.String()] = plain(e)
		}
		return m
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return "bytes " + hex.EncodeToString(v.Bytes())
		}
		list := []any{}
		for i := range v.Len() {
			list = append(list, plain(v.Index(i)))
		}
		return list
	case reflect.Float64:
		return fmt.Sprintf("double %016x", math.Float64bits(v.Float()))
	case reflect.Int, reflect.Int64:
		return json.Number(fmt.Sprint(v.Int()))
	}
	return v.Interface()
}

// fill gives every field a value, the ends of its range among them.
func fill(rng *rand.Rand, v reflect.Value) {
	few := rng.IntN(3)
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(rng.IntN(2) == 0)
	case reflect.Int:
		v.SetInt([]int64{math.MinInt32, -1, 0, math.MaxInt32, int64(rng.Int32())}[rng.IntN(5)])
	case reflect.Int64:
		v.SetInt([]int64{math.MinInt64, -1, 0, math.MaxInt64, rng.Int64()}[rng.IntN(5)])
	case reflect.Float64:
		v.SetFloat([]float64{math.Inf(-1), math.Copysign(0, -1), math.SmallestNonzeroFloat64, math.MaxFloat64, rng.NormFloat64()}[rng.IntN(5)])
	case reflect.String:
		v.SetString([]string{"", "\x00\n\"<&", "ßµ☃\U0001F600", strings.Repeat("long ", 40), fmt.Sprint(rng.Uint64())}[rng.IntN(5)])
	case reflect.Pointer:
		if few > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(rng, v.Elem())
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), few, few))
		for i := range few {
			fill(rng, v.Index(i))
		}
	case reflect.Uint8:
		v.SetUint(rng.Uint64N(256))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for i := range few {
			e := reflect.New(v.Type().Elem()).Elem()
			fill(rng, e)
			v.SetMapIndex(reflect.ValueOf(fmt.Sprint("key ☃", i)), e)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(rng, v.Field(i))
		}
	default:
		panic(fmt.Sprintf("a record holds a %v", v.Type()))
	}
}
