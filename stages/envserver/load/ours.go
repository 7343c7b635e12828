package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
)

// The environment, and how many turns its rollouts have.
const (
	environment = "alphabet-sort"
	turns       = 3
)

// patience bounds the waits for a server to start and to stop.
const patience = 2 * time.Minute

// playOurs lets one prl-stage play, with a broker in this process.
func playOurs(ctx context.Context, f flags, dir string, m *model) (result, error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		return result{}, fmt.Errorf("start a broker: %w", err)
	}
	defer cluster.Close()
	rt, err := newRun(ctx, cluster.ListenAddrs(), filepath.Join(dir, "load"))
	if err != nil {
		return result{}, err
	}
	s, err := startOurs(ctx, f, dir, rt, m)
	if err != nil {
		return result{}, err
	}
	defer s.kill()
	if err := m.forget(ctx); err != nil {
		return result{}, err
	}
	meter, err := newMeter(s.cmd.Process.Pid)
	if err != nil {
		return result{}, err
	}
	start := time.Now()
	if err := produce(ctx, rt, pipeline.TopicTasks(environment), tasks(f.rollouts(f.Concurrency))...); err != nil {
		return result{}, err
	}
	if f.Profiles != "" {
		go s.profile(ctx, f, "cpu", "profile?seconds=20")
	}
	full, ended := context.WithCancel(ctx)
	defer ended()
	live := make(chan int64, 1)
	go func() { live <- s.full(full, f, m) }()
	r := result{Server: "prl-stage"}
	if r.Rollouts, err = s.played(ctx, rt, f.rollouts(f.Concurrency)); err != nil {
		return r, err
	}
	r.Took = time.Since(start)
	ended()
	r.Live = <-live
	if r.Usage, err = meter.read(); err != nil {
		return r, err
	}
	said, err := m.figures(ctx)
	r.AtOnce = said.Most
	return r, errors.Join(err, s.stop())
}

func (f flags) rollouts(atOnce int) int {
	if f.Rollouts > 0 {
		return f.Rollouts
	}
	return atOnce
}

// newRun makes the topics of a run whose version 0 is published.
func newRun(ctx context.Context, brokers []string, dir string) (*pipeline.Runtime, error) {
	blobs, err := pipeline.OpenBlobs(filepath.Join(dir, "blobs"))
	if err != nil {
		return nil, err
	}
	run := pipeline.DefaultRunConfig()
	run.Name = "load"
	rt := &pipeline.Runtime{Run: run, Brokers: brokers, Instance: "driver", Blobs: blobs, Log: slog.New(slog.DiscardHandler),
		Metrics: pipeline.NewMetrics(prometheus.NewRegistry())}
	if err := rt.SetUp(ctx, []string{environment}); err != nil {
		return nil, err
	}
	tok, err := lm.NewTokenizer("")
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(tok)
	if err != nil {
		return nil, err
	}
	ref, err := blobs.Put(ctx, "tokenizers", data)
	if err != nil {
		return nil, err
	}
	return rt, produce(ctx, rt, pipeline.TopicPolicies, &schemas.PolicyVersion{Kind: "full", Weights: ref, Config: ref, Tokenizer: ref})
}

// tasks are n rollouts of groups of their own.
func tasks(n int) []schemas.Record {
	list := make([]schemas.Record, n)
	for i := range list {
		list[i] = &schemas.Task{Env: environment, GroupID: int64(i), GroupSize: 1, Split: schemas.SplitTrain, TaskIndex: int64(i % 1000), GroupSeed: int64(i),
			Seed: int64(i), Temperature: 1, TopP: 1, MaxTokens: 1024, MaxRolloutTokens: 16384, TimeoutMs: time.Hour.Milliseconds(), MaxOffPolicySteps: -1}
	}
	return list
}

// produce writes records to the partitions of a topic in turn.
func produce(ctx context.Context, rt *pipeline.Runtime, topic string, values ...schemas.Record) error {
	cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer cl.Close()
	recs := make([]*kgo.Record, len(values))
	for i, v := range values {
		if recs[i], err = rt.Encode(ctx, pipeline.Emission{Topic: topic, Partition: int32(i) % rt.Partitions(topic), Value: v}); err != nil {
			return err
		}
	}
	return cl.ProduceSync(ctx, recs...).FirstErr()
}

