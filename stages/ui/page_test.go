package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/ui/flow"
	"github.com/prl-project/prl/stages/ui/index"
	"github.com/prl-project/prl/stages/ui/uitest"
)

// testDeadline bounds what a test waits for.
const testDeadline = 2 * time.Minute

var at = time.UnixMilli(1_700_000_000_000)

// drawn is a picture with the stages of a run that matter here.
var drawn = []flow.Stage{
	{Name: "emitter", Does: "writes tasks", Reads: []string{"outcomes", "requests"}, Tables: []string{"policies"}, Writes: []string{"tasks.<env>", "traces"}},
	{Name: "inference", Does: "serves the policy", Tables: []string{"policies"}},
	{Name: "envserver", Does: "runs rollouts", Reads: []string{"tasks.<env>"}, Tables: []string{"policies"}, Writes: []string{"traces", "eval_traces", "envs"}},
	{Name: "scorer", Does: "scores groups", Reads: []string{"traces"}, Writes: []string{"samples", "requests"}},
	{Name: "packer", Does: "cuts steps", Reads: []string{"samples"}, Writes: []string{"batches", "outcomes", "requests", "metrics"}},
	{Name: "trainer", Does: "trains", Reads: []string{"batches"}, Tables: []string{"policies"}, Writes: []string{"policies", "metrics"}},
	{Name: "eval", Does: "measures", Reads: []string{"eval_traces"}, Tables: []string{"policies"}, Writes: []string{"tasks.<env>", "outcomes", "evals"}},
}

// page is a page that is served, and the run it shows.
type page struct {
	t       testing.TB
	ui      *UI
	rt      *pipeline.Runtime
	url     string
	dir     string // of the files
	cl      *kgo.Client
	stopped chan error
	stop    context.CancelFunc
}

// newRun makes a run that nothing shows yet: live on a broker of its own, or of files alone.
func newRun(t testing.TB, live bool) *page {
	t.Helper()
	run := pipeline.DefaultRunConfig()
	run.Name, run.TracePartitions = "test", uitest.Partitions
	addrs := []string{""}
	if live {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cluster.Close)
		addrs = cluster.ListenAddrs()
	}
	rt := pipelinetest.Runtime(t, addrs, run)
	p := &page{t: t, rt: rt, dir: filepath.Join(t.TempDir(), "test", "parquet")}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if live {
		if err := rt.SetUp(t.Context(), uitest.Envs); err != nil {
			t.Fatal(err)
		}
		cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cl.Close)
		p.cl = cl
	}
	return p
}

// serve starts the page.
func (p *page) serve(change func(*Config)) *page {
	p.t.Helper()
	cfg := DefaultConfig()
	cfg.Listen, cfg.MaxRollouts = "localhost:0", 10_000
	if change != nil {
		change(&cfg)
	}
	u, err := New(p.rt, cfg, Options{Stages: drawn, Envs: uitest.Envs, Parquet: p.dir, Runs: filepath.Dir(filepath.Dir(p.dir)), MaxSteps: 100, Live: p.cl != nil})
	if err != nil {
		p.t.Fatal(err)
	}
	url, err := u.Listen()
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(p.t.Context())
	p.ui, p.url, p.stop, p.stopped = u, strings.TrimSuffix(url, "/"), cancel, make(chan error, 1)
	go func() { p.stopped <- u.Run(ctx) }()
	p.t.Cleanup(p.end)
	return p
}

// end stops the page and waits for it.
func (p *page) end() {
	p.stop()
	select {
	case err := <-p.stopped:
		if err != nil {
			p.t.Errorf("the page ended with %v", err)
		}
		p.stopped <- nil
	case <-time.After(testDeadline):
		p.t.Error("the page did not end")
	}
}

// write puts records on the topics.
func (p *page) write(records ...uitest.Record) {
	p.t.Helper()
	for _, r := range records {
		rec, err := p.rt.Encode(p.t.Context(), pipeline.Emission{Topic: r.Topic, Partition: pipeline.AutoPartition, Value: r.Value})
		if err != nil {
			p.t.Fatal(err)
		}
		if err := p.cl.ProduceSync(p.t.Context(), rec).FirstErr(); err != nil {
			p.t.Fatal(err)
		}
	}
}

// get asks the page; the status must be what is wanted.
func (p *page) get(path string, status int, into any) string {
	p.t.Helper()
	r, err := http.Get(p.url + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	if r.StatusCode != status {
		p.t.Fatalf("%s: status %d, want %d: %s", path, r.StatusCode, status, body)
	}
	if into != nil {
		if err := json.Unmarshal(body, into); err != nil {
			p.t.Fatalf("%s: %v: %s", path, err, body)
		}
	}
	return string(body)
}

// until waits until the page says something.
func (p *page) until(path string, there func(body string) bool) {
	p.t.Helper()
	deadline, body := time.Now().Add(testDeadline), ""
	for time.Now().Before(deadline) {
		if body = p.get(path, http.StatusOK, nil); there(body) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	p.t.Fatalf("%s stays %s", path, clipText(body, 2000))
}

// holds waits until the page has n rollouts.
func (p *page) holds(n int) {
	p.t.Helper()
	p.until("/api/rollouts?limit=1&eval=any", func(body string) bool { return strings.Contains(body, fmt.Sprintf(`"matches":%d,`, n)) })
}

// decided waits until the outcomes of n steps are there.
func (p *page) decided(n int) {
	p.t.Helper()
	p.until("/api/run?points=2", func(body string) bool { return strings.Contains(body, fmt.Sprintf(`"groups":%d,`, n*(uitest.Batch+1))) })
}

// perStep is the number of rollouts of a step.
const perStep = (uitest.Batch + 1) * uitest.Size

func (p *page) rows(query string) []index.Row {
	p.t.Helper()
	var res index.Result
	p.get("/api/rollouts?"+query, http.StatusOK, &res)
	return res.Rows
}

func hostile(group int64) *schemas.Trace {
	t := uitest.Trace(group, 0, 0)
	t.Nodes[0].Content, t.Nodes[1].Content, t.Nodes[1].Reasoning, t.Nodes[1].Role, t.StopReason = uitest.Hostile, uitest.Hostile, uitest.Hostile, uitest.Hostile, uitest.Hostile
	t.Nodes[1].ToolCalls = []schemas.ToolCall{{ID: uitest.Hostile, Name: uitest.Hostile, Arguments: uitest.Hostile}}
	t.Task, t.EnvVersion, t.Instance, t.Model, t.Info = uitest.Hostile, uitest.Hostile, uitest.Hostile, uitest.Hostile, uitest.Hostile
	t.Metrics, t.Rewards = map[string]float64{uitest.Hostile: 1}, map[string]*float64{uitest.Hostile: nil}
	t.Reward, t.Errors = nil, []schemas.TraceError{{Type: uitest.Hostile, Message: uitest.Hostile, Traceback: uitest.Hostile}}
	return t
}
