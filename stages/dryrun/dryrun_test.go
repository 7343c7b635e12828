package dryrun

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/internal/lm"
)

// TestMain turns the test binary into the child that opens environments.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "probe-env" {
		if err := stages.ProbeEnv(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A world is a run with all it needs, and what a dry run must leave as it is.
type world struct {
	*Run
	cluster *kfake.Cluster
	cl      *kgo.Client
	admin   *kadm.Client
}

// newWorld is one in which all checks of some stages succeed. Its topics are there, its folder is not.
func newWorld(t *testing.T, names []string, opts ...kfake.Opt) *world {
	t.Helper()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"object": "list", "data": [{"id": "dry"}]}`)
	}))
	t.Cleanup(model.Close)
	cfg := stages.DefaultConfig()
	cfg.Run.Name, cfg.Dir, cfg.Brokers, cfg.Telemetry = "dry", filepath.Join(t.TempDir(), "runs"), cluster.ListenAddrs(), "localhost:0"
	cfg.Envs["catch"] = emitter.DefaultEnvConfig()
	cfg.Inference.Listen, cfg.UI.Listen, cfg.EnvServer.ModelURL = "localhost:0", "localhost:0", model.URL
	w := &world{Run: &Run{Config: cfg, Name: names[0], BrokerDir: filepath.Join(cfg.RunDir(), "broker"), Probe: []string{os.Args[0], "probe-env"}}, cluster: cluster}
	for _, name := range names {
		s, err := stages.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		w.Stages = append(w.Stages, s)
	}
	return w
}

// setUp makes the topics and an administrator, who logs in where the brokers want that.
func (w *world) setUp(t *testing.T) {
	t.Helper()
	rt := w.runtime()
	w.ask(t)
	if err := rt.SetUp(t.Context(), []string{"catch"}); err != nil {
		t.Fatal(err)
	}
}

// ask makes the clients that ask what there is.
func (w *world) ask(t *testing.T) {
	t.Helper()
	var err error
	if w.cl, err = w.runtime().Client(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.cl.Close)
	w.admin = kadm.NewClient(w.cl)
}

// state is all that a dry run must not change, as text.
func (w *world) state(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	root := filepath.Dir(w.Config.Dir)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			info, ierr := d.Info()
			if ierr != nil {
				return ierr
			}
			fmt.Fprintln(&b, path, info.Mode(), d.IsDir() || info.Size() >= 0)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if w.admin == nil {
		return b.String()
	}
	topics := w.named(t)
	groups, err := w.admin.ListGroups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ids, err := w.admin.ListTransactions(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(&b, topics, groups.Groups(), ids.Sorted())
	ends, err := w.admin.ListEndOffsets(t.Context(), topics...)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range ends.Offsets().Sorted() {
		fmt.Fprintln(&b, o.Topic, o.Partition, o.At)
	}
	return b.String()
}

// named are the topics there are, by the brokers and not by the client's memory.
func (w *world) named(t *testing.T) (names []string) {
	t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = nil // all
	resp, err := req.RequestWith(t.Context(), w.cl)
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range resp.Topics {
		names = append(names, *topic.Topic)
	}
	slices.Sort(names)
	return names
}

// looks makes the checks and holds what they leave to what was there.
func (w *world) looks(t *testing.T) map[string]Result {
	t.Helper()
	before := w.state(t)
	results := map[string]Result{}
	for _, r := range w.Checks(t.Context()) {
		if r.State == "" || r.Says == "" {
			t.Errorf("check %s says nothing", r.Check)
		}
		if had, ok := results[r.Check]; ok && had.State == Failed {
			continue
		}
		results[r.Check] = r
	}
	if after := w.state(t); after != before {
		t.Errorf("a dry run has changed something. Before:\n%s\nAfter:\n%s", before, after)
	}
	return results
}

// TestAllIsThere makes the checks of every stage where nothing is wrong.
func TestAllIsThere(t *testing.T) {
	for _, s := range stages.Flow {
		t.Run(s.Name, func(t *testing.T) {
			w := newWorld(t, []string{s.Name})
			w.setUp(t)
			for _, r := range w.looks(t) {
				if r.State == Failed {
					t.Errorf("%s: %s", r.Check, r.Says)
				}
			}
		})
	}
}

// TestFolders looks at folders that are there: they are tried, and nothing of that stays.
func TestFolders(t *testing.T) {
	w := newWorld(t, []string{"sink"})
	w.setUp(t)
	for _, dir := range []string{"blobs", "parquet", "locks"} {
		if err := os.MkdirAll(filepath.Join(w.Config.RunDir(), dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	results := w.looks(t)
	for _, check := range []string{"blobs", "parquet"} {
		if r := results[check]; r.State != OK || !strings.Contains(r.Says, "written, linked, read and deleted") {
			t.Errorf("%s: %+v", check, r)
		}
	}
}

// TestTrainerForTheRun: what the trainer refuses when it is made the dry run says before, and only of the trainer.
func TestTrainerForTheRun(t *testing.T) {
	for name, want := range map[string]string{"trainer": "trainer.warmup_steps = 4: at most the 3 steps", "scorer": ""} {
		w := newWorld(t, []string{name})
		w.Config.Run.MaxSteps, w.Config.Trainer.WarmupSteps = 3, 4
		var res Result
		w.seeSettings(t.Context(), &res)
		if res.State == Failed != (want != "") || !strings.Contains(res.Says, want) {
			t.Errorf("%s: %+v, want %q", name, res, want)
		}
	}
}

// TestNothingIsMade looks at a run that has neither topics nor a folder: what would be made is said, and is not there after it.
func TestNothingIsMade(t *testing.T) {
	w := newWorld(t, []string{"scorer"})
	w.ask(t)
	results := w.looks(t)
	for check, want := range map[string]string{"topics": "would be made", "folder": "would be made", "blobs": "would be made", "settings": "has not begun"} {
		if r := results[check]; r.State == Failed || !strings.Contains(r.Says, want) {
			t.Errorf("%s: %+v, want %q", check, r, want)
		}
	}
	if _, err := os.Stat(w.Config.Dir); err == nil {
		t.Error("the folder of the runs was made")
	}
}

// A fault is planted into a world of one stage; the check must find it, and none other may.
type fault struct {
	stage string
	plant func(t *testing.T, w *world)
	check string
	want  string // in what it says
}

var faults = map[string]fault{
	"brokers that do not answer": {"scorer", func(_ *testing.T, w *world) { w.cluster.Close(); w.admin = nil }, "brokers", "do they run?"},
	"a topic of other partitions": {"scorer", func(_ *testing.T, w *world) { w.Config.Run.TracePartitions = 7 }, "topics",
		"topic dry.traces has 3 partitions, this configuration asks for 7"},
	"a topic that forgets": {"scorer", func(t *testing.T, w *world) {
		alter(t, w, "dry.traces", "retention.ms", "1000")
	}, "topics", "retention.ms = 1000, a run needs -1"},
	"a name that is taken": {"scorer", func(t *testing.T, w *world) { w.Instance = "one"; join(t, w, "dry.scorer", "one") }, "name", "a process called one is in the group dry.scorer already"},
	"a transaction that is open": {"trainer", func(t *testing.T, w *world) { begin(t, w, "dry.trainer") }, "name",
		"a transaction is open under dry.trainer"},
	"a registry that is down": {"scorer", func(_ *testing.T, w *world) {
		w.Config.SchemaRegistry.URLs = []string{"http://localhost:1"}
		w.Config.SchemaRegistry.Timeout = pipeline.Duration(time.Second)
	}, "schema registry", "does it run?"},
	"a registry without the schemas": {"scorer", func(t *testing.T, w *world) {
		reg := srfake.New()
		t.Cleanup(reg.Close)
		w.Config.SchemaRegistry.URLs, w.Config.SchemaRegistry.AutoRegister = []string{reg.URL()}, false
	}, "schema registry", "it lacks the schemas of prl."},
	"other settings": {"scorer", func(t *testing.T, w *world) {
		write(t, filepath.Join(w.Config.RunDir(), "run.toml"), "[run]\nname = 'dry'\nseed = 99\n")
	}, "settings", "run.seed = 1, but the run \"dry\" began with seed = 99"},
	"a file for a folder":       {"scorer", func(t *testing.T, w *world) { write(t, w.Config.Dir, "") }, "folder", "is a file, a folder is needed"},
	"a file for the blob store": {"scorer", func(t *testing.T, w *world) { write(t, filepath.Join(w.Config.RunDir(), "blobs"), "") }, "blobs", "is a file, a folder is needed"},
	"a file for the Parquet": {"sink", func(t *testing.T, w *world) {
		w.Config.Sink.Dir = filepath.Join(t.TempDir(), "x")
		write(t, w.Config.Sink.Dir, "")
	}, "parquet", "sink.dir"},
	"no collector of spans":     {"scorer", func(_ *testing.T, w *world) { w.Config.Tracing.Endpoint = "http://localhost:1" }, "tracing", "does the collector run?"},
	"a stage without brokers":   {"scorer", func(_ *testing.T, w *world) { w.NoBrokers = "start one" }, "brokers", "start one"},
	"a full disk":               {"scorer", func(_ *testing.T, w *world) { w.LeastFree = 1 << 60 }, "disk", "make room, or set dir to another disk"},
	"a port that is taken":      {"ui", func(t *testing.T, w *world) { w.Config.UI.Listen = listen(t) }, "port", "does the stage run already?"},
	"an environment of no name": {"envserver", func(_ *testing.T, w *world) { w.Envs = []string{"chess"} }, "environment chess", "no environment \"chess\""},
	"an option that is none":    {"envserver", func(_ *testing.T, w *world) { option(w, "column", int64(5)) }, "environment catch", "has no option column"},
	"an environment that fails": {"envserver", func(t *testing.T, w *world) { python(t, w, "raise ValueError('no data here')") }, "environment catch", "no data here"},
	"an environment that hangs": {"envserver", func(t *testing.T, w *world) {
		python(t, w, "import time; time.sleep(600)")
		w.EnvLimit = 2 * time.Second
	}, "environment catch", "has not answered in time"},
	"no inference":               {"envserver", func(_ *testing.T, w *world) { w.Config.EnvServer.ModelURL = "http://localhost:1" }, "inference", "does `prl-stage --stage inference` run?"},
	"inference of another model": {"envserver", func(_ *testing.T, w *world) { w.Config.EnvServer.Model = "large" }, "inference", "has no model \"large\", but [\"dry\"]"},
	"inference with a token": {"envserver", func(t *testing.T, w *world) {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
		t.Cleanup(s.Close)
		w.Config.EnvServer.ModelURL = s.URL
	}, "inference", "refuses the token"},
	"no server of the backend": {"inference", func(_ *testing.T, w *world) {
		w.Config.Inference.Backend, w.Config.Inference.URLs = inference.BackendVLLM, []string{"http://localhost:1"}
	}, "server", "does the server run?"},
	"a frozen policy without files": {"inference", func(t *testing.T, w *world) {
		w.Config.Frozen["old"] = inference.FrozenConfig{Folder: t.TempDir()}
	}, "frozen old", "frozen.old.folder"},
	"a model without files":     {"trainer", func(t *testing.T, w *world) { w.Config.Model.Folder = t.TempDir() }, "model", "a Hugging Face folder has"},
	"a model without weights":   {"trainer", modelWithoutWeights, "model", "model.safetensors"},
	"no Python":                 {"trainer", func(_ *testing.T, w *world) { torch(w, "/no/python") }, "torch", "`make torch` sets up"},
	"a Python without PyTorch":  {"trainer", func(t *testing.T, w *world) { torch(w, script(t, "echo No module named torch >&2; exit 1")) }, "torch", "No module named torch"},
	"no GPU where one is asked": {"trainer", noGPU, "torch", "finds no GPU"},
	"the broker's data in use":  {"broker", lockBroker, "broker's data", "goes on in another process"},
}

// TestFaults plants each fault: its check finds it and says what to do, all other checks are made too, and find nothing.
func TestFaults(t *testing.T) {
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := f.stage
			if first == "broker" {
				first = "sink"
			}
			w := newWorld(t, []string{first})
			w.setUp(t)
			if f.stage == "broker" {
				w.Name, w.Stages = "broker", nil
				w.Config.Broker.Listen = "localhost:0"
			}
			f.plant(t, w)
			results := w.looks(t)
			r := results[f.check]
			if r.State != Failed || !strings.Contains(r.Says, f.want) {
				t.Errorf("check %s: %+v, want %q", f.check, r, f.want)
			}
			for _, other := range results {
				if entailed := f.check == "folder"; other.Check != f.check && other.State == Failed && !entailed {
					t.Errorf("check %s fails, too: %s", other.Check, other.Says)
				}
			}
		})
	}
}

// TestOldBroker looks at brokers that know no transactions.
func TestOldBroker(t *testing.T) {
	w := newWorld(t, []string{"scorer"}, kfake.MaxVersions(kversion.V0_10_2()))
	if r := w.looks(t)["brokers"]; r.State != Failed || !strings.Contains(r.Says, "knows no transactions") {
		t.Errorf("%+v", r)
	}
}

// TestRights takes each right of a stage away: the check of the rights, or that of the topics or of the name, names what is missing.
func TestRights(t *testing.T) {
	scorer, err := stages.Find("scorer")
	if err != nil {
		t.Fatal(err)
	}
	rights := scorer.Rights("dry")
	for i := -1; i < len(rights); i++ {
		name := "none"
		if i >= 0 {
			name = rights[i].String()
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var acls []kfake.ACL
			for j, r := range rights {
				if j != i {
					acls = append(acls, acl(r))
				} else if r.Resource == pipeline.ResourceTopic { // else it is hidden, as it does not exist
					r.Operation = pipeline.OperationDescribe
					acls = append(acls, acl(r))
				}
			}
			w := newWorld(t, []string{"scorer"}, kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "admin", "x"), kfake.User("PLAIN", "scorer", "x", acls...))
			write(t, filepath.Join(t.TempDir(), "x"), "x")
			password := filepath.Join(t.TempDir(), "password")
			write(t, password, "x")
			w.Config.Kafka = pipeline.KafkaConfig{SASL: pipeline.SASLPlain, User: "admin", PasswordFile: password, Cleartext: true}
			w.setUp(t)
			w.Config.Kafka.User = "scorer"
			var said []string
			for _, r := range w.looks(t) {
				if r.State == Failed {
					said = append(said, r.Says)
				}
			}
			text := strings.Join(said, "\n")
			switch {
			case i < 0 && text != "":
				t.Errorf("all rights are there, but: %s", text)
			case i >= 0 && rights[i].Operation == pipeline.OperationDescribeConfigs: // the topics are taken to be right then
			case i >= 0 && !strings.Contains(text, rights[i].Operation+" on "+strings.ToLower(rights[i].Resource)) && !strings.Contains(text, rights[i].String()):
				t.Errorf("without %s it says: %q", rights[i], text)
			}
		})
	}
}

func acl(r pipeline.Right) kfake.ACL {
	a := kfake.ACL{Name: r.Name, Allow: true, Pattern: kmsg.ACLResourcePatternTypeLiteral}
	var err [2]error
	a.Operation, err[0] = kmsg.ParseACLOperation(r.Operation)
	a.Resource, err[1] = kmsg.ParseACLResourceType(r.Resource)
	if err := errors.Join(err[:]...); err != nil {
		panic(err) // of a right of the flow
	}
	if r.Prefix {
		a.Pattern = kmsg.ACLResourcePatternTypePrefixed
	}
	return a
}

// TestNobodyIsFenced looks at a stage's name while a process of that name works: it goes on.
func TestNobodyIsFenced(t *testing.T) {
	w := newWorld(t, []string{"trainer"})
	w.setUp(t)
	cl := begin(t, w, "dry.trainer")
	w.looks(t)
	w.looks(t)
	if err := cl.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Errorf("the process that works under the name was fenced: %v", err)
	}
	if r := w.looks(t)["name"]; r.State != OK {
		t.Errorf("after its end: %+v", r)
	}
}

// TestHang asks what never answers: nobody waits for it, and the others are asked.
func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := make(chan struct{})
		c := check{"disk", time.Minute, func(context.Context, *Result) { <-never }}
		start := time.Now()
		if r := c.run(t.Context()); r.State != Failed || r.Says != "no answer within 1m0s" || time.Since(start) != time.Minute+grace {
			t.Errorf("%+v after %v", r, time.Since(start))
		}
		close(never)
	})
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func alter(t *testing.T, w *world, topic, key, value string) {
	t.Helper()
	resp, err := w.admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}}, topic)
	if err == nil {
		_, err = resp.On(topic, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// join makes a member of a group of an instance's name.
func join(t *testing.T, w *world, group, instance string) {
	t.Helper()
	cl, err := w.runtime().Client(kgo.ConsumerGroup(group), kgo.InstanceID(instance), kgo.ConsumeTopics("dry.traces"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		cl.PollFetches(ctx)
		cancel()
		if _, generation := cl.GroupMetadata(); generation > 0 {
			return
		}
		if t.Context().Err() != nil {
			t.Fatal("the group never had a member")
		}
	}
}

// begin opens a transaction and leaves it open.
func begin(t *testing.T, w *world, id string) *kgo.Client {
	t.Helper()
	cl, err := w.runtime().Client(kgo.TransactionalID(id))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "dry.metrics", Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return cl
}

func listen(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func option(w *world, key string, value any) {
	e := w.Config.Envs["catch"]
	e.Options = map[string]any{key: value}
	w.Config.Envs["catch"] = e
}

func python(t *testing.T, w *world, text string) {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "games.py"), text+"\n")
	option(w, "path", dir)
	e := w.Config.Envs["catch"]
	e.Source = "python:games:Game"
	w.Config.Envs["catch"] = e
}

func torch(w *world, python string) {
	w.Config.Trainer.Learner, w.Config.Trainer.Torch.Python = "torch", python
}

func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "python")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func noGPU(t *testing.T, w *world) {
	torch(w, script(t, `echo '{"python": "3.13", "torch": "2.9", "transformers": "5", "devices": [], "free": []}'`))
	w.Config.Trainer.Torch.Device = "cuda"
}

func modelWithoutWeights(t *testing.T, w *world) {
	dir := t.TempDir()
	tokenizer, err := lm.NewTokenizer("abc")
	if err != nil {
		t.Fatal(err)
	}
	text, err := tokenizer.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "config.json"), "{}")
	write(t, filepath.Join(dir, "tokenizer.json"), string(text))
	w.Config.Model.Folder = dir
}

func lockBroker(t *testing.T, w *world) {
	path := w.BrokerDir + ".lock"
	write(t, path, "localhost:4711\n")
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}