// server is a prl-stage that serves the environment.
type server struct {
	cmd       *exec.Cmd
	telemetry string
	ended     chan struct{}
}

// startOurs returns when the server works.
func startOurs(ctx context.Context, f flags, dir string, rt *pipeline.Runtime, m *model) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	options := "{min_turns = %d, max_turns = %d, prompt = 'full'}"
	args := []string{"--stage", "envserver", "--env", environment, "--run", rt.Run.Name, "--instance", "one", "--telemetry", port, "--pprof", "--log-level", "warn"}
	for _, set := range []string{
		fmt.Sprintf("dir=%q", dir), fmt.Sprintf("envserver.concurrency=%d", f.Concurrency), fmt.Sprintf("envserver.model_url=%q", m.url),
		fmt.Sprintf("envs.%s.options="+options, environment, turns, turns),
	} {
		args = append(args, "--set", set)
	}
	for _, b := range rt.Brokers {
		args = append(args, "--brokers", b)
	}
	log, err := os.Create(filepath.Join(dir, "prl-stage.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s := &server{cmd: exec.CommandContext(ctx, f.Binary, args...), telemetry: "http://" + port, ended: make(chan struct{})}
	s.cmd.Stderr, s.cmd.Env = log, append(os.Environ(), "GOMEMLIMIT="+f.Memory)
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", f.Binary, err)
	}
	go func() {
		_ = s.cmd.Wait() // how it ended is in its log
		close(s.ended)
	}()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if _, err := s.get(ctx, "/readyz"); err == nil {
			return s, nil
		}
		select {
		case <-s.ended:
			return nil, fmt.Errorf("%s ended before it was ready", f.Binary)
		case <-ctx.Done():
			s.kill()
			return nil, fmt.Errorf("%s is not ready after %v", f.Binary, patience)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func (s *server) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.telemetry+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, resp.Status)
	}
	return data, err
}

// played waits for the traces of all rollouts; each must have a reward.
func (s *server) played(ctx context.Context, rt *pipeline.Runtime, n int) (rollouts int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	traces, err := rt.Follow(pipeline.TopicTraces)
	if err != nil {
		return 0, err
	}
	defer traces.Close()
	for rollouts < n {
		recs, err := traces.Poll(ctx)
		if err != nil || ctx.Err() != nil {
			return rollouts, fmt.Errorf("the server ended after %d rollouts of %d: %w", rollouts, n, errors.Join(err, ctx.Err()))
		}
		for _, r := range recs {
			t := r.Value.(*schemas.Trace)
			if t.Reward == nil || len(t.Nodes) != 2*turns {
				return rollouts, fmt.Errorf("a rollout of %d messages failed: %+v", len(t.Nodes), t.Errors)
			}
			rollouts++
		}
	}
	return rollouts, nil
}

// full waits until the server is full and keeps what its memory is for, where profiles are wanted. It is the memory in use then, of
// heap and stacks; 0 where it was never full.
func (s *server) full(ctx context.Context, f flags, m *model) (live int64) {
	for {
		if said, err := m.figures(ctx); err != nil {
			return 0
		} else if said.Most >= f.Concurrency {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	if f.Profiles != "" {
		for _, name := range []string{"heap", "goroutine", "allocs"} {
			s.profile(ctx, f, name, name)
		}
	}
	text, err := s.get(ctx, "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) { // its end is runtime.MemStats
		key, value, _ := strings.Cut(strings.TrimSpace(line), " = ")
		if key == "# HeapAlloc" || key == "# Stack" {
			value, _, _ = strings.Cut(value, " ") // in use, and had of the system
			n, _ := strconv.ParseInt(value, 10, 64)
			live += n
		}
	}
	return live
}

// profile keeps one of the server's profiles.
func (s *server) profile(ctx context.Context, f flags, name, query string) {
	data, err := s.get(ctx, "/debug/pprof/"+query)
	if err == nil {
		err = os.WriteFile(filepath.Join(f.Profiles, name), data, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
	}
}

// stop ends the server in order.
func (s *server) stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the server: %w", err)
	}
	select {
	case <-s.ended:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("the server does not stop")
	}
}

func (s *server) kill() {
	_ = s.cmd.Process.Kill() // it may have ended
	<-s.ended
}
