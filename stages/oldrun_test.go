package stages

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/pelletier/go-toml/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/broker"
	"github.com/prl-project/prl/stages/packer"
	"github.com/prl-project/prl/stages/scorer"
	"github.com/prl-project/prl/stages/sink"
	"github.com/prl-project/prl/stages/trainer"
)

// oldRuns are recorded runs, each made when a version of the schemas was new: NAME.toml is its whole configuration,
// NAME.jsonl.gz every committed record of its topics. They are never changed; a new version adds one:
//
//	bin/prl-stage --stage all --config configs/ordered.toml --run v1 --set dir=/tmp/old --set run.max_steps=3 --set run.batch_size=32
//	go test ./stages -run TestOldRuns -record /tmp/old
const oldRuns = "testdata/run-"

var record = flag.String("record", "", "folder of a finished run v1, from which TestOldRuns makes its fixture")

// oldRecord is one line of a recorded run.
type oldRecord struct {
	Topic     string            `json:"topic"` // without the run's prefix
	Partition int32             `json:"partition"`
	Offset    int64             `json:"offset"`
	Key       []byte            `json:"key"`
	Value     []byte            `json:"value"`
	Headers   map[string]string `json:"headers,omitempty"`
}

// TestOldRuns replays runs that earlier versions of prl have recorded: every record is read, the emitter asks for the
// same rollouts, the scorer makes the same groups of the traces, the packer the same batches of the groups and the trainer
// the same weights of the batches, byte for byte, and the sink writes every record.
func TestOldRuns(t *testing.T) {
	if *record != "" {
		recordRun(t, *record, "v1")
	}
	paths, err := filepath.Glob(oldRuns + "*.jsonl.gz")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no recorded run: %v", err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			cfg := DefaultConfig()
			text := read(t, path[:len(path)-len(".jsonl.gz")]+".toml")
			if err := toml.NewDecoder(bytes.NewReader([]byte(text))).DisallowUnknownFields().Decode(cfg); err != nil {
				t.Fatal(err)
			}
			topics := oldTopics(t, path)
			t.Run("emitter", func(t *testing.T) { replayEmitter(t, cfg, topics) })
			t.Run("scorer", func(t *testing.T) { replayScorer(t, cfg, topics) })
			t.Run("packer", func(t *testing.T) { replayPacker(t, cfg, topics) })
			t.Run("trainer", func(t *testing.T) { replayTrainer(t, cfg, topics) })
			t.Run("sink", func(t *testing.T) { sinkOld(t, cfg, topics) })
		})
	}
}

// oldTopics reads the records of a recorded run, by topic.
func oldTopics(t *testing.T, path string) map[string][]oldRecord {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	topics := map[string][]oldRecord{}
	for lines := json.NewDecoder(z); ; {
		var r oldRecord
		if err := lines.Decode(&r); err == io.EOF {
			return topics
		} else if err != nil {
			t.Fatal(err)
		}
		topics[r.Topic] = append(topics[r.Topic], r)
	}
}

func (r oldRecord) decode(t *testing.T) schemas.Record {
	t.Helper()
	v, err := schemas.Decode(r.Value)
	if err != nil {
		t.Fatalf("%s/%d@%d: %v", r.Topic, r.Partition, r.Offset, err)
	}
	return v
}

func encode(t *testing.T, v schemas.Record) []byte {
	t.Helper()
	b, err := schemas.Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func replayScorer(t *testing.T, cfg *Config, topics map[string][]oldRecord) {
	runners := map[int32]*pipelinetest.Runner{}
	made := map[int64][]byte{}
	for _, r := range topics[pipeline.TopicTraces] {
		if runners[r.Partition] == nil {
			factory := scorer.New(cfg.Run, cfg.Scorer, cfg.Emitter.MaxAttempts)
			runners[r.Partition] = pipelinetest.NewRunner(t, func(state []byte) (pipeline.Core, error) { return factory(r.Partition, state) })
		}
		rec := pipeline.Record{Ref: pipeline.Ref{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}, Key: string(r.Key), Value: r.decode(t)}
		for _, e := range runners[r.Partition].Step(t, pipelinetest.Step{Record: &rec}) {
			made[e.Value.(*schemas.SampleGroup).GroupID] = encode(t, e.Value)
		}
	}
	for _, r := range topics[pipeline.TopicSamples] {
		g := r.decode(t).(*schemas.SampleGroup)
		if !bytes.Equal(made[g.GroupID], encode(t, g)) {
			t.Errorf("group %d is scored otherwise than it was", g.GroupID)
		}
		delete(made, g.GroupID)
	}
	if len(made) > 0 {
		t.Errorf("groups %v were not scored then", slices.Sorted(maps.Keys(made)))
	}
}

func replayPacker(t *testing.T, cfg *Config, topics map[string][]oldRecord) {
	factory := packer.New(cfg.Run, cfg.Packer)
	r := pipelinetest.NewRunner(t, func(state []byte) (pipeline.Core, error) { return factory(0, state) })
	for _, old := range topics[pipeline.TopicSamples] {
		r.Feed(t, pipeline.TopicSamples, old.decode(t))
	}
	made := map[string][][]byte{}
	for _, e := range r.Emitted {
		made[e.Topic] = append(made[e.Topic], encode(t, e.Value))
	}
	for _, topic := range []string{pipeline.TopicBatches, pipeline.TopicOutcomes} {
		var were [][]byte
		for _, old := range topics[topic] {
			v := old.decode(t)
			if o, ok := v.(*schemas.GroupOutcome); ok && o.Eval != "" {
				continue // of the eval stage
			}
			were = append(were, encode(t, v))
		}
		if len(were) == 0 || !slices.EqualFunc(made[topic], were, bytes.Equal) {
			t.Errorf("%s: %d records are made, %d were, and they are not the same", topic, len(made[topic]), len(were))
		}
	}
}

// replayTrainer trains the steps again, from version 0 on.
func replayTrainer(t *testing.T, cfg *Config, topics map[string][]oldRecord) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the run was recorded on amd64: others round otherwise where they fuse multiplication and addition")
	}
	learner, err := trainer.NewNative(cfg.Run, cfg.Trainer, cfg.Model)
	if err != nil {
		t.Fatal(err)
	}
	steps := map[int64][]*schemas.MicroBatch{}
	for _, r := range topics[pipeline.TopicBatches] {
		m := r.decode(t).(*schemas.MicroBatch)
		steps[m.Step] = append(steps[m.Step], m)
	}
	versions := topics[pipeline.TopicPolicies]
	if len(versions) < 2 {
		t.Fatalf("%d versions", len(versions))
	}
	for _, r := range versions {
		v := r.decode(t).(*schemas.PolicyVersion)
		if v.Step > 0 {
			train, err := learner.Prepare(t.Context(), v.Step, steps[v.Step])
			if err != nil {
				t.Fatal(err)
			}
			m, err := train(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for name, was := range v.Metrics {
				if m.Values[name] != was {
					t.Errorf("version %d: %s is %v, and was %v", v.Version, name, m.Values[name], was)
				}
			}
		}
		weights, err := learner.Weights()
		if err != nil {
			t.Fatal(err)
		}
		if sum := fmt.Sprintf("%x", sha256.Sum256(weights)); sum != v.Weights.SHA256 {
			t.Fatalf("version %d has weights %s, and had %s", v.Version, sum, v.Weights.SHA256)
		}
	}
}

