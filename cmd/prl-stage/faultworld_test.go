package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/prl-project/prl/pipeline/faults"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/envs"
	"github.com/prl-project/prl/stages/ui"
)

// faultDeadline bounds every wait of the tests of planted faults, which share the machine with others.
const faultDeadline = 90 * time.Second

func init() {
	envs.Registry["whims"] = func(decode func(any) error) (env.Environment, error) {
		var w whimsical
		return w, decode(&w)
	}
}

// whimsical rewards each first character of a reply by its own amount, so that a policy at its beginning gets something to learn.
type whimsical struct {
	// Whim is the file that says what is wrong with it: nothing where it is empty or not there; "fail", every rollout fails;
	// "poison N", task N ends the process.
	Whim string `toml:"whim"`
}

// whimIn is the setting that names that file.
func whimIn(path string) string { return fmt.Sprintf("envs.whims.options.whim=%q", path) }

func (whimsical) Info() env.Info {
	return env.Info{Name: "whims", Version: "1", Train: 50, Eval: 5, MaxTurns: 1, CutReplies: true}
}

func (whimsical) Task(_ env.Split, i int) (json.RawMessage, error) {
	return json.RawMessage(fmt.Sprintf(`{"n":%d}`, i)), nil
}

func (e whimsical) Start(_ context.Context, task json.RawMessage, _ int64) (env.Episode, error) {
	text, err := os.ReadFile(e.Whim)
	if err != nil {
		text = nil
	}
	whim, n, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	switch {
	case whim == "fail":
		return nil, fmt.Errorf("the game has no board today")
	case whim == "poison" && string(task) == fmt.Sprintf(`{"n":%s}`, n):
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	return &whimsicalEpisode{}, nil
}

type whimsicalEpisode struct{ said string }

func (*whimsicalEpisode) Prompt() []env.Message {
	return []env.Message{{Role: env.RoleUser, Content: "0"}}
}

func (e *whimsicalEpisode) Reply(_ context.Context, m env.Message) (env.Turn, error) {
	e.said = m.Content
	return env.Turn{Done: true}, nil
}

func (e *whimsicalEpisode) Score(context.Context) (env.Score, error) {
	reward := 0.0
	if e.said != "" {
		reward = float64(strings.IndexByte("0123456789lsr", e.said[0])) / 13
	}
	return env.Score{Rewards: env.Rewards{"said": {Value: &reward, Weight: 1}}, Stop: "said"}, nil
}

// faultyRun is a run that is small, quick to notice what is wrong, and does not end.
const faultyRun = `
brokers = ["localhost:1"]
run = {name = "faulty", max_steps = 100000, max_async_level = 1, max_off_policy_steps = 6, batch_size = 16, seq_len = 64, trace_partitions = 1, task_partitions = 2}
model = {max_position = 64, alphabet = "0123456789lsr"}
inference = {listen = "localhost:0"}
ui = {listen = "localhost:0"}
sink = {max_age = "300ms"}
emitter = {env_lost = "10s"}
packer = {zero_output_batches = 1000}
trainer = {checkpoint_interval = 5, lr = 1e-6} # it learns so slowly that groups always differ

[envs.whims]
group_size = 4
max_tokens = 1
max_rollout_tokens = 16
`

// A world is a distributed run, each of whose stages could be a process of its own: a client, a log, metrics and a desk of faults of
// its own. They run in this process, unless a test needs to kill one.
type world struct {
	t     *testing.T
	dir   string
	addrs []string
	file  string // of settings
	sets  []string
	log   *faultLog
	model string                    // URL of inference
	page  string                    // URL
	user  func(stage string) string // a setting; nil where brokers know no users
	parts map[string]*part
}

// A part is a stage that runs.
type part struct {
	app     *stages.App
	metrics *httptest.Server
	cancel  context.CancelFunc
	done    chan struct{}
	err     error
}

// newWorld makes the run on a broker in memory, unless brokers are given.
func newWorld(t *testing.T, brokers []string, sets ...string) *world {
	t.Helper()
	if brokers == nil {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cluster.Close)
		brokers = cluster.ListenAddrs()
	}
	w := &world{t: t, dir: t.TempDir(), addrs: brokers, log: &faultLog{t: t}, parts: map[string]*part{}}
	w.sets = sets
	w.file = filepath.Join(w.dir, "faulty.toml")
	set(t, w.file, faultyRun)
	return w
}

// startAll starts every stage but those that are named.
func (w *world) startAll(but ...string) {
	w.t.Helper()
	for _, name := range []string{"trainer", "inference", "emitter", "envserver", "scorer", "packer", "sink", ui.Name} {
		if !slices.Contains(but, name) {
			w.start(name)
		}
	}
}

func (w *world) config(sets ...string) *stages.Config {
	w.t.Helper()
	all := slices.Concat([]string{"dir=" + w.dir}, w.sets, sets)
	if w.model != "" {
		all = append(all, "envserver.model_url="+w.model)
	}
	cfg, err := configure(flags{Config: w.file, Brokers: w.addrs, Set: all})
	if err != nil {
		w.t.Fatal(err)
	}
	return cfg
}

