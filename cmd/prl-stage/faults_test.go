package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/faults"
	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/ui"
)

// A plan plants a fault in a run that is healthy, and mends it.
type plan struct {
	fault faults.Fault
	plant func()
	mend  func()
	look  func()            // what else is looked at; nil for nothing
	more  map[string]string // URLs of /metrics of parts in other processes
	// silent says that the process that could say that it is over has ended.
	silent bool
	// down are alerts of the process that has ended.
	down []string
	// also are faults that follow from it, and mislead nobody.
	also []faults.Fault
}

// planted trains, plants a fault, and sees it where a person looks: on the page, in the log and in an alert, each with what to do; and
// that all of them say nothing before, and nothing when it is mended and the run goes on.
func (w *world) planted(p plan) {
	w.t.Helper()
	var scrapes [len(phases) + 1]scrape
	w.trains(2)
	scrapes[0] = w.scrape(p.more)
	w.trains(2)
	scrapes[1] = w.scrape(p.more)
	for _, f := range faults.All {
		if lines := w.log.lines(f); len(lines) > 0 {
			w.t.Errorf("a healthy run says %+v", lines)
		}
	}
	if n := w.notices(); len(n) > 0 {
		w.t.Errorf("the page of a healthy run says %+v", n)
	}
	p.plant()
	var n *ui.Notice // a fault that comes and goes may be gone again a moment later
	w.until("the page and the log say "+p.fault.Name, func() bool {
		n = w.notice(p.fault)
		return n != nil && len(w.log.lines(p.fault)) > 0
	})
	scrapes[2] = w.scrape(p.more)
	w.said(p, n)
	if p.look != nil {
		p.look()
	}
	p.mend()
	w.until("the page says no more of "+p.fault.Name, func() bool { return w.notice(p.fault) == nil })
	w.trains(2)
	w.until("the page shows no fault", func() bool {
		return !slices.ContainsFunc(w.notices(), func(n ui.Notice) bool { return n.Fault != "" })
	})
	scrapes[3] = w.scrape(p.more)
	w.trains(2)
	scrapes[4] = w.scrape(p.more)
	if lines := w.log.lines(p.fault); !p.silent && lines[len(lines)-1].Lasted == 0 {
		w.t.Errorf("the log does not say that it is over: %+v", lines[len(lines)-1])
	}
	firing := []string{p.fault.Name}
	for _, f := range p.also {
		if len(w.log.lines(f)) > 0 {
			firing = append(firing, f.Name)
		}
	}
	alerts(w.t, scrapes, append(firing, p.down...))
}

// said checks the words of a fault on the page, n, and in the log.
func (w *world) said(p plan, n *ui.Notice) {
	w.t.Helper()
	if !strings.Contains(n.Text, p.fault.Says) || !strings.Contains(n.Text, p.fault.Do) {
		w.t.Errorf("the page says %+v", n)
	}
	w.t.Logf("the page says: %s %s", p.fault.Name, n.Text)
	lines := w.log.lines(p.fault)
	if l := lines[0]; l.Msg != p.fault.Says || l.Do != p.fault.Do || l.Level != "ERROR" || l.Error == "" {
		w.t.Errorf("the log says %+v", l)
	}
	w.t.Logf("the log says: %+v", lines[0])
	if n := w.log.most(p.fault); n > 12 {
		w.t.Errorf("one log says it %d times", n)
	}
	for _, other := range w.notices() {
		expected := other.Fault == p.fault.Name
		for _, f := range p.also {
			expected = expected || other.Fault == f.Name
		}
		if !expected {
			w.t.Errorf("the page says, too: %+v", other)
		}
	}
}

// child starts a stage in a process of its own; its metrics are at the URL.
func (w *world) child(name string) (p *process, metrics string) {
	w.t.Helper()
	port := freePort(w.t)
	args := []string{"--stage", name, "--config", w.file, "--brokers", strings.Join(w.addrs, ","), "--instance", name + "-0", "--telemetry", "localhost:" + port}
	for _, s := range append([]string{"dir=" + w.dir, "envserver.model_url=" + w.model, "log.format=json"}, w.sets...) {
		args = append(args, "--set", s)
	}
	p = startStage(w.t, nil, args...)
	w.log.children = append(w.log.children, p)
	p.logged(w.t, "metrics, healthz and readyz", "addr")
	return p, "http://localhost:" + port + "/metrics"
}

