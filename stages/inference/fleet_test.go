package inference

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prl-project/prl/stages/internal/lm"
)

// loadedTenant is a run in an engine, with version 0 of a seed.
func loadedTenant(t *testing.T, e *engine, share float64, seed int64) *native {
	t.Helper()
	n := e.tenant(e.cfg.MaxModelLen, share)
	m, tok := testModel(t, seed)
	if err := n.Load(t.Context(), policyOf(t, 0, m, tok)); err != nil {
		t.Fatal(err)
	}
	return n
}

// Two runs with a backlog are served tokens in proportion to their shares, however long what they ask for is and however many
// requests they have; when one has none the other has all slots, and one that comes late has saved nothing up.
func TestInvariant_RunsShareTokens(t *testing.T) {
	for _, c := range []struct {
		what   string
		shares [2]float64
		tokens [2]int // of a completion
		many   [2]int // requests that wait at once
		prompt [2]int
	}{
		{"ten times as many requests", [2]float64{1, 1}, [2]int{8, 8}, [2]int{200, 20}, [2]int{1, 1}},
		{"ten times as long ones", [2]float64{1, 1}, [2]int{40, 4}, [2]int{50, 50}, [2]int{1, 1}},
		{"shares of 2 and 1", [2]float64{2, 1}, [2]int{4, 8}, [2]int{50, 200}, [2]int{1, 1}},
		{"long prompts", [2]float64{1, 2}, [2]int{4, 4}, [2]int{50, 50}, [2]int{40, 1}},
	} {
		t.Run(c.what, func(t *testing.T) {
			cfg := testConfig()
			cfg.Slots = 6
			e := newEngine(cfg)
			var runs []*native
			for i := range 2 {
				runs = append(runs, loadedTenant(t, e, c.shares[i], int64(i)))
			}
			served := [2]int{}
			seen := [2][]*sequence{}
			next := int64(0)
			fill := func(i int) {
				for line := e.lanes[0].lines.of(runs[i]); len(line.waiting) < c.many[i]; next++ {
					prompt := make([]int32, c.prompt[i])
					for k := range prompt {
						prompt[k] = int32(5 + (next*7+int64(k*k))%20) // no two go on from each other
					}
					s, err := runs[i].enqueue(t.Context(), Request{Tokens: prompt, MaxTokens: c.tokens[i], Temperature: 1, Seed: next})
					if err != nil {
						t.Fatal(err)
					}
					seen[i] = append(seen[i], s)
				}
			}
			count := func(i int) (n int) {
				for _, s := range seen[i] {
					if n += len(s.out.Tokens); len(s.out.Tokens) > 0 {
						n += len(s.request.Tokens) - s.out.Cached
					}
				}
				return n
			}
			fill(0)
			most := 0
			for range 201 { // alone
				most = max(most, len(step(t, runs[0]).running))
				fill(0)
			}
			if most != cfg.Slots {
				t.Fatalf("alone it has %d of %d slots", most, cfg.Slots)
			}
			fill(1)
			before := [2]int{count(0), count(1)}
			for range 1500 {
				step(t, runs[0])
				fill(0)
				fill(1)
			}
			for i := range served {
				served[i] = count(i) - before[i]
			}
			// They differ by what is in the slots, at most: twice (the bound of arXiv:2401.00588).
			longest := float64(max(c.tokens[0]+c.prompt[0], c.tokens[1]+c.prompt[1]))
			apart := math.Abs(float64(served[0])/c.shares[0] - float64(served[1])/c.shares[1])
			if bound := 2 * float64(cfg.Slots) * longest / min(c.shares[0], c.shares[1]); apart > bound || served[0]+served[1] < 4*int(bound) {
				t.Errorf("they were served %d and %d tokens with shares of %v: more than %.0f apart", served[0], served[1], c.shares, bound)
			}
		})
	}
}