// start starts a stage, with settings over those of all.
func (w *world) start(name string, sets ...string) *part {
	w.t.Helper()
	if w.user != nil {
		sets = append(slices.Clone(sets), w.user(name))
	}
	app, err := stages.NewApp(w.config(sets...), w.addrs, name+"-0", slog.New(slog.NewJSONHandler(w.log, &slog.HandlerOptions{Level: slog.LevelInfo})).With("process", name))
	if err != nil {
		w.t.Fatal(err)
	}
	p := &part{app: app, done: make(chan struct{}), metrics: httptest.NewServer(promhttp.HandlerFor(app.Registry, promhttp.HandlerOpts{}))}
	ctx, cancel := context.WithCancel(w.t.Context())
	p.cancel = cancel
	stage, err := stages.Find(name)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := app.SetUp(ctx, stage); err != nil {
		app.RefusedAtStart(ctx, err, stage)
		p.err = err
		close(p.done)
		w.parts[name] = p
		return p
	}
	runner, err := stage.New(app, stage)
	if err != nil {
		w.t.Fatal(err)
	}
	if name == ui.Name {
		if url, err := runner.(*ui.UI).Listen(); err != nil {
			w.t.Fatal(err)
		} else {
			w.page = strings.TrimSuffix(url, "/")
		}
	}
	go func() {
		defer close(p.done)
		p.err = app.RunStage(ctx, stage, runner)
	}()
	if l, ok := runner.(interface {
		Listening() <-chan struct{}
		Addr() net.Addr
	}); ok {
		<-l.Listening()
		w.model = "http://" + l.Addr().String()
	}
	w.parts[name] = p
	w.t.Cleanup(func() { p.stop(w.t) })
	return p
}

// stop ends a part in order.
func (p *part) stop(t *testing.T) {
	p.cancel()
	select {
	case <-p.done:
	case <-time.After(faultDeadline):
		t.Error("a stage does not stop")
	}
	p.metrics.Close()
	_ = p.app.Close() // twice is an error
}

// until waits for something.
func (w *world) until(what string, there func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(faultDeadline); !there(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: not within %v; the log has\n%s\nthe page says %+v", what, faultDeadline, w.log.tail(), w.notices())
		}
	}
}

// trains waits until so many more versions are published than there are.
func (w *world) trains(n int64) {
	w.t.Helper()
	first := w.newest()
	w.until(fmt.Sprintf("%d more policy versions", n), func() bool { return w.newest() >= first+n })
}

func (w *world) newest() int64 {
	var run struct{ Newest struct{ Version int64 } }
	w.get("/api/run?points=2", &run)
	return run.Newest.Version
}

func (w *world) get(path string, v any) {
	w.t.Helper()
	resp, err := http.Get(w.page + path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		w.t.Fatalf("%s: %s: %s (%v)", path, resp.Status, text, err)
	}
	if err := json.Unmarshal(text, v); err != nil {
		w.t.Fatal(err)
	}
}

// notices are those of the page.
func (w *world) notices() []ui.Notice {
	var run struct{ Notices []ui.Notice }
	w.get("/api/run?points=2", &run)
	return run.Notices
}

// notice is that of a fault; nil where there is none.
func (w *world) notice(f faults.Fault) *ui.Notice {
	for _, n := range w.notices() {
		if n.Fault == f.Name {
			return &n
		}
	}
	return nil
}

// A faultLog is the log of all parts, as JSON.
type faultLog struct {
	t    *testing.T
	mu   sync.Mutex
	text bytes.Buffer

	children []*process
}

func (l *faultLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *faultLog) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return tail(l.text.String(), 6000)
}

// lines are the records of a fault.
func (l *faultLog) lines(f faults.Fault) (lines []faultLine) {
	for _, text := range l.texts() {
		lines = append(lines, linesOf(text, f)...)
	}
	return lines
}

// most is how often one log says a fault: a process that was started again may say it again.
func (l *faultLog) most(f faults.Fault) (n int) {
	for _, text := range l.texts() {
		n = max(n, len(linesOf(text, f)))
	}
	return n
}

// texts are the logs: that of the parts in this process, and those of the others.
func (l *faultLog) texts() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := []string{l.text.String()}
	for _, p := range l.children {
		all = append(all, p.text(&p.stderr))
	}
	return all
}

func linesOf(log string, f faults.Fault) (lines []faultLine) {
	for text := range strings.SplitSeq(log, "\n") {
		var line faultLine
		if json.Unmarshal([]byte(text), &line) == nil && line.Fault == f.Name {
			lines = append(lines, line)
		}
	}
	return lines
}

type faultLine struct {
	Level, Msg, Fault, Stage, Do, Error string
	Lasted                              time.Duration // of one that is over
}