func TestFaultEnvServerDead(t *testing.T) {
	t.Parallel() // most of its time it waits
	w := newWorld(t, nil)
	w.startAll("envserver")
	server, metrics := w.child("envserver")
	more := map[string]string{"envserver": metrics}
	w.planted(plan{fault: faults.EnvServerDead, more: more, down: []string{faults.StageDown.Name},
		plant: func() {
			if err := server.cmd.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			server.killed(t, faultDeadline)
		},
		mend: func() { _, more["envserver"] = w.child("envserver") },
	})
}

func TestFaultDiskFull(t *testing.T) {
	t.Parallel() // most of its time it waits
	dir := filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	small(t, dir)
	w := newWorld(t, nil, "sink.dir="+dir)
	w.startAll()
	ballast := filepath.Join(dir, "ballast")
	w.planted(plan{fault: faults.DiskFull,
		plant: func() { fill(t, ballast) },
		mend: func() {
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
		},
	})
}

func TestFaultNotAuthorized(t *testing.T) {
	t.Parallel() // most of its time it waits
	w, admin := securedWorld(t)
	samples := []string{"User:faulty.scorer", "Topic", "LITERAL", "faulty.samples", "Write"}
	w.startAll()
	w.planted(plan{fault: faults.NotAuthorized, silent: true, down: []string{faults.StageDown.Name},
		plant: func() {
			p := w.parts["scorer"]
			p.stop(t)
			admin.deny(t, samples)
			if p = w.start("scorer"); p.err == nil {
				select {
				case <-p.done:
				case <-time.After(faultDeadline):
					t.Fatal("the scorer runs without the right to write samples")
				}
			}
			if p.err == nil || !strings.Contains(p.err.Error(), "Write on topic faulty.samples") {
				t.Errorf("the scorer ends with %v", p.err)
			}
		},
		mend: func() {
			admin.allow(t, [][]string{samples})
			w.start("scorer")
		},
	})
}

func TestFaultPoisonTask(t *testing.T) {
	whim := filepath.Join(t.TempDir(), "whim")
	w := newWorld(t, nil, "emitter.max_attempts=0", whimIn(whim))
	w.startAll("envserver")
	server, metrics := w.child("envserver")
	more := map[string]string{"envserver": metrics}
	crashes := 0
	again := func() { // starts the server where it has been ended
		select {
		case <-server.done:
			server.killed(t, faultDeadline)
			crashes++
			server, more["envserver"] = w.child("envserver")
		default:
		}
	}
	w.planted(plan{fault: faults.PoisonTask, more: more, silent: true,
		plant: func() {
			set(t, whim, "poison 7")
			w.until("a task is given up", func() bool {
				again()
				n := w.notice(faults.PoisonTask)
				return n != nil && strings.Contains(n.Text, "task 7 of whims") && strings.Contains(n.Text, "it was given up")
			})
			if crashes < 5 {
				t.Errorf("it was given up after %d ends, want 5 (envserver.max_crashes)", crashes)
			}
			set(t, whim, "") // what happened is told of for a while
		},
		mend: func() {
			// Other rollouts of the task have ended as many processes by now: they come again, and are given up as well.
			first := w.newest()
			w.until("the others go on", func() bool { again(); return w.newest() >= first+2 })
			if err := server.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			server.ended(t, faultDeadline)
			server, more["envserver"] = w.child("envserver")
		},
	})
}

func TestFaultEnvFails(t *testing.T) {
	t.Parallel() // most of its time it waits
	whim := filepath.Join(t.TempDir(), "whim")
	w := newWorld(t, nil, whimIn(whim))
	w.startAll()
	w.planted(plan{fault: faults.EnvFails,
		plant: func() { set(t, whim, "fail") },
		look:  func() { w.seen(t, faults.EnvFails) },
		mend:  func() { set(t, whim, "") },
	})
}