// testFleet is a fleet behind HTTP, with a server for each run, whose version 0 is of a seed of its own; tokens are by run.
func testFleet(t *testing.T, tokens map[string]string, runs ...string) (*Fleet, map[string]*Server, *httptest.Server) {
	t.Helper()
	f, err := NewFleet(testConfig(), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	servers := map[string]*Server{}
	for i, name := range runs {
		rt := testRuntime(t, t.TempDir())
		rt.Run.Name = name
		cfg := testConfig()
		if err := cfg.Token.UnmarshalText([]byte(tokens[name])); err != nil {
			t.Fatal(err)
		}
		s, err := f.New(rt, cfg, nil, 1)
		if err != nil {
			t.Fatal(err)
		}
		m, tok := testModel(t, int64(i))
		publish(t, s, store(t, rt, policyOf(t, 0, m, tok)))
		s.enterFleet()
		t.Cleanup(s.leaveFleet)
		servers[name] = s
	}
	runBackend(t, f.engineBackend())
	hs := httptest.NewServer(f.handler())
	t.Cleanup(hs.Close)
	return f, servers, hs
}

// engineBackend runs the engine as runBackend wants it.
func (f *Fleet) engineBackend() Backend { return f.engine.tenant(f.cfg.MaxModelLen, 1) }

// What a run gets in a fleet is what it gets alone, bit for bit, from its own policy, while others ask, too; and it is asked
// for by path or by name.
func TestInvariant_SharingChangesNothing(t *testing.T) {
	_, _, hs := testFleet(t, nil, "A", "B", "C")
	var wg sync.WaitGroup
	for i, run := range []string{"A", "B", "C"} {
		m, _ := testModel(t, int64(i))
		byPath, byName := NewClient(hs.URL+RunPath(run)), NewClient(hs.URL)
		for seed := range int64(6) {
			wg.Go(func() {
				r := Request{Tokens: []int32{5, 10, 11}, MaxTokens: 20, Temperature: 1, Seed: seed}
				want := alone(t, r, testConfig().MaxModelLen, []*lm.Model{m}, []int64{0}, []int{0})
				for _, c := range []*Client{byPath, byName} {
					r.Model = run
					got, err := c.Generate(t.Context(), r)
					if err != nil {
						t.Error(err)
						return
					}
					sameBits(t, "run "+run, got, want)
				}
			})
		}
	}
	wg.Wait()
}

// A request reaches only the run that it names and has the token of.
func TestRunsAreApart(t *testing.T) {
	f, _, hs := testFleet(t, map[string]string{"A": "of A", "B": "of B"}, "A", "B", "open")
	ask := func(token, path, model string) error {
		c := NewClient(hs.URL + path)
		c.Token = token
		_, err := c.Generate(t.Context(), Request{Tokens: []int32{5}, MaxTokens: 1, Temperature: 1, Model: model})
		return err
	}
	for _, c := range []struct {
		token, path, model string
		want               string // code of the error
	}{
		{"of A", "/runs/A", "", ""},
		{"of A", "/runs/A", "A", ""},
		{"of A", "/runs/A", "B", CodeNoModel},
		{"of A", "/runs/B", "", CodeUnauthorized},
		{"", "/runs/A", "", CodeUnauthorized},
		{"of B", "", "B", ""},
		{"of B", "", "A", CodeNoModel}, // nobody is told what he may not ask
		{"of B", "", "", CodeNoModel},
		{"", "", "open", ""},
		{"", "/runs/open", "", ""},
		{"of A", "/runs/gone", "", CodeStopping},
	} {
		err := ask(c.token, c.path, c.model)
		var e *Error
		if errors.As(err, &e); c.want == "" && err != nil || c.want != "" && (e == nil || e.Code != c.want) {
			t.Errorf("with token %q, at %q, for %q: %v, want %q", c.token, c.path, c.model, err, c.want)
		}
	}
	list := func(token string) (names []string) {
		c := NewClient(hs.URL)
		c.Token = token
		cards, err := c.Models(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, card := range cards {
			names = append(names, card.ID)
		}
		return names
	}
	if got := list("of A"); !slices.Equal(got, []string{"A", "open"}) {
		t.Errorf("with A's token %v are listed", got)
	}
	if got := list(""); !slices.Equal(got, []string{"open"}) {
		t.Errorf("without a token %v are listed", got)
	}
	resp, err := http.Post(hs.URL+"/v1/chat/completions", "application/json", strings.NewReader(`{"model": "open", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}`))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK || !json.Valid(body) || !bytes.Contains(body, []byte(`"model":"open"`)) {
		t.Errorf("a chat gave %d %s %v", resp.StatusCode, body, err)
	}
	f.mu.Lock()
	delete(f.runs, "open")
	f.mu.Unlock()
	if err := ask("", "/runs/open", ""); !Retryable(err) {
		t.Errorf("a run that is away for a moment gave %v", err)
	}
}

// A run that leaves fails what is left of its own and nothing of the others'; its slots are free.
func TestRunLeavesTheEngine(t *testing.T) {
	cfg := testConfig()
	cfg.Slots = 2
	e := newEngine(cfg)
	a, b := loadedTenant(t, e, 1, 0), loadedTenant(t, e, 1, 1)
	ask := func(n *native, seed int64) *sequence {
		s, err := n.enqueue(t.Context(), Request{Tokens: []int32{5}, MaxTokens: 5, Temperature: 1, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	gone := []*sequence{ask(a, 0), ask(a, 1), ask(a, 2)} // two run, one waits
	step(t, a)
	stays := ask(b, 3)
	probe, err := a.enqueueProbe(t.Context(), Probe{Tokens: []int32{1, 2}, Mask: []byte{0, 1}, Temperature: 1, PinVersion: pin(0)})
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := (&tenant{a}).Run(ended); err != nil {
		t.Fatal(err)
	}
	for range 6 {
		step(t, b)
	}
	for i, s := range gone {
		if r := soon(t, s.done); r.err != error(errStopping) {
			t.Errorf("sequence %d: %v", i, r.err)
		}
	}
	if r := soon(t, probe.done); r.err != error(errStopping) {
		t.Errorf("the probe: %v", r.err)
	}
	m, tok := testModel(t, 1)
	if err := a.Load(t.Context(), policyOf(t, 1, m, tok)); err != error(errStopping) {
		t.Errorf("a version that comes when the run has left: %v", err)
	}
	sameBits(t, "the other's", soon(t, stays.done).completion, alone(t, stays.request, cfg.MaxModelLen, []*lm.Model{m}, []int64{0}, []int{0}))
	short, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := a.Generate(short, Request{Tokens: []int32{5}, MaxTokens: 1}); err != error(errStopping) {
		t.Errorf("a request of a run that left: %v", err)
	}
	end()
	if err := (&tenant{b}).Run(ended); err != nil {
		t.Fatal(err)
	}
	if _, err := e.admit(); err != nil || len(e.lanes) != 0 {
		t.Errorf("%d decoders are left, %v", len(e.lanes), err)
	}
}

// soon is what comes from c.
func soon[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(10 * time.Second):
		t.Fatal("nothing comes")
		panic("unreachable")
	}
}

// A run that cannot begin, however often it is tried, leaves nothing behind: no memory of versions and no decoder.
func TestRunThatFailsLeavesNothing(t *testing.T) {
	f, err := NewFleet(testConfig(), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	m, tok := testModel(t, 0)
	good := folder(t, m, tok)
	for range 3 {
		rt := testRuntime(t, t.TempDir())
		s, err := f.New(rt, testConfig(), map[string]FrozenConfig{"a": good, "b": {Folder: t.TempDir()}}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "frozen.b") {
			t.Fatalf("it ended with %v", err)
		}
	}
	if _, err := f.engine.admit(); err != nil || len(f.engine.lanes) != 0 || len(f.stock.runs) != 0 || len(f.runs) != 0 {
		t.Errorf("%d decoders, %d shelves and %d runs are left, %v", len(f.engine.lanes), len(f.stock.runs), len(f.runs), err)
	}
}

// Runs share the memory of versions: the newest of each stays, and of the others the one goes that was used least recently.
func TestVersionsAreSharedByRuns(t *testing.T) {
	a, loadedA := testPolicies(4)
	b, loadedB := testPolicies(4)
	shared := newStock(2) // and one for each
	a.join(shared)
	b.join(shared)
	for _, p := range []*policies{a, b} {
		p.publish(versions(0, 5)...)
		if v, err := p.serveNewest(t.Context()); err != nil || v != 5 {
			t.Fatalf("version %d, %v", v, err)
		}
	}
	mustUse(t, a, 0)()
	mustUse(t, a, 1)()
	mustUse(t, b, 2)() // a's 0 goes, which was used least recently
	inside := func(what string, wantA, wantB []int64) {
		t.Helper()
		slices.Sort(loadedA.inside)
		slices.Sort(loadedB.inside)
		if !slices.Equal(loadedA.inside, wantA) || !slices.Equal(loadedB.inside, wantB) {
			t.Errorf("%s: %v and %v are loaded, want %v and %v", what, loadedA.inside, loadedB.inside, wantA, wantB)
		}
	}
	inside("beyond the limit", []int64{1, 5}, []int64{2, 5})
	release := mustUse(t, b, 3)
	mustUse(t, b, 4)()
	inside("one in use stays", []int64{5}, []int64{3, 4, 5})
	release()
	mustUse(t, a, 2)()
	inside("the other run takes its turn", []int64{2, 5}, []int64{4, 5})
	a.leave()
	mustUse(t, b, 0)()
	inside("one alone", []int64{2, 5}, []int64{0, 4, 5})
}

// BenchmarkAdmit is what it costs to find the next sequence, of one run and of several.
func BenchmarkAdmit(b *testing.B) {
	for _, runs := range []int{1, 3} {
		b.Run(string(rune('0'+runs)), func(b *testing.B) {
			e := newEngine(testConfig())
			var q lines
			var all []*sequence
			for range runs {
				n := e.tenant(64, 1)
				for range 1000 {
					all = append(all, &sequence{ctx: context.Background(), served: &served{of: n}})
				}
			}
			for _, s := range all {
				q.push(s)
			}
			for b.Loop() {
				s := q.take()
				s.line.party.Charge(10)
				q.push(s)
			}
		})
	}
}