func sinkOld(t *testing.T, cfg *Config, topics map[string][]oldRecord) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	cfg.Dir = t.TempDir()
	app, err := NewApp(cfg, cluster.ListenAddrs(), "sink", slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	if err := app.SetUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	cl, err := app.Runtime.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	n := 0
	for _, recs := range topics {
		for _, r := range recs {
			rec := &kgo.Record{Topic: app.Runtime.TopicName(r.Topic), Partition: r.Partition, Key: r.Key, Value: r.Value}
			for k, v := range r.Headers {
				rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: k, Value: []byte(v)})
			}
			if err := cl.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
				t.Fatal(err)
			}
			n++
		}
	}
	s, err := sink.New(app.Runtime, cfg.Sink)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop() // it writes everything before it stops
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if rows := parquetRows(t, cfg.Sink.Dir); rows != n {
		t.Errorf("%d rows in Parquet, %d records", rows, n)
	}
	if dlq, err := filepath.Glob(filepath.Join(cfg.Sink.Dir, "dlq", "dlq-*.parquet")); err != nil || len(dlq) > 0 {
		t.Errorf("records could not be read: %v, %v", dlq, err)
	}
}

func parquetRows(t *testing.T, dir string) int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "*.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		rows += int(f.NumRows())
	}
	return rows
}

// recordRun makes the fixture of a finished run from the data of its embedded broker.
func recordRun(t *testing.T, dir, run string) {
	t.Helper()
	cfg := DefaultConfig()
	sets := []string{"dir=" + dir, "run.name=" + run, "run.max_steps=3", "run.batch_size=32"}
	if err := pipeline.LoadConfig("../configs/ordered.toml", nil, sets, cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	addr, served := make(chan string, 1), make(chan error, 1)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	go func() {
		served <- broker.Serve(ctx, filepath.Join(cfg.RunDir(), "broker"), broker.Config{Listen: "localhost:0"}, log, func(a string) { addr <- a })
	}()
	cl, err := kgo.NewClient(kgo.SeedBrokers(<-addr), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeRegex(), kgo.ConsumeTopics(".*"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var all []*kgo.Record
	for quiet := false; !quiet; {
		poll, stop := context.WithTimeout(ctx, 3*time.Second)
		fetches := cl.PollFetches(poll)
		quiet = poll.Err() != nil && fetches.NumRecords() == 0
		stop()
		all = append(all, fetches.Records()...)
	}
	t.Logf("%d records of %d topics", len(all), len(ends))
	slices.SortStableFunc(all, func(a, b *kgo.Record) int {
		return bytes.Compare(fmt.Appendf(nil, "%s %05d %012d", a.Topic, a.Partition, a.Offset), fmt.Appendf(nil, "%s %05d %012d", b.Topic, b.Partition, b.Offset))
	})
	cfg.Dir, cfg.Brokers = "runs", []string{Embedded}
	text, err := toml.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(oldRuns+run+".toml", text, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(oldRuns + run + ".jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriter(z)
	for _, r := range all {
		line := oldRecord{Topic: r.Topic[len(run)+1:], Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			if line.Headers == nil {
				line.Headers = map[string]string{}
			}
			line.Headers[h.Key] = string(h.Value)
		}
		if err := json.NewEncoder(w).Encode(line); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Fatal(err)
	}
}
