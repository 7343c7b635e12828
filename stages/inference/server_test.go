package inference

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
)

// gated is a backend whose requests end when the gate is opened, or the backend.
type gated struct {
	native
	entered chan struct{}
	gate    chan struct{}
}

func (g *gated) Generate(ctx context.Context, _ Request) (Completion, error) {
	g.entered <- struct{}{}
	select {
	case <-g.gate:
		return Completion{Tokens: []int32{1}, Logprobs: []float32{0}, FinishReason: FinishStop}, nil
	case <-ctx.Done():
		return Completion{}, context.Cause(ctx)
	}
}

func serveGated(t *testing.T, change func(*Config)) (*Server, *gated) {
	t.Helper()
	cfg := testConfig()
	change(&cfg)
	rt := testRuntime(t)
	cfg, err := cfg.forRun(rt.Run)
	if err != nil {
		t.Fatal(err)
	}
	g := &gated{native: *newNative(cfg), entered: make(chan struct{}), gate: make(chan struct{})}
	s, err := newServer(rt, cfg, g)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, s, store(t, rt, testPolicy(t, 0)))
	return s, g
}

func TestQueueIsBounded(t *testing.T) {
	s, g := serveGated(t, func(c *Config) { c.MaxRequests = 1 })
	done := make(chan error)
	go func() {
		_, err := s.Generate(t.Context(), Request{Tokens: []int32{1}})
		done <- err
	}()
	<-g.entered
	_, err := s.Generate(t.Context(), Request{Tokens: []int32{1}})
	var e *Error
	if !errors.As(err, &e) || e.Status != http.StatusServiceUnavailable || e.Code != CodeOverloaded || !Retryable(err) {
		t.Errorf("got %v", err)
	}
	close(g.gate)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := testutil.ToFloat64(s.metrics.requests.WithLabelValues(CodeOverloaded)); got != 1 {
		t.Errorf("%v requests counted as refused", got)
	}
	if got := testutil.ToFloat64(s.metrics.running); got != 0 {
		t.Errorf("%v requests are said to run", got)
	}
}

func TestRequestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := serveGated(t, func(c *Config) { c.Hold, c.Timeout = time.Second, 3*time.Second })
		go func() { <-g.entered }()
		_, err := s.Generate(t.Context(), Request{Tokens: []int32{1}})
		var e *Error
		if !errors.As(err, &e) || e.Status != http.StatusGatewayTimeout {
			t.Errorf("got %v", err)
		}
	})
}

func TestDrainLetsRunningRequestsEndAndHeldOnesFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := serveGated(t, func(*Config) {})
		running, held := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := s.Generate(t.Context(), Request{Tokens: []int32{1}})
			running <- err
		}()
		<-g.entered
		go func() {
			_, err := s.Generate(t.Context(), Request{Tokens: []int32{1}, PinVersion: pin(1)})
			held <- err
		}()
		synctest.Wait()
		drained := make(chan struct{})
		go func() { s.drain(); close(drained) }()
		if err := <-held; err != error(errStopping) {
			t.Errorf("the held request got %v", err)
		}
		synctest.Wait()
		select {
		case <-drained:
			t.Error("a running request was not waited for")
		default:
		}
		if _, err := s.Generate(t.Context(), Request{Tokens: []int32{1}}); err != error(errStopping) {
			t.Errorf("a new request got %v", err)
		}
		close(g.gate)
		if err := <-running; err != nil {
			t.Errorf("the running request got %v", err)
		}
		<-drained
	})
}

func TestDrainHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := serveGated(t, func(c *Config) { c.Drain = 5 * time.Second })
		go s.Generate(t.Context(), Request{Tokens: []int32{1}}) //nolint:errcheck // it is let go below
		<-g.entered
		begin := time.Now()
		s.drain()
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("it took %v", took)
		}
		close(g.gate)
	})
}

