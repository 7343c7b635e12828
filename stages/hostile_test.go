package stages

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// smallRun is the whole pipeline in ordered mode, with further settings, on a broker of its own; before is called when the
// topics are there. It gives the SHA-256 of the final weights.
func smallRun(t *testing.T, before func(*App), sets ...string) (weights string, app *App) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	app, err = NewApp(orderedWith(t, append([]string{"run.max_steps=3", "run.batch_size=32"}, sets...)...), cluster.ListenAddrs(), "all", slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := app.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := app.SetUp(ctx); err != nil {
		t.Fatal(err)
	}
	if before != nil {
		before(app)
	}
	var out bytes.Buffer
	if err := app.RunAll(ctx, &out); err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`weights SHA-256 ([0-9a-f]{64})`).FindStringSubmatch(out.String())
	if found == nil {
		t.Fatalf("no end of the run:\n%s", out.String())
	}
	return found[1], app
}

func orderedWith(t *testing.T, sets ...string) *Config {
	t.Helper()
	cfg := DefaultConfig()
	sets = append([]string{"dir=" + t.TempDir(), "inference.listen=localhost:0"}, sets...)
	if err := pipeline.LoadConfig("../configs/ordered.toml", nil, sets, cfg); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestInvariant_BadInputStopsNothing puts every hostile record of the corpus, and some that are valid where they do not
// belong, onto every partition of every topic before the run begins. The run ends with the weights of a clean one, and
// what a stage consumes is in dlq, each record once.
func TestInvariant_BadInputStopsNothing(t *testing.T) {
	paths, err := filepath.Glob("../schemas/testdata/hostile/*")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no hostile records: %v", err)
	}
	var corpus [][]byte
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		corpus = append(corpus, b)
	}
	stranger, err := schemas.Encode(&schemas.MetricPoint{Name: "where it does not belong", Stage: "stranger"})
	if err != nil {
		t.Fatal(err)
	}
	corpus = append(corpus, stranger)
	want, _ := smallRun(t, nil)
	injected := map[string]bool{}
	got, app := smallRun(t, func(a *App) {
		cl, err := a.Runtime.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		for _, topic := range pipeline.Topics {
			name := topic.Name
			if name == "tasks." {
				name = pipeline.TopicTasks("catch")
			}
			for p := range a.Runtime.Partitions(name) {
				for i, b := range corpus {
					rec := &kgo.Record{Topic: a.Runtime.TopicName(name), Partition: p, Value: b}
					if topic.Compacted {
						rec.Key = fmt.Appendf(nil, "hostile %d", i)
					}
					if err := cl.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
						t.Fatal(err)
					}
					injected[fmt.Sprintf("%s/%d/%d", name, p, rec.Offset)] = true
				}
			}
		}
	})
	if got != want {
		t.Errorf("weights %s with hostile records, %s without", got, want)
	}
	refused := refusals(t, app)
	for at := range injected {
		topic, _, _ := strings.Cut(at, "/")
		times := 0
		for _, s := range Flow {
			if consumes(s, topic) {
				times++
			}
		}
		if refused[at] != times {
			t.Errorf("%s is in dlq %d times, %d stages consume it", at, refused[at], times)
		}
		delete(refused, at)
	}
	if len(refused) > 0 {
		t.Errorf("good records were refused: %v", refused)
	}
}

// consumes reports whether a stage takes each record of a topic once and refuses what it cannot read.
func consumes(s Stage, topic string) bool {
	if s.Name == "sink" || s.Aside {
		return false // it keeps everything, with the reason; or only looks at the run
	}
	for _, r := range s.Reads {
		if r == topic || r == AllTasks && strings.HasPrefix(topic, "tasks.") {
			return true
		}
	}
	return false
}

// refusals counts the records in dlq by the coordinates of what was refused.
func refusals(t *testing.T, app *App) map[string]int {
	t.Helper()
	cl, err := app.Runtime.Client(kgo.ConsumeTopics(app.Runtime.TopicName(pipeline.TopicDLQ)), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	refused := map[string]int{}
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // the run has ended: all there is can be read
		fetches := cl.PollFetches(ctx)
		cancel()
		if fetches.NumRecords() == 0 {
			return refused
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Key == nil || strings.HasPrefix(string(r.Key), "hostile") {
				return
			}
			refused[string(r.Key)]++
		})
	}
}
