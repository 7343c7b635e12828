// Package flowbench measures the way of rollouts through the stages, and each hop of it, against a plain producer and a plain
// consumer that move the same bytes through the same broker in the same process.
//
// Everything is read off the log: a record says when it was written, and what became of it is a record, too. So nothing looks on
// while the stages work, and nothing but the fake policy, the environment and the null learner is not what runs elsewhere.
//
//	make kafka
//	GODEBUG=madvdontneed=0 PRL_TEST_KAFKA_BROKERS=localhost:9092 go test ./stages/flowbench -run '^$' -bench . -benchtime 1x
package flowbench

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/deploy/kafka/kafkatest"
	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/trainer"
)

// deadline bounds every wait.
const deadline = 2 * time.Minute

// groupSize is the rollouts of a group.
const groupSize = 8

// A shape is what the rollouts of a run look like, and how many there are.
type shape struct {
	name          string
	nodes, tokens int   // of a trace, and of each of its nodes
	batch         int   // rollouts of a step
	steps         int64 // of a run
	seqLen        int
}

var (
	// usual is a conversation of 3,072 tokens: a record of 46 KB.
	usual = shape{"12x256", 12, 256, 256, 20, 30_720}
	// long is one of 65,520 tokens: a record of 0.8 MB, whose group of eight has 8.9 MB.
	long = shape{"12x5460", 12, 5460, 32, 12, 65_536}
)

func (s shape) rollouts() int { return int(s.steps) * s.batch }

// eachBroker runs a benchmark on a kfake of its own, and on the shared Apache Kafka, once that is warm.
func eachBroker(b *testing.B, bench func(b *testing.B, brokers []string)) {
	b.Run("kfake", func(b *testing.B) { bench(b, fake(b)) })
	b.Run("kafka", func(b *testing.B) {
		brokers := kafkatest.Shared(b)
		warmed.Do(func() { warmUp(b, brokers) })
		bench(b, brokers)
	})
}

var warmed sync.Once

// warmUp plays whole runs for half a minute: a broker that has just started compiles itself while it works, at half the pace and with
// twice the latency of one that has.
func warmUp(b *testing.B, brokers []string) {
	for start := time.Now(); time.Since(start) < 30*time.Second; {
		newWorld(b, brokers, usual, 8*usual.batch).play(nil)
	}
}

func fake(t testing.TB) []string {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return cluster.ListenAddrs()
}

// A world is a run on brokers.
type world struct {
	testing.TB
	shape
	app *stages.App
	rt  *pipeline.Runtime
	raw int // topics that were made for what is moved
}

// settings are those of a run. permits are the emitter's.
func settings(s shape, dir, run string, permits int) *stages.Config {
	cfg := stages.DefaultConfig()
	cfg.Dir, cfg.Run.Name = dir, run
	cfg.Run.MaxSteps, cfg.Run.BatchSize, cfg.Run.SeqLen = s.steps, s.batch, s.seqLen
	cfg.Run.MaxAsyncLevel, cfg.Run.MaxOffPolicySteps = 8, 1<<20 // the fake policy says that all it samples is of version 0
	cfg.Run.TracePartitions, cfg.Run.TaskPartitions = 4, 4
	e := emitter.DefaultEnvConfig()
	e.GroupSize = groupSize
	cfg.Envs = map[string]emitter.EnvConfig{drillName: e}
	cfg.Emitter.Permits = permits
	cfg.EnvServer.Concurrency = max(permits, 1)
	cfg.Trainer.Learner = trainer.LearnerNull
	cfg.Model.HiddenSize, cfg.Model.FFN, cfg.Model.MaxPosition, cfg.Model.Alphabet = 16, 32, s.seqLen, alphabet
	return cfg
}

// newWorld makes a run with its topics. permits are the emitter's, hooks those of every client.
func newWorld(t testing.TB, brokers []string, s shape, permits int, hooks ...kgo.Hook) *world {
	t.Helper()
	cfg := settings(s, t.TempDir(), fmt.Sprintf("flow-%08x", rand.Uint32()), permits)
	app, err := stages.NewApp(cfg, brokers, "one", slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := app.Close(); err != nil {
			t.Error(err)
		}
	})
	app.Serve = []string{drillName}
	app.Runtime.Options = []kgo.Opt{kgo.WithHooks(hooks...)}
	if err := app.SetUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &world{TB: t, shape: s, app: app, rt: app.Runtime}
}

// stage is a stage as the binary makes it.
func (w *world) stage(name string) stages.Runner {
	w.Helper()
	s, err := stages.Find(name)
	if err != nil {
		w.Fatal(err)
	}
	r, err := w.app.Make(s)
	if err != nil {
		w.Fatal(err)
	}
	return r
}

// read gives every committed record of topics.
func (w *world) read(visit func(topic string, r *kgo.Record), topics ...string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), deadline)
	defer cancel()
	spans, err := w.settled(ctx, topics...)
	if err == nil {
		err = w.rt.ReadSpans(ctx, true, spans, func(r *kgo.Record) error {
			if !r.Attrs.IsControl() {
				visit(w.rt.BaseName(r.Topic), r)
			}
			return nil
		})
	}
	if err != nil {
		w.Fatal(err)
	}
}

// settled is what topics hold once every transaction is over: its marker may come after the broker's word that it is committed.
func (w *world) settled(ctx context.Context, topics ...string) (pipeline.Spans, error) {
	for {
		all, err := w.rt.Spans(ctx, false, topics...)
		if err != nil {
			return nil, err
		}
		committed, err := w.rt.Spans(ctx, true, topics...)
		if err != nil || reflect.DeepEqual(all, committed) {
			return committed, err
		}
		time.Sleep(time.Millisecond) // the broker is at it
	}
}

// client is a client of the benchmark's own.
func (w *world) client(opts ...kgo.Opt) *kgo.Client {
	w.Helper()
	cl, err := w.rt.Client(append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(cl.Close)
	return cl
}
