package pipeline

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/prl-project/prl/schemas"
)

func newRegistry(t testing.TB) *srfake.Registry {
	reg := srfake.New()
	t.Cleanup(reg.Close)
	return reg
}

func registryConfig(urls ...string) SchemaRegistryConfig {
	cfg := DefaultSchemaRegistryConfig()
	cfg.URLs = urls
	return cfg
}

// schemaRegistry is the client of a registry, before Resolve.
func schemaRegistry(t testing.TB, cfg SchemaRegistryConfig) *SchemaRegistry {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	g, err := NewSchemaRegistry(cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func resolved(t testing.TB, cfg SchemaRegistryConfig) *SchemaRegistry {
	t.Helper()
	g := schemaRegistry(t, cfg)
	if err := g.Resolve(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g
}

// takeDown makes a registry answer 503, and tell of every time it was asked.
func takeDown(reg *srfake.Registry) (asked chan struct{}) {
	asked = make(chan struct{}, 1000)
	reg.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		asked <- struct{}{}
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	return asked
}

// otherWords is the schema of traces as another program might have registered it: without a word of documentation it is
// another text, with an id of its own, and the same schema.
func otherWords(t testing.TB) sr.Schema { return otherWordsFor(t, "Trace") }

func otherWordsFor(t testing.TB, record string) sr.Schema {
	t.Helper()
	text, err := schemas.Schema(record)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(text, `"doc": "`, `"doc": "In other words: `, 1)
	if changed == text {
		t.Fatal("the schema has no words")
	}
	return sr.Schema{Schema: changed, Type: sr.TypeAvro}
}

// framed is a trace under a schema id.
func framed(t testing.TB, rt *Runtime, id int, trace *schemas.Trace) *kgo.Record {
	t.Helper()
	return framedFor(t, rt, TopicTraces, id, trace)
}

func framedFor(t testing.TB, rt *Runtime, topic string, id int, v schemas.Record) *kgo.Record {
	t.Helper()
	r, err := rt.Encode(t.Context(), Emission{topic, AutoPartition, v})
	if err != nil {
		t.Fatal(err)
	}
	head, err := new(sr.ConfluentHeader).AppendEncode(nil, id, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Value, err = schemas.AppendBinary(head, v); err != nil {
		t.Fatal(err)
	}
	return r
}

func send(t testing.TB, rt *Runtime, records ...*kgo.Record) {
	t.Helper()
	if err := client(t, rt).ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// subjectOf asks the registry which subject's schema a value is framed with.
func subjectOf(t testing.TB, reg *srfake.Registry, value []byte) string {
	t.Helper()
	id, _, err := new(sr.ConfluentHeader).DecodeID(value)
	if err != nil {
		t.Fatalf("% x is not in Confluent's framing", value[:min(len(value), 10)])
	}
	cl, err := sr.NewClient(sr.URLs(reg.URL()))
	if err != nil {
		t.Fatal(err)
	}
	subjects, err := cl.SubjectsByID(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(subjects, ",")
}

// TestRegistryFramesEverything runs a processor and starts it again: what it reads, writes and restores is framed.
func TestRegistryFramesEverything(t *testing.T) {
	rt, _ := testRuntime(t)
	reg := newRegistry(t)
	rt.Schemas = resolved(t, registryConfig(reg.URL()))
	produce(t, rt, trace(0, 0), trace(0, 1), trace(3, 0))
	stop := start(t, rt, toyConfig())
	committed(t, rt, TopicSamples, 1)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	produce(t, rt, trace(3, 1))
	rt.Schemas = resolved(t, registryConfig(reg.URL()))
	stop = start(t, rt, toyConfig())
	oncePerGroup3(t, committed(t, rt, TopicSamples, 2))
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string]string{TopicTraces: "prl.Trace", TopicSamples: "prl.SampleGroup", TopicState: "prl.StageState"} {
		cl := client(t, rt, kgo.ConsumeTopics(rt.TopicName(topic)), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		recs := cl.PollFetches(t.Context()).Records()
		if len(recs) == 0 {
			t.Fatalf("nothing on %s", topic)
		}
		for _, r := range recs {
			if got := subjectOf(t, reg, r.Value); got != want {
				t.Errorf("%s holds a record of subject %q, want %s", topic, got, want)
			}
		}
	}
}

func oncePerGroup3(t testing.TB, recs []Record) {
	t.Helper()
	if a, b := recs[0].Value.(*schemas.SampleGroup), recs[1].Value.(*schemas.SampleGroup); a.GroupID != 0 || b.GroupID != 3 || len(recs) != 2 {
		t.Errorf("groups %d, %d and %d more", a.GroupID, b.GroupID, len(recs)-2)
	}
}

// TestRegistryBothFramings decides groups one trace of which was written without the registry.
func TestRegistryBothFramings(t *testing.T) {
	rt, _ := testRuntime(t)
	produce(t, rt, trace(0, 0), trace(1, 0))
	rt.Schemas = resolved(t, registryConfig(newRegistry(t).URL()))
	produce(t, rt, trace(0, 1), trace(1, 1))
	defer start(t, rt, toyConfig())()
	oncePerGroup(t, committed(t, rt, TopicSamples, 2), 2)
}

func TestRegistryRegisters(t *testing.T) {
	reg := newRegistry(t)
	writes := new(atomic.Int32)
	reg.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut || strings.HasSuffix(r.URL.Path, "/versions") {
			writes.Add(1)
		}
		return false
	})
	cfg := registryConfig(reg.URL())
	cfg.Compatibility = sr.CompatFullTransitive
	first := resolved(t, cfg)
	cl, err := sr.NewClient(sr.URLs(reg.URL()))
	if err != nil {
		t.Fatal(err)
	}
	for record := range first.ids {
		got := cl.Compatibility(t.Context(), "prl."+record)[0]
		if got.Err != nil || got.Level != sr.CompatFullTransitive {
			t.Errorf("subject prl.%s: %+v", record, got)
		}
	}
	subjects, err := cl.Subjects(t.Context())
	if err != nil || len(subjects) != 11 || len(first.ids) != 11 || writes.Load() != 22 {
		t.Errorf("subjects %v, %d ids, %d writes, %v; want 11, 11, 22", subjects, len(first.ids), writes.Load(), err)
	}
	// What is there is not written again, whoever may.
	cfg.AutoRegister = false
	if second := resolved(t, cfg); fmt.Sprint(second.ids) != fmt.Sprint(first.ids) || writes.Load() != 22 {
		t.Errorf("ids %v after %v, %d writes", second.ids, first.ids, writes.Load())
	}
}

func TestRegistryWithoutAutoRegister(t *testing.T) {
	reg := newRegistry(t)
	cfg := registryConfig(reg.URL())
	cfg.AutoRegister = false
	err := schemaRegistry(t, cfg).Resolve(t.Context())
	if err == nil || !strings.Contains(err.Error(), "subject prl.EnvInfo does not hold the schema") || !strings.Contains(err.Error(), "auto_register") {
		t.Errorf("error %v", err)
	}
	if reg.SubjectExists("prl.EnvInfo") {
		t.Error("it was registered")
	}
}

func TestRegistryDownAtStart(t *testing.T) {
	reg := srfake.New()
	reg.Close()
	cfg := registryConfig(reg.URL())
	cfg.Timeout = Duration(100 * time.Millisecond)
	err := schemaRegistry(t, cfg).Resolve(t.Context())
	if err == nil || !strings.Contains(err.Error(), "schema registry at "+reg.URL()) || !strings.Contains(err.Error(), "does it run?") {
		t.Errorf("error %v", err)
	}
}

// The second registry answers for the first.
func TestRegistryOfSeveral(t *testing.T) {
	down := srfake.New()
	down.Close()
	if g := resolved(t, registryConfig(down.URL(), newRegistry(t).URL())); len(g.ids) != 11 {
		t.Errorf("ids %v", g.ids)
	}
}

func TestRegistryRefuses(t *testing.T) {
	for _, tt := range []struct {
		request string
		answer  int
		want    string
	}{
		{"POST /subjects/prl.EnvInfo", http.StatusUnauthorized, "schema_registry.user"},
		{"POST /subjects/prl.EnvInfo", http.StatusForbidden, "schema_registry.user"},
		{"PUT /config/prl.EnvInfo", http.StatusUnprocessableEntity, "set its compatibility to BACKWARD_TRANSITIVE"},
		{"POST /subjects/prl.EnvInfo/versions", http.StatusConflict, "the newest prl"},
	} {
		reg := newRegistry(t)
		asked := new(atomic.Int32)
		reg.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method+" "+r.URL.Path != tt.request {
				return false
			}
			asked.Add(1)
			http.Error(w, "no", tt.answer)
			return true
		})
		err := schemaRegistry(t, registryConfig(reg.URL())).Resolve(t.Context())
		if err == nil || !strings.Contains(err.Error(), tt.want) || asked.Load() != 1 {
			t.Errorf("%s answered with %d: asked %d times, error %v", tt.request, tt.answer, asked.Load(), err)
		}
	}
}

// TestRegistryDownLater goes on with what is known. A record under an id that is not known waits for the registry: it is
// not refused.
func TestRegistryDownLater(t *testing.T) {
	rt, _ := testRuntime(t)
	reg := newRegistry(t)
	rt.Schemas = resolved(t, registryConfig(reg.URL()))
	rt.Schemas.cfg.Timeout = Duration(100 * time.Millisecond)
	id, _, err := reg.RegisterSchema("another program's traces", otherWords(t))
	if err != nil {
		t.Fatal(err)
	}
	asked := takeDown(reg)
	defer start(t, rt, toyConfig())()
	produce(t, rt, trace(0, 0), trace(0, 1))
	committed(t, rt, TopicSamples, 1)
	if len(asked) != 0 {
		t.Fatalf("what is known was asked for %d times", len(asked))
	}

	send(t, rt, framed(t, rt, id, trace(3, 0)), framed(t, rt, id, trace(3, 1)))
	for range 10 { // more than are put within the time-out: the stage has started over
		select {
		case <-asked:
		case <-time.After(20 * time.Second):
			t.Fatal("the registry is not asked")
		}
	}
	reg.ClearInterceptors()
	oncePerGroup3(t, committed(t, rt, TopicSamples, 2))
	noMore(t, rt, TopicDLQ, 0)
}

// TestFollowerWaitsForRegistry polls once while the registry is down and loses nothing by it.
func TestFollowerWaitsForRegistry(t *testing.T) {
	rt, _ := testRuntime(t)
	reg := newRegistry(t)
	rt.Schemas = resolved(t, registryConfig(reg.URL()))
	rt.Schemas.cfg.Timeout = Duration(100 * time.Millisecond)
	id, _, err := reg.RegisterSchema("another program's traces", otherWords(t))
	if err != nil {
		t.Fatal(err)
	}
	send(t, rt, framed(t, rt, rt.Schemas.ids["Trace"], trace(0, 0)), framed(t, rt, id, trace(0, 1)))
	f, err := rt.Follow(TopicTraces)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	asked := takeDown(reg)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	recs, err := f.Poll(ctx)
	if !errors.Is(err, ErrTransient) || len(asked) == 0 {
		t.Fatalf("%d records, error %v, asked %d times", len(recs), err, len(asked))
	}
	reg.ClearInterceptors()
	if recs, err = f.Poll(ctx); err != nil || len(recs) != 2 || recs[1].Value.(*schemas.Trace).RolloutIndex != 1 {
		t.Errorf("%d records, error %v", len(recs), err)
	}
}

// TestRegistryUnknown refuses, with a reason, what no schema can be found for.
func TestRegistryUnknown(t *testing.T) {
	rt, _ := testRuntime(t)
	reg := newRegistry(t)
	rt.Schemas = resolved(t, registryConfig(reg.URL()))
	foreign, _, err := reg.RegisterSchema("orders", sr.Schema{Schema: `{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"n","type":"long"}]}`})
	if err != nil {
		t.Fatal(err)
	}
	proto, _, err := reg.RegisterSchema("messages", sr.Schema{Schema: `syntax = "proto3";`, Type: sr.TypeProtobuf})
	if err != nil {
		t.Fatal(err)
	}
	group := rt.Schemas.ids["SampleGroup"]
	for id, want := range map[int]string{
		4711:              "look up schema id 4711: schema not found",
		foreign:           fmt.Sprintf("schema id %d: shop.Order: schema", foreign),
		proto:             fmt.Sprintf("schema id %d: not an Avro schema", proto),
		math.MaxInt32 + 1: "2147483648 is no schema id",
		group:             "", // whatever its bytes mean there
	} {
		_, err := rt.Decode(t.Context(), framed(t, rt, id, trace(0, 0)))
		if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, ErrTransient) {
			t.Errorf("schema id %d: error %v", id, err)
		}
	}
	// And nothing is held up by it.
	send(t, rt, framed(t, rt, 4711, trace(0, 0)), framed(t, rt, foreign, trace(0, 0)), &kgo.Record{Topic: rt.TopicName(TopicTraces), Value: []byte{0, 0, 0}})
	produce(t, rt, trace(0, 0), trace(0, 1))
	defer start(t, rt, toyConfig())()
	committed(t, rt, TopicSamples, 1)
	cl := client(t, rt, kgo.ConsumeTopics(rt.TopicName(TopicDLQ)), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if n := len(cl.PollFetches(t.Context()).Records()); n != 3 {
		t.Errorf("%d records in dlq", n)
	}
}

func TestFramingWithoutRegistry(t *testing.T) {
	rt, _ := testRuntime(t)
	r := framed(t, rt, 1, trace(0, 0))
	if _, err := rt.Decode(t.Context(), r); err == nil || !strings.Contains(err.Error(), "schema_registry.urls names no registry") {
		t.Errorf("error %v", err)
	}
	send(t, rt, r)
	f, err := rt.Follow(TopicTraces)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if recs, err := f.Load(t.Context()); err != nil || len(recs) != 0 {
		t.Errorf("%d records, error %v", len(recs), err)
	}
}

// TestRegistryTLS reaches a registry over TLS, as a user, and not without its certificate or the password.
func TestRegistryTLS(t *testing.T) {
	reg := srfake.NewRegistry(srfake.WithAuth("Basic " + base64.StdEncoding.EncodeToString([]byte("alice:wonder land"))))
	srv := httptest.NewUnstartedServer(reg.Handler())
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	srv.StartTLS()
	defer srv.Close()
	dir := t.TempDir()
	file := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cfg := registryConfig(srv.URL)
	cfg.CAFile = file("ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}))
	cfg.User, cfg.PasswordFile = "alice", file("password", []byte("wonder land\n"))
	resolved(t, cfg)

	wrong := cfg
	wrong.PasswordFile = file("wrong", []byte("land\n"))
	if err := schemaRegistry(t, wrong).Resolve(t.Context()); err == nil || !strings.Contains(err.Error(), "schema_registry.user") || strings.Contains(err.Error(), "land") {
		t.Errorf("error %v", err)
	}
	cfg.CAFile = ""
	if err := schemaRegistry(t, cfg).Resolve(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("error %v", err)
	}
}

func TestSchemaRegistryConfig(t *testing.T) {
	for want, change := range map[string]func(*SchemaRegistryConfig){
		"schema_registry.timeout = 0s":              func(c *SchemaRegistryConfig) { c.Timeout = 0 },
		"schema_registry.urls is empty":             func(c *SchemaRegistryConfig) { c.URLs = nil; c.CAFile = "ca.pem" },
		"schema_registry.user is empty":             func(c *SchemaRegistryConfig) { c.PasswordEnv = "P" },
		`schema_registry.user = "alice" needs`:      func(c *SchemaRegistryConfig) { c.User = "alice" },
		"as it is: use https":                       func(c *SchemaRegistryConfig) { c.User, c.PasswordEnv = "alice", "P" },
		"schema_registry.cleartext has no effect":   func(c *SchemaRegistryConfig) { c.Cleartext = true },
		"is not checked against":                    func(c *SchemaRegistryConfig) { c.CAFile = "ca.pem" },
		"http://alice:xxxxx@localhost holds a user": func(c *SchemaRegistryConfig) { c.URLs = []string{"http://alice:pw@localhost"} },
		"schema_registry.urls holds, as number 1":   func(c *SchemaRegistryConfig) { c.URLs = []string{"localhost:8081"} },
	} {
		cfg := registryConfig("http://localhost:8081")
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// TestRegistryBarred takes the right to read from a stage: what it has not met waits, and is not refused for it.
func TestRegistryBarred(t *testing.T) {
	rt, _ := testRuntime(t)
	reg := newRegistry(t)
	rt.Schemas = resolved(t, registryConfig(reg.URL()))
	id, _, err := reg.RegisterSchema("another program's traces", otherWords(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, answer := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		reg.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "no", answer)
			return true
		})
		if _, err := rt.Decode(t.Context(), framed(t, rt, id, trace(0, 0))); !errors.Is(err, ErrTransient) {
			t.Errorf("answered with %d: error %v", answer, err)
		}
		reg.ClearInterceptors()
	}
}
