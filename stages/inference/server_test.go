package inference

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
)

// gated is a backend whose requests end when the gate is opened, or the backend.
type gated struct {
	*native
	entered chan struct{}
	gate    chan struct{}
}

func (g *gated) Generate(ctx context.Context, _ Request) (Completion, error) {
	g.entered <- struct{}{}
	select {
	case <-g.gate:
		return Completion{Tokens: []int32{1}, Logprobs: []float32{0}, Versions: []schemas.VersionRun{{}}, FinishReason: FinishStop}, nil
	case <-ctx.Done():
		return Completion{}, context.Cause(ctx)
	}
}

func serveGated(t *testing.T, change func(*Config)) (*Server, *gated) {
	t.Helper()
	cfg := testConfig()
	change(&cfg)
	rt := testRuntime(t, t.TempDir())
	cfg, err := cfg.forRun(rt.Run)
	if err != nil {
		t.Fatal(err)
	}
	g := &gated{native: newNative(cfg), entered: make(chan struct{}), gate: make(chan struct{})}
	s, err := newServer(rt, cfg, nil, g)
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
	if got := value(t, s.metrics.requests.WithLabelValues(CodeOverloaded)); got != 1 {
		t.Errorf("%v requests counted as refused", got)
	}
	if got := value(t, s.metrics.running); got != 0 {
		t.Errorf("%v requests are said to run", got)
	}
}

func TestRequestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := serveGated(t, func(c *Config) { c.Hold, c.Timeout = pipeline.Duration(time.Second), pipeline.Duration(3*time.Second) })
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
		s, g := serveGated(t, func(c *Config) { c.Drain = pipeline.Duration(5 * time.Second) })
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

// pipes is a network of one server, without sockets.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

func TestHeldRequestOutlivesTheDeadlineOfItsBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := serveGated(t, func(*Config) {})
		network := make(pipes)
		hs := httpServer(s.root(), s.cfg)
		go hs.Serve(network) //nolint:errcheck // it is closed below
		cl := NewClient("http://server")
		cl.http.Transport = &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			network <- theirs
			return ours, nil
		}}
		done := make(chan error)
		go func() {
			_, err := cl.Generate(t.Context(), Request{Tokens: []int32{1}})
			done <- err
		}()
		<-g.entered
		time.Sleep(2 * bodyTimeout)
		close(g.gate)
		if err := <-done; err != nil {
			t.Error(err)
		}
		cl.Close()
		close(network)
		hs.Close()
	})
}

// stage is the stage on a broker of its own.
type stage struct {
	*Server
	t      *testing.T
	blobs  string // folder
	client *kgo.Client
	stop   func() error
	http   *Client
}

// startOnKafka starts the stage on a broker of its own; before is called when the topics are there.
func startOnKafka(t *testing.T, before ...func(*kfake.Cluster)) *stage {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	st := &stage{t: t, blobs: t.TempDir()}
	rt := testRuntime(t, st.blobs)
	reg := prometheus.NewRegistry()
	rt.Brokers, rt.Health, rt.Metrics, rt.Registry = cluster.ListenAddrs(), &pipeline.Health{}, pipeline.NewMetrics(reg), reg
	if err := rt.SetUp(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for _, f := range before {
		f(cluster)
	}
	if st.client, err = rt.Client(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.client.Close)
	if st.Server, err = New(rt, testConfig(), nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- st.Run(ctx) }()
	st.stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() {
		if err := st.stop(); err != nil {
			t.Error(err)
		}
	})
	<-st.Listening()
	st.http = NewClient("http://" + st.Addr().String())
	t.Cleanup(st.http.Close)
	return st
}

// produce writes the record of a policy.
func (st *stage) produce(v *schemas.PolicyVersion) {
	st.t.Helper()
	r, err := st.rt.Encode(st.t.Context(), pipeline.Emission{Topic: pipeline.TopicPolicies, Partition: pipeline.AutoPartition, Value: v})
	if err == nil {
		err = st.client.ProduceSync(st.t.Context(), r).FirstErr()
	}
	if err != nil {
		st.t.Fatal(err)
	}
}

