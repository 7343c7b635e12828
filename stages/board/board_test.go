package board

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
)

const (
	// python is where `make python` puts the interpreter with the packages.
	python = "../../.cache/python"
	// childEnv makes the test binary the stage: run, broker and folder, between bars.
	childEnv = "PRL_TEST_BOARD"
	deadline = time.Minute
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		part := strings.Split(spec, "|")
		if err := child(part[0], part[1], part[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child writes what there is and ends.
func child(run, broker, dir string) error {
	rt := &pipeline.Runtime{Run: runConfig(run), Brokers: []string{broker}, Instance: "one", Health: &pipeline.Health{},
		Log: slog.New(slog.DiscardHandler), Metrics: pipeline.NewMetrics(prometheus.NewRegistry())}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // it reads to the end before it stops
	return New(rt, options(dir)).Run(ctx)
}

func runConfig(name string) pipeline.RunConfig {
	run := pipeline.DefaultRunConfig()
	run.Name = name
	return run
}

const settings = "[run]\nseed = 7\nname = \"demo\"\n\n[trainer]\nlr = 0.5\nbetas = [0.9, 0.95]\n\n[ui]\nlisten = \"x\"\n"

func options(dir string) Options {
	return Options{Dir: dir, Settings: func(shadow string) []byte {
		if shadow == "" {
			return []byte(settings)
		}
		return nil
	}}
}

// newRun is a run on a broker of its own with some points.
func newRun(t *testing.T, name string) *pipeline.Runtime {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	rt := pipelinetest.Runtime(t, cluster.ListenAddrs(), runConfig(name))
	if err := rt.SetUp(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return rt
}

// steps writes the points of some steps, each after a transaction that was aborted.
func steps(t *testing.T, rt *pipeline.Runtime, first, last int64) {
	t.Helper()
	cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID(rt.TopicName("trainer")))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for s := first; s <= last; s++ {
		for _, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
			if err := cl.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			var records []*kgo.Record
			for _, v := range pointsOf(s) {
				topic := pipeline.TopicMetrics
				if _, ok := v.(*schemas.EvalResult); ok {
					topic = pipeline.TopicEvals
				}
				r, err := rt.Encode(t.Context(), pipeline.Emission{Topic: topic, Partition: pipeline.AutoPartition, Value: v})
				if err != nil {
					t.Fatal(err)
				}
				r.Timestamp = time.UnixMilli(1_700_000_000_500 + s)
				records = append(records, r)
			}
			if err := pipeline.ProduceAll(t.Context(), cl, records); err != nil {
				t.Fatal(err)
			}
			if err := cl.EndTransaction(t.Context(), end); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func pointsOf(s int64) []schemas.Record {
	list := []schemas.Record{
		&schemas.MetricPoint{Name: "loss", Stage: "trainer", Step: &s, Value: 1 / float64(s), TimeMs: 1_700_000_000_000 + s},
		&schemas.MetricPoint{Name: "reward", Stage: "packer", Step: &s, Value: float64(s), Labels: map[string]string{"env": "catch"}},
		&schemas.MetricPoint{Name: "loss", Stage: StageShadow, Step: &s, Value: 2 / float64(s), Labels: map[string]string{LabelShadow: "slow"}},
		&schemas.MetricPoint{Name: "loss", Stage: StageShadow, Step: &s, Value: 9, Labels: map[string]string{LabelShadow: "../out"}},
	}
	if s%2 == 0 { // what is measured late comes behind points of later versions
		list = append(list, &schemas.EvalResult{Eval: "held-out", Env: "catch", Version: s - 1, K: 2, Examples: 3, Episodes: 6, AvgAtK: 0.25, PassMissing: true,
			Rewards: map[string]float64{"caught": 0.75}},
			&schemas.EvalResult{Eval: "backwards", Env: "catch", Version: 10 - s, K: 1, Examples: 1, Episodes: 1, AvgAtK: float64(s), PassMissing: true})
	}
	return list
}

// write runs the stage on what there is.
func write(t *testing.T, rt *pipeline.Runtime, dir string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it reads to the end before it stops
	if err := New(rt, options(dir)).Run(ctx); err != nil {
		t.Fatal(err)
	}
}

func contents(t *testing.T, dir, folder string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, folder, fileName))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// behind are the events of a file behind its preamble, which holds the time at which it was begun. They are in the order of
// each topic; how the two topics come together is nobody's promise.
func behind(t *testing.T, b []byte, preamble int) string {
	t.Helper()
	r := bytes.NewReader(b)
	events := map[string][]string{}
	for n := 0; ; n++ {
		data, _, err := readRecord(r)
		if errors.Is(err, io.EOF) {
			return fmt.Sprintf("%q", events)
		}
		if err != nil {
			t.Fatal(err)
		}
		topic, _, ok, err := placeOf(data)
		if err != nil || ok != (n >= preamble) {
			t.Fatalf("event %d: of a record: %v (%v)", n, ok, err)
		}
		if ok {
			events[topic] = append(events[topic], string(data))
		}
	}
}

// TestInvariant_EachPointOnce cuts an event file at any byte, as a kill or a full disk may, and goes on: the file is the one
// that was never cut. More points come meanwhile.
func TestInvariant_EachPointOnce(t *testing.T) {
	rt := newRun(t, "once")
	steps(t, rt, 1, 3)
	dir, whole := t.TempDir(), t.TempDir()
	write(t, rt, dir)
	steps(t, rt, 4, 6)
	write(t, rt, whole)
	want := map[string]string{"": behind(t, contents(t, whole, ""), 3), "shadow-slow": behind(t, contents(t, whole, "shadow-slow"), 1)}
	begun := map[string][]byte{"": contents(t, dir, ""), "shadow-slow": contents(t, dir, "shadow-slow")}
	for folder, b := range begun {
		for n := 0; n <= len(b); n += 1 + n/16 {
			cut := t.TempDir()
			for other, all := range begun {
				if other == folder {
					all = all[:n]
				}
				if err := os.MkdirAll(filepath.Join(cut, other), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(cut, other, fileName), all, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			write(t, rt, cut)
			for name, preamble := range map[string]int{"": 3, "shadow-slow": 1} {
				if got := behind(t, contents(t, cut, name), preamble); got != want[name] {
					t.Fatalf("%q cut at byte %d of %d: %q has %d bytes of points, want %d", folder, n, len(b), name, len(got), len(want[name]))
				}
			}
		}
	}
	garbage := append(contents(t, whole, ""), make([]byte, 100)...)
	if err := os.WriteFile(filepath.Join(whole, fileName), garbage, 0o644); err != nil {
		t.Fatal(err)
	}
	write(t, rt, whole) // nothing new
	if got := behind(t, contents(t, whole, ""), 3); got != want[""] {
		t.Error("what is torn was not cut off")
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(whole), "out")); err == nil {
		t.Error("a shadow trainer's name led out of the folder")
	}
}

// TestInvariant_Crash kills the stage before and after it writes.
func TestInvariant_Crash(t *testing.T) {
	rt := newRun(t, "crash")
	steps(t, rt, 1, 5)
	whole := t.TempDir()
	write(t, rt, whole)
	for _, place := range []string{"before-write", "written"} {
		for nth := 1; nth <= 2; nth++ {
			dir := t.TempDir()
			run := func(env ...string) error {
				ctx, cancel := context.WithTimeout(t.Context(), deadline)
				defer cancel()
				cmd := exec.CommandContext(ctx, os.Args[0])
				cmd.Env = append(append(os.Environ(), childEnv+"="+strings.Join([]string{rt.Run.Name, rt.Brokers[0], dir}, "|")), env...)
				out, err := cmd.CombinedOutput()
				t.Logf("%s", out)
				return err
			}
			err := run(fmt.Sprintf("PRL_CRASH_AT=%s.%s:%d", Name, place, nth))
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("%s, %d: the process was not killed: %v", place, nth, err)
			}
			if err := run(); err != nil {
				t.Fatal(err)
			}
			for name, preamble := range map[string]int{"": 3, "shadow-slow": 1} {
				if got, want := behind(t, contents(t, dir, name), preamble), behind(t, contents(t, whole, name), preamble); got != want {
					t.Errorf("%s, %d: %q has %d bytes of points, want %d", place, nth, name, len(got), len(want))
				}
			}
		}
	}
}

// TestHistory writes the same from Parquet files as from topics, and goes on in the other way.
func TestHistory(t *testing.T) {
	rt := newRun(t, "history")
	steps(t, rt, 1, 4)
	cfg := sink.DefaultConfig()
	cfg.Dir = t.TempDir()
	s, err := sink.New(rt, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, want := range []int{20, 0} {
		if n, err := New(rt, options(dir)).WriteHistory(t.Context(), cfg.Dir); err != nil || n != want {
			t.Fatalf("%d points were written, want %d: %v", n, want, err)
		}
	}
	steps(t, rt, 5, 6)
	write(t, rt, dir)
	whole := t.TempDir()
	write(t, rt, whole)
	for _, name := range []string{"", "shadow-slow"} {
		got, want := tensorboard(t, filepath.Join(dir, name)), tensorboard(t, filepath.Join(whole, name))
		if fmt.Sprint(got.Scalars) != fmt.Sprint(want.Scalars) {
			t.Errorf("%q: from files and topics %v, from topics alone %v", name, got.Scalars, want.Scalars)
		}
	}
}

// TestSettingsComeLate keeps every point where the settings, which a file begins with, are known at a later start only.
func TestSettingsComeLate(t *testing.T) {
	rt := newRun(t, "late")
	steps(t, rt, 1, 1)
	dir := t.TempDir()
	run := func(settings []byte) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := New(rt, Options{Dir: dir, Settings: func(string) []byte { return settings }}).Run(ctx); err != nil {
			t.Fatal(err)
		}
	}
	run(nil)
	want := behind(t, contents(t, dir, "shadow-slow"), 1)
	run([]byte(settings))
	if got := behind(t, contents(t, dir, "shadow-slow"), 3); got != want {
		t.Errorf("points %s, before %s", got, want)
	}
}

// TestOneWriter holds a second writer back while there is a first, and refuses a file of other topics.
func TestOneWriter(t *testing.T) {
	rt, other := newRun(t, "one"), newRun(t, "two")
	steps(t, rt, 1, 2)
	dir := t.TempDir()
	write(t, rt, dir)
	if err := New(other, options(dir)).Run(t.Context()); err == nil || !errors.Is(err, pipeline.ErrFatal) {
		t.Errorf("event files of other topics were taken: %v", err)
	}
	first := New(rt, options(dir))
	if err := first.claim(); err != nil {
		t.Fatal(err)
	}
	if _, err := New(rt, options(dir)).WriteHistory(t.Context(), t.TempDir()); !errors.Is(err, errHeld) {
		t.Errorf("a second writer: %v", err)
	}
	first.close()
}

// A read is what TensorBoard's own reader makes of a folder.
type read struct {
	Scalars map[string][][3]float64 // wall time, step, value
	Text    string
	HParams map[string]any
	Group   string
}

const reader_py = `
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
a = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
a.Reload()
out = {"Scalars": {t: [[e.wall_time, e.step, e.value] for e in a.Scalars(t)] for t in a.Tags()["scalars"]}, "HParams": {}, "Text": "", "Group": ""}
for t in a.Tags()["tensors"]:
    plugin = a.SummaryMetadata(t).plugin_data
    if plugin.plugin_name == "text":
        out["Text"] += a.Tensors(t)[0].tensor_proto.string_val[0].decode()
    if plugin.plugin_name == "hparams":
        start = plugin_data_pb2.HParamsPluginData.FromString(plugin.content).session_start_info
        out["Group"] = start.group_name
        out["HParams"] = {k: getattr(v, v.WhichOneof("kind")) for k, v in start.hparams.items()}
json.dump(out, sys.stdout)
`

func tensorboard(t *testing.T, dir string) (r read) {
	t.Helper()
	need.Clients(t, python)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(python, "bin", "python3"), "-c", reader_py, dir)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestTensorBoard reads the files with TensorBoard's own reader.
func TestTensorBoard(t *testing.T) {
	need.Clients(t, python)
	rt := newRun(t, "demo")
	steps(t, rt, 1, 4)
	dir := t.TempDir()
	write(t, rt, dir)
	got := tensorboard(t, dir)
	for tag, want := range map[string]string{
		"trainer/loss":                 "[[1.700000000001e+09 1 1] [1.700000000002e+09 2 0.5] [1.700000000003e+09 3 0.3333333432674408] [1.700000000004e+09 4 0.25]]",
		"packer/reward/catch":          "[[1.700000000501e+09 1 1] [1.700000000502e+09 2 2] [1.700000000503e+09 3 3] [1.700000000504e+09 4 4]]",
		"eval/held-out/avg_at_k":       "[[1.700000000502e+09 1 0.25] [1.700000000504e+09 3 0.25]]",
		"eval/held-out/rewards/caught": "[[1.700000000502e+09 1 0.75] [1.700000000504e+09 3 0.75]]",
		"eval/held-out/pass_at_k":      "[]",
		"eval/backwards/avg_at_k":      "[[1.700000000502e+09 8 2] [1.700000000504e+09 6 4]]", // TensorBoard throws none away
		"shadow/loss/../out":           "[[1.700000000501e+09 1 9] [1.700000000502e+09 2 9] [1.700000000503e+09 3 9] [1.700000000504e+09 4 9]]",
	} {
		if is := fmt.Sprint(got.Scalars[tag]); is != want {
			t.Errorf("%s: %s, want %s", tag, is, want)
		}
	}
	if want := "```toml\n" + settings + "\n```"; got.Text != want {
		t.Errorf("settings: %q, want %q", got.Text, want)
	}
	if is, want := fmt.Sprint(got.HParams), "map[run.name:demo run.seed:7 trainer.betas:[0.9 0.95] trainer.lr:0.5]"; is != want || got.Group != "demo" {
		t.Errorf("hyperparameters of %q: %s, want %s", got.Group, is, want)
	}
	shadow := tensorboard(t, filepath.Join(dir, "shadow-slow"))
	if is, want := fmt.Sprint(len(shadow.Scalars), shadow.Scalars["trainer/loss"]), "1 [[1.700000000501e+09 1 2] [1.700000000502e+09 2 1] [1.700000000503e+09 3 0.6666666865348816] [1.700000000504e+09 4 0.5]]"; is != want {
		t.Errorf("the shadow trainer's curves: %s, want %s", is, want)
	}
}