func TestFaultNothingTrained(t *testing.T) {
	t.Parallel() // most of its time it waits
	w := newWorld(t, nil)
	w.startAll()
	w.planted(plan{fault: faults.NothingTrained,
		plant: func() {
			w.parts["scorer"].stop(t)
			w.start("scorer", `scorer.filters.reward_range={mode="drop",min=100}`)
		},
		mend: func() {
			w.parts["scorer"].stop(t)
			w.start("scorer")
		},
	})
}

func TestFaultModelSlow(t *testing.T) {
	t.Parallel() // most of its time it waits
	w := newWorld(t, nil, "envs.whims.timeout=2s", "envs.whims.group_timeout=60s")
	w.start("trainer")
	w.start("inference")
	slow := newGate(t, w.model)
	w.model = slow.url
	w.startAll("trainer", "inference")
	w.planted(plan{fault: faults.ModelSlow, plant: slow.shut, mend: slow.open})
}

func TestFaultTrainerOutOfMemory(t *testing.T) {
	t.Parallel() // most of its time it waits
	w := newWorld(t, nil)
	w.startAll()
	killed := filepath.Join(t.TempDir(), "python")
	if err := os.WriteFile(killed, []byte("#!/bin/sh\nkill -9 $$\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.planted(plan{fault: faults.TrainerOutOfMemory, silent: true, down: []string{faults.StageDown.Name},
		plant: func() {
			w.parts["trainer"].stop(t)
			p := w.start("trainer", "trainer.learner=torch", "trainer.torch.python="+killed)
			select {
			case <-p.done:
			case <-time.After(faultDeadline):
				t.Fatal("the trainer goes on for ever")
			}
			if p.err == nil || !strings.Contains(p.err.Error(), "signal: killed") {
				t.Errorf("the trainer ends with %v", p.err)
			}
		},
		mend: func() { w.start("trainer") },
	})
}

func TestFaultBrokerDown(t *testing.T) {
	t.Parallel() // most of its time it waits
	dir, port := t.TempDir(), freePort(t)
	serve := func() *process {
		b := startStage(t, nil, "--stage", "broker", "--run", "broker", "--telemetry", "", "--set", "dir="+dir, "--set", "broker.listen=localhost:"+port)
		b.logged(t, "broker serves", "addr=")
		return b
	}
	broker := serve()
	w := newWorld(t, []string{"localhost:" + port})
	w.startAll()
	w.planted(plan{fault: faults.BrokerDown,
		plant: func() {
			if err := broker.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			broker.ended(t, faultDeadline)
		},
		mend: func() { broker = serve() },
	})
}

func TestFaultPolicyStale(t *testing.T) {
	w := newWorld(t, nil)
	w.start("trainer")
	// Inference sees the blob store through a link, as another machine does through a mount.
	elsewhere := t.TempDir()
	link := filepath.Join(elsewhere, "faulty")
	real, empty := filepath.Join(w.dir, "faulty"), t.TempDir()
	point := func(to string) {
		_ = os.Remove(link) // at first there is none
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	point(real)
	w.start("inference", "dir="+elsewhere)
	w.startAll("trainer", "inference")
	w.planted(plan{fault: faults.PolicyStale, plant: func() { point(empty) }, mend: func() { point(real) }})
}

// set writes a file.
func set(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// small makes a folder a disk of its own: in memory, and with more room than alerts ask for.
func small(t *testing.T, dir string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=96m"); err != nil {
		need.That(t, false, "PRL_TEST_DISK", fmt.Sprintf("no disk of its own, which root may mount: %v", err))
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// fill writes a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for n := 0; err == nil; n++ {
		if _, err = f.Write(block); n > 200 {
			t.Fatal("the disk does not end")
		}
	}
	if !pipeline.NoRoom(err) {
		t.Fatal(err)
	}
}

// A gate is a way to a server that can be shut: requests then wait until they are given up, or it is opened.
type gate struct {
	url  string
	shut func()
	open func()
}

func newGate(t *testing.T, to string) *gate {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorLog = log.New(io.Discard, "", 0) // of requests that were given up
	var closed valve
	g := &gate{url: serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "generate") || strings.Contains(r.URL.Path, "completions") {
			select {
			case <-closed.wait():
			case <-r.Context().Done():
				return
			}
		}
		proxy.ServeHTTP(w, r)
	}))}
	g.shut, g.open = closed.shut, closed.open
	t.Cleanup(g.open)
	return g
}