// startOnKafka runs the stage on a broker of its own; produce writes policies.
func startOnKafka(t *testing.T) (s *Server, stop func() error, produce func(...*schemas.PolicyVersion)) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	rt := testRuntime(t)
	rt.Brokers, rt.Health = cluster.ListenAddrs(), &pipeline.Health{}
	reg := prometheus.NewRegistry()
	rt.Metrics, rt.Registry = pipeline.NewMetrics(reg), reg
	if err := rt.SetUp(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	cl, err := rt.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	produce = func(versions ...*schemas.PolicyVersion) {
		t.Helper()
		for _, v := range versions {
			r, err := rt.Encode(t.Context(), pipeline.Emission{Topic: pipeline.TopicPolicies, Partition: pipeline.AutoPartition, Value: v})
			if err == nil {
				err = cl.ProduceSync(t.Context(), r).FirstErr()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if s, err = New(rt, testConfig()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return s, stop, produce
}

func TestStageFollowsPolicies(t *testing.T) {
	s, stop, produce := startOnKafka(t)
	<-s.Listening()
	cl := NewClient("http://" + s.Addr().String())
	defer cl.Close()
	type result struct {
		c   Completion
		err error
	}
	ask := func(r Request) chan result {
		out := make(chan result, 1)
		go func() {
			c, err := cl.Generate(t.Context(), r)
			out <- result{c, err}
		}()
		return out
	}
	r := Request{Tokens: []int32{5, 10, 11}, MaxTokens: 8, Temperature: 1, Seed: 2}
	pinned := r
	pinned.PinVersion = pin(1)
	first, second := ask(r), ask(pinned) // before anything is published
	v0, v1 := testPolicy(t, 0), testPolicy(t, 1)
	produce(store(t, s.rt, v0))
	if got := <-first; got.err != nil || got.c.Versions[0].Version != 0 {
		t.Errorf("got %+v", got)
	}
	produce(store(t, s.rt, v1))
	got := <-second
	if got.err != nil {
		t.Fatal(got.err)
	}
	m1, _ := testModel(t, 1)
	sameBits(t, "held for version 1", got.c, alone(t, r, 64, []*lm.Model{m1}, []int64{1}, []int{0}))

	// Bytes that are not the record's are never served; the version before goes on.
	bad := testPolicy(t, 2)
	record := store(t, s.rt, bad)
	corrupt(t, s, record)
	produce(record)
	pinned.PinVersion = pin(2)
	if got := <-ask(pinned); got.err == nil || !strings.Contains(got.err.Error(), "SHA-256") || !Retryable(got.err) {
		t.Errorf("corrupt weights: got %+v", got)
	}
	if got := <-ask(r); got.err != nil || got.c.Versions[0].Version != 1 {
		t.Errorf("got %+v, want version 1", got)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := cl.Generate(t.Context(), r); !Retryable(err) {
		t.Errorf("after the stop: %v", err)
	}
}

// corrupt changes a byte of stored weights.
func corrupt(t *testing.T, s *Server, v *schemas.PolicyVersion) {
	t.Helper()
	var path string
	err := filepath.WalkDir(os.TempDir(), func(p string, _ os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(p, v.Weights.SHA256) && strings.Contains(p, t.Name()) {
			path = p
		}
		return nil
	})
	if err != nil || path == "" {
		t.Fatalf("the blob is not found: %v", err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestClientGoneCancelsAHeldRequest(t *testing.T) {
	s, stop, _ := startOnKafka(t)
	<-s.Listening()
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if _, err := NewClient("http://"+s.Addr().String()).Generate(ctx, Request{Tokens: []int32{1}}); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}()
	inside := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.requests
	}
	await(t, func() bool { return inside() == 0 && testutil.ToFloat64(s.metrics.running) == 0 })
	cancel()
	<-sent
	await(t, func() bool { return inside() == 0 })
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// await polls until ok, under a deadline.
func await(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("it does not come to that")
		}
		time.Sleep(time.Millisecond)
	}
}
