package stages

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"golang.org/x/sync/errgroup"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/internal/progress"
	"github.com/prl-project/prl/stages/sink"
)

// fleetDeadline bounds what a fleet's tests wait for.
const fleetDeadline = 3 * time.Minute

// fleetWorld is a broker, a folder, and what stages log.
type fleetWorld struct {
	*testing.T
	dir     string
	brokers []string
	log     *fleetLog
}

// fleetLog keeps what is logged.
type fleetLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *fleetLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *fleetLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newFleetWorld(t *testing.T) *fleetWorld {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return &fleetWorld{T: t, dir: t.TempDir(), brokers: cluster.ListenAddrs(), log: &fleetLog{}}
}

func (w *fleetWorld) logger() *slog.Logger { return slog.New(slog.NewTextHandler(w.log, nil)) }

// settings are those of a run in ordered mode, or of a fleet.
func (w *fleetWorld) settings(sets ...string) *Config {
	w.Helper()
	cfg := DefaultConfig()
	all := append([]string{"dir=" + w.dir, fmt.Sprintf("brokers=[%q]", w.brokers[0]), "inference.listen=localhost:0", "run.max_steps=2", "run.batch_size=32", "ui.enabled=false"}, sets...)
	if err := pipeline.LoadConfig("../configs/ordered.toml", nil, all, cfg); err != nil {
		w.Fatal(err)
	}
	return cfg
}

// run lets a run go to its end, with all stages but those of a fleet where there is one, and gives its weights.
func (w *fleetWorld) run(ctx context.Context, name string, fleet bool, sets ...string) (weights string, err error) {
	app, err := NewApp(w.settings(append([]string{"run.name=" + name}, sets...)...), w.brokers, "own", w.logger())
	if err != nil {
		return "", err
	}
	defer app.Close()
	if err := app.SetUp(ctx); err != nil {
		return "", err
	}
	view, err := app.view(ctx)
	if err != nil {
		return "", err
	}
	defer view.follower.Close()
	wanted := func(s Stage) bool {
		served := s.Name == "envserver" || s.Name == inference.Stage
		return !(fleet && served) && (s.Optional == nil || s.Optional(app.Config))
	}
	if err := app.runStages(ctx, wanted, func(ctx context.Context) error { return view.watch(ctx, progress.NewPrinter(&strings.Builder{})) }); err != nil {
		return "", err
	}
	if !view.ended() {
		return "", fmt.Errorf("run %s was stopped", name)
	}
	for _, line := range strings.Split(view.Summary(0), "\n") {
		if _, sum, ok := strings.Cut(line, "(weights SHA-256 "); ok {
			weights, _, _ = strings.Cut(sum, ")")
		}
	}
	return weights, nil
}

// audit holds runs to what must always hold, once nothing writes to them any more.
func (w *fleetWorld) audit(ctx context.Context, names ...string) {
	w.Helper()
	for _, name := range names {
		recorded, err := w.settings().ofRun(name)
		if err != nil {
			w.Fatal(err)
		}
		app, err := NewApp(recorded, w.brokers, "audit", w.logger())
		if err != nil {
			w.Fatal(err)
		}
		defer app.Close()
		cfg := app.Config.Sink
		cfg.Drain = pipeline.Duration(fleetDeadline)
		s, err := sink.New(app.Runtime, cfg)
		if err != nil {
			w.Fatal(err)
		}
		ended, end := context.WithCancel(ctx)
		end()
		if err := s.Run(ended); err != nil {
			w.Fatal(err)
		}
		if report, err := app.Audit(ctx); err != nil || report.Total() > 0 {
			w.Errorf("the audit of run %s: %v %v", name, report, err)
		}
	}
}

// serve runs a fleet of a stage until stop is called.
func (w *fleetWorld) serve(stage string, cfg *Config) (f *Fleet, stop func()) {
	w.Helper()
	s, err := Find(stage)
	if err != nil {
		w.Fatal(err)
	}
	f, err = NewFleet(cfg, s, w.brokers, "fleet", nil, false, w.logger())
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.Error(err)
		}
	})
	w.Cleanup(stop)
	return f, stop
}