type answered struct {
	Completion
	err error
}

// ask sends a request over HTTP in the background.
func (st *stage) ask(r Request) chan answered {
	out := make(chan answered, 1)
	go func() {
		c, err := st.http.Generate(st.t.Context(), r)
		out <- answered{c, err}
	}()
	return out
}

// TestStartGoesOn starts while the broker cannot say where policies end: the stage does not end for it.
func TestStartGoesOn(t *testing.T) {
	fired := make(chan struct{}, 1)
	st := startOnKafka(t, func(cluster *kfake.Cluster) {
		cluster.ControlKey(int16(kmsg.ListOffsets), func(req kmsg.Request) (kmsg.Response, error, bool) {
			resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
			for _, asked := range req.(*kmsg.ListOffsetsRequest).Topics {
				topic := kmsg.NewListOffsetsResponseTopic()
				topic.Topic = asked.Topic
				part := kmsg.NewListOffsetsResponseTopicPartition()
				part.ErrorCode = kerr.UnknownServerError.Code
				topic.Partitions = append(topic.Partitions, part)
				resp.Topics = append(resp.Topics, topic)
			}
			fired <- struct{}{}
			return resp, nil, true // once
		})
	})
	<-fired
	st.produce(store(t, st.rt, testPolicy(t, 0)))
	if got := <-st.ask(Request{Tokens: []int32{5, 10, 11}, MaxTokens: 8, Temperature: 1}); got.err != nil || got.Versions[0].Version != 0 {
		t.Errorf("got %+v", got)
	}
	if err := st.stop(); err != nil {
		t.Error(err)
	}
}

func TestStageFollowsPolicies(t *testing.T) {
	st := startOnKafka(t)
	r := Request{Tokens: []int32{5, 10, 11}, MaxTokens: 8, Temperature: 1, Seed: 2}
	pinned := r
	pinned.PinVersion = pin(1)
	first, second := st.ask(r), st.ask(pinned) // before anything is published
	st.produce(store(t, st.rt, testPolicy(t, 0)))
	if got := <-first; got.err != nil || got.Versions[0].Version != 0 {
		t.Errorf("got %+v", got)
	}
	st.produce(store(t, st.rt, testPolicy(t, 1)))
	got := <-second
	if got.err != nil {
		t.Fatal(got.err)
	}
	m1, _ := testModel(t, 1)
	sameBits(t, "held for version 1", got.Completion, alone(t, r, 64, []*lm.Model{m1}, []int64{1}, []int{0}))

	// Bytes that are not the record's are never served; the version before goes on.
	bad := testPolicy(t, 2)
	record := store(t, st.rt, bad)
	bad.Weights[len(bad.Weights)-1] ^= 1
	if err := os.WriteFile(filepath.Join(st.blobs, filepath.FromSlash(record.Weights.URI)), bad.Weights, 0o644); err != nil {
		t.Fatal(err)
	}
	st.produce(record)
	pinned.PinVersion = pin(2)
	if got := <-st.ask(pinned); got.err == nil || !strings.Contains(got.err.Error(), "SHA-256") || !Retryable(got.err) {
		t.Errorf("corrupt weights: got %+v", got)
	}
	if got := <-st.ask(r); got.err != nil || got.Versions[0].Version != 1 {
		t.Errorf("got %+v, want version 1", got)
	}
	if err := st.stop(); err != nil {
		t.Error(err)
	}
	if got := <-st.ask(r); !Retryable(got.err) {
		t.Errorf("after the stop: %v", got.err)
	}
}

func TestClientGoneCancelsAHeldRequest(t *testing.T) {
	st := startOnKafka(t)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		_, err := st.http.Generate(ctx, Request{Tokens: []int32{1}})
		gone <- err
	}()
	st.await(1)
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	st.await(0)
}

// await waits until there are n requests in the server.
func (st *stage) await(n int) {
	st.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		st.mu.Lock()
		got := st.requests
		st.mu.Unlock()
		if got == n {
			return
		}
		if time.Now().After(deadline) {
			st.t.Fatalf("%d requests are in the server, want %d", got, n)
		}
		time.Sleep(time.Millisecond)
	}
}