// A valve is open, or holds up whoever waits.
type valve struct {
	mu     sync.Mutex
	closed chan struct{} // nil where it is open
}

func (v *valve) shut() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed == nil {
		v.closed = make(chan struct{})
	}
}

func (v *valve) open() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed != nil {
		close(v.closed)
		v.closed = nil
	}
}

func (v *valve) wait() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed == nil {
		open := make(chan struct{})
		close(open)
		return open
	}
	return v.closed
}

// securedWorld is a world on a broker with users, each stage with one of its own that has the rights of deploy/kafka/acls.csv and
// no others.
func securedWorld(t *testing.T) (*world, *secured) {
	t.Helper()
	opts := []kfake.Opt{kfake.NumBrokers(1), kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser(pipeline.SASLPlain, "root", password)}
	rows := aclTable(t, "faulty")
	known := map[string]bool{}
	for _, row := range rows {
		if user := strings.TrimPrefix(row[0], "User:"); !known[user] {
			known[user] = true
			opts = append(opts, kfake.User(pipeline.SASLPlain, user, password))
		}
	}
	opts = append(opts, kfake.User(pipeline.SASLPlain, "faulty.ui", password))
	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	admin, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.SASL(plain.Auth{User: "root", Pass: password}.AsMechanism()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	s := &secured{admin: admin}
	s.allow(t, rows)
	w := newWorld(t, cluster.ListenAddrs(), "kafka.sasl=PLAIN", "kafka.password_env="+passwordEnv, "kafka.cleartext=true")
	w.user = func(stage string) string { return "kafka.user=faulty." + stage }
	if err := runStage(t.Context(), t, w.config(w.user(stages.SetupName)), stages.SetupName); err != nil {
		t.Fatal(err)
	}
	return w, s
}

// deny takes a right.
func (s *secured) deny(t *testing.T, row []string) {
	t.Helper()
	req := kmsg.NewPtrDeleteACLsRequest()
	f := kmsg.NewDeleteACLsRequestFilter()
	f.ResourceType, f.ResourceName, f.ResourcePatternType = kmsg.ACLResourceTypeTopic, &row[3], kmsg.ACLResourcePatternTypeLiteral
	f.Principal, f.Operation, f.PermissionType = &row[0], kmsg.ACLOperationWrite, kmsg.ACLPermissionTypeAllow
	req.Filters = append(req.Filters, f)
	resp, err := req.RequestWith(t.Context(), s.admin)
	if err != nil || len(resp.Results) != 1 || len(resp.Results[0].MatchingACLs) != 1 {
		t.Fatalf("take the right %v: %+v, %v", row, resp, err)
	}
}

// serveHandler serves until the test ends.
func serveHandler(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// TestFaultTable holds the table of deploy/prometheus/README.md to the tests here: each fault has a row, and each row a test.
func TestFaultTable(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(repository(t), "deploy/prometheus/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("faults_test.go")
	if err != nil {
		t.Fatal(err)
	}
	planted := regexp.MustCompile(`func TestFault(\w+)\(`).FindAllStringSubmatch(string(code), -1)
	_, table, _ := strings.Cut(string(readme), "\n| planted |")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Count(table, "\n") - 1
	if rows != 10 || len(planted) != rows+1 { // this one
		t.Errorf("%d rows, %d tests", rows, len(planted)-1)
	}
	for _, name := range planted {
		if name[1] != "Table" && !strings.Contains(table, "| "+name[1]+" |") {
			t.Errorf("no row of %s", name[1])
		}
	}
}