// fleets are both kinds for runs.
func (w *fleetWorld) fleets(sets []string, runs ...string) (models, slots *Fleet, stop func()) {
	w.Helper()
	for _, r := range runs {
		sets = append(sets, fmt.Sprintf("fleet.runs.%s.share=1", r))
	}
	models, stopModels := w.serve(inference.Stage, w.settings(sets...))
	<-models.models.Listening()
	slots, stopSlots := w.serve("envserver", w.settings(append(sets, "envserver.model_url=http://"+models.models.Addr().String())...))
	return models, slots, func() { stopSlots(); stopModels() }
}

func (w *fleetWorld) await(what string, holds func() bool) {
	w.Helper()
	for end := time.Now().Add(fleetDeadline); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("%s did not come; the log:\n%s", what, w.log)
		}
	}
}

// Three runs on one environment server and one inference server learn to their ends, their audits are clean, and those in
// ordered mode have the very weights that they have alone: sharing changes nothing (I6). One that has ended is let go.
func TestInvariant_SharedRunsAreTheSame(t *testing.T) {
	w := newFleetWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), fleetDeadline)
	defer cancel()
	want := map[string]string{}
	seeds := map[string]string{"first": "run.seed=1", "second": "run.seed=2"}
	var alone errgroup.Group
	var mu sync.Mutex
	for name, seed := range seeds {
		alone.Go(func() error {
			weights, err := w.run(ctx, name+"-alone", false, seed)
			mu.Lock()
			defer mu.Unlock()
			want[name] = weights
			return err
		})
	}
	if err := alone.Wait(); err != nil {
		t.Fatal(err)
	}
	if want["first"] == want["second"] || want["first"] == "" {
		t.Fatalf("the runs alone have the weights %v", want)
	}
	models, slots, _ := w.fleets([]string{"envserver.concurrency=6", "inference.slots=4", "fleet.linger=2s"}, "first", "second", "third")
	var wg sync.WaitGroup
	for name, seed := range seeds {
		wg.Go(func() {
			got, err := w.run(ctx, name, true, seed)
			if err != nil || got != want[name] {
				t.Errorf("run %s: weights %s, %s alone; %v", name, got, want[name], err)
			}
		})
	}
	wg.Go(func() {
		if _, err := w.run(ctx, "third", true, "run.max_async_level=1", "run.max_off_policy_steps=2"); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	if t.Failed() {
		t.Logf("%s", w.log)
		return
	}
	w.await("the end of all members", func() bool {
		models.mu.Lock()
		defer models.mu.Unlock()
		slots.mu.Lock()
		defer slots.mu.Unlock()
		for _, f := range []*Fleet{models, slots} {
			for _, m := range f.members {
				if !m.over() {
					return false
				}
			}
		}
		return true
	})
	if n := strings.Count(w.log.String(), "the run has ended: the fleet lets it go"); n != 6 {
		t.Errorf("%d runs were let go by the two fleets, want 6", n)
	}
	if n := slots.slots.Running(); n != 0 {
		t.Errorf("%d slots are taken in the end", n)
	}
	w.audit(ctx, "first", "second", "third")
}

// What happens to one run is nothing to another: topics that are deleted under it, settings that nobody can use, a run that is
// not there. Each is said; a run that comes later is served, and one that is taken off the list is not any more.
func TestOneRunsFailureIsItsOwn(t *testing.T) {
	w := newFleetWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), fleetDeadline)
	defer cancel()
	lost, err := NewApp(w.settings("run.name=lost"), w.brokers, "own", w.logger())
	if err != nil {
		t.Fatal(err)
	}
	defer lost.Close()
	broken, err := NewApp(w.settings("run.name=broken"), w.brokers, "own", w.logger())
	if err != nil {
		t.Fatal(err)
	}
	defer broken.Close()
	for _, app := range []*App{lost, broken} {
		if err := app.SetUp(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(w.dir, "broken", "config.toml"), []byte("[run]\nseq_len = -1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sets := []string{"fleet.patience=500ms"}
	_, slots, _ := w.fleets(sets, "lost", "broken", "missing", "good")
	w.await("the first run", func() bool { return strings.Contains(w.log.String(), "the fleet serves a run") })
	cl, err := lost.Runtime.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	all, err := adm.ListTopics(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all.Names() {
		if strings.HasPrefix(name, "lost.") {
			if _, err := adm.DeleteTopic(ctx, name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := w.run(ctx, "good", true); err != nil {
		t.Fatalf("%v\n%s", err, w.log)
	}
	for _, said := range []string{
		"does not exist: the run's own stages", "run.seq_len = -1: at least 2", "the fleet waits for the run",
	} {
		w.await(said, func() bool { return strings.Contains(w.log.String(), said) })
	}
	after, err := adm.ListTopics(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range after.Names() {
		if strings.HasPrefix(name, "lost.") {
			t.Errorf("the fleet has made %s again", name)
		}
	}

	// The list changes: those that failed go, one comes.
	slots.Change(w.settings("fleet.runs.late.share=3", "fleet.runs.good.share=1"))
	w.await("those that are taken off", func() bool {
		slots.mu.Lock()
		defer slots.mu.Unlock()
		return slots.members["lost"] == nil && slots.members["late"] != nil
	})
}

// Environments that are the same are one, those with other options are not, and what a run has open is closed when the last
// that has it goes.
func TestEnvironmentsAreShared(t *testing.T) {
	w := newFleetWorld(t)
	s := newSharedEnvs()
	same, other := w.settings(), w.settings("envs.catch.options={columns=4}")
	a, closeA, err := s.get(same, "catch")
	if err != nil {
		t.Fatal(err)
	}
	b, closeB, err := s.get(w.settings(), "catch")
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := s.get(other, "catch")
	if err != nil {
		t.Fatal(err)
	}
	if a != b || a == c || len(s.open) != 2 {
		t.Errorf("%d environments are open", len(s.open))
	}
	for range 2 { // twice is once
		if err := closeA.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.open) != 2 {
		t.Error("it was closed while another run had it")
	}
	if err := closeB.Close(); err != nil || len(s.open) != 1 {
		t.Errorf("%d are open, %v", len(s.open), err)
	}
}

// What a fleet cannot be is refused at its start, with what to do.
func TestFleetConfig(t *testing.T) {
	w := newFleetWorld(t)
	for _, c := range []struct {
		stage string
		sets  []string
		want  string
	}{
		{"trainer", nil, "--stage trainer serves one run"},
		{inference.Stage, []string{`inference.backend="vllm"`, `inference.urls=["http://localhost:1"]`, "run.max_async_level=1", "run.max_off_policy_steps=1", "evals={}"}, "its servers hold the weights of one run"},
		{"envserver", []string{`brokers=["embedded"]`}, "they need brokers that all reach"},
	} {
		s, err := Find(c.stage)
		if err != nil {
			t.Fatal(err)
		}
		cfg := DefaultConfig()
		if err := pipeline.LoadConfig("", nil, append(c.sets, "fleet.runs.A.share=1", "fleet.runs.B.share=2"), cfg); err != nil {
			t.Fatal(err)
		}
		if _, err := NewFleet(cfg, s, w.brokers, "fleet", nil, false, w.logger()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %v: %v, want %q", c.stage, c.sets, err, c.want)
		}
	}
	for set, want := range map[string]string{
		"fleet.runs.A.share=0": "fleet.runs.A.share = 0: 0.001 to 1000", "fleet.linger=0s": "fleet.linger", "fleet.patience=0s": "fleet.patience",
		`fleet.runs."a.b".share=1`: "the name of a run", "fleet.runs.A.shares=1": "unknown key",
	} {
		if err := pipeline.LoadConfig("", nil, []string{set}, DefaultConfig()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", set, err, want)
		}
	}
	for url, want := range map[string]string{
		"http://gpu:8000": "http://gpu:8000/runs/A", "http://gpu:8000/": "http://gpu:8000/runs/A", "http://inference-{run}:8000": "http://inference-A:8000",
	} {
		if got := modelURL(url, "A"); got != want {
			t.Errorf("envserver.model_url = %q is %q for run A, want %q", url, got, want)
		}
	}
}
