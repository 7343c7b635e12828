package ui

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/faults"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
	"github.com/prl-project/prl/stages/ui/index"
	"github.com/prl-project/prl/stages/ui/series"
	"github.com/prl-project/prl/stages/ui/uitest"
)

// TestInvariant_EachOnce: the files and what comes behind them on the topics make each rollout once, also where files have
// come meanwhile and following begins again.
func TestInvariant_EachOnce(t *testing.T) {
	p := newRun(t, true)
	var all [][]uitest.Record
	for step := range int64(6) {
		all = append(all, uitest.Step(step+1))
	}
	for _, step := range all[:4] {
		p.write(step...)
	}
	for _, step := range all[:3] { // the sink is a step behind
		uitest.Write(t, p.dir, at, step...)
	}
	p.serve(nil)
	p.holds(4 * perStep)
	p.write(all[4]...)
	p.holds(5 * perStep)
	check := func(steps int) {
		t.Helper()
		var run struct{ series.View }
		p.get("/api/run", http.StatusOK, &run)
		if n := run.Counts.Groups; n != int64(steps*(uitest.Batch+1)) {
			t.Errorf("%d groups after %d steps", n, steps)
		}
		seen := map[string]bool{}
		for _, row := range p.rows("limit=500") {
			name := fmt.Sprint(row.Group, row.Rollout)
			if seen[row.ID] || seen[name] || row.Fate == "" || row.Tokens != 6 {
				t.Errorf("twice, or undecided: %+v", row)
			}
			seen[row.ID], seen[name] = true, true
		}
		if len(seen) != 2*steps*perStep {
			t.Errorf("%d rollouts after %d steps", len(seen)/2, steps)
		}
	}
	p.decided(5)
	check(5)

	// The sink catches up, the brokers hide for a moment: what was read is not read again.
	for _, step := range all[3:5] {
		uitest.Write(t, p.dir, at, step...)
	}
	seen := positions{}
	u := p.ui
	work, from, err := u.plan(seen)
	if err != nil || len(work) == 0 {
		t.Fatalf("%d files, %v", len(work), err)
	}
	work, again, err := u.plan(seen)
	if err != nil || len(work) != 0 {
		t.Errorf("%d files are read again, %v", len(work), err)
	}
	for topic, parts := range from {
		for part, at := range parts {
			if again.at(topic, part) != at {
				t.Errorf("%s/%d is followed from %d, then from %d", topic, part, at, again.at(topic, part))
			}
		}
	}
	p.write(all[5]...)
	p.holds(6 * perStep)
	p.decided(6)
	check(6)
}

// TestFilesThatCameMeanwhile: a run of which only the files are there is read on as they come.
func TestFilesThatCameMeanwhile(t *testing.T) {
	p := newRun(t, false)
	uitest.Write(t, p.dir, at, uitest.Step(1)...)
	seen := positions{}
	p.serve(nil)
	p.holds(perStep)
	u := p.ui
	// Half of the next step was seen on the topics before its files came.
	if _, _, err := u.plan(seen); err != nil {
		t.Fatal(err)
	}
	for part := range int32(uitest.Partitions) {
		seen.raise(pipeline.TopicTraces, part, seen.at(pipeline.TopicTraces, part)+2)
	}
	uitest.Write(t, p.dir, at, uitest.Step(2)...)
	work, _, err := u.plan(seen)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.loadFiles(t.Context(), &work); err != nil {
		t.Fatal(err)
	}
	if n := u.model.rollouts.Len(); n != 2*perStep-2*uitest.Partitions {
		t.Errorf("%d rollouts", n)
	}
}

func TestRollout(t *testing.T) {
	p := newRun(t, true)
	for step := range int64(3) {
		records := uitest.Step(step + 1)
		p.write(records...)
		if step < 2 {
			uitest.Write(t, p.dir, at, records...)
		}
	}
	p.serve(nil)
	p.holds(3 * perStep)
	for group, want := range map[int64]string{0: "Trained in step 1", 4: "the filter zero_advantage took it", 11: "Trained in step 3, 1 step after"} {
		row := p.rows(fmt.Sprintf("group=%d&limit=10&sort=time", group))[0]
		var a rolloutAnswer
		p.get("/api/rollouts/"+row.ID, http.StatusOK, &a)
		if !strings.Contains(a.Why, want) || len(a.Group) != uitest.Size || len(a.Nodes) != 2 || a.Row.ID != row.ID || a.Seed != 1<<62+group {
			t.Errorf("group %d: %+v", group, a)
		}
		if len(a.SameTask) != 2*uitest.Size { // of the three groups that play it, one is of the other environment
			t.Errorf("group %d: %d rollouts of its task", group, len(a.SameTask))
		}
		var tokens tokensAnswer
		p.get("/api/rollouts/"+row.ID+"/tokens?node=1", http.StatusOK, &tokens)
		if len(tokens.IDs) != 3 || tokens.IDs[0] != 20 || tokens.Mask[0] != 0 || tokens.Logprobs[0] != nil || *tokens.Logprobs[2] != -3 {
			t.Errorf("group %d: tokens %+v", group, tokens)
		}
		if trained := group != 4; trained != (len(tokens.Advantages) == 3) || trained && (*tokens.Advantages[1] != float64(row.Rollout)-1.5 || tokens.Advantages[0] != nil || tokens.Trained[2] != 1) {
			t.Errorf("group %d: advantages %v", group, tokens.Advantages)
		}
		p.get("/api/rollouts/"+row.ID+"/tokens?node=1&from=2", http.StatusOK, &tokens)
		if len(tokens.IDs) != 1 || tokens.IDs[0] != 22 || tokens.Total != 3 {
			t.Errorf("tokens from the third on: %+v", tokens)
		}
		p.get("/api/rollouts/"+row.ID+"/tokens?node=2", http.StatusBadRequest, nil)
	}
	for _, path := range []string{"/api/rollouts/traces-0-99999", "/api/rollouts/traces-0", "/api/rollouts/samples-0-1", "/api/rollouts/traces-1-0/images/0/0", "/api/steps/2/tokens?rank=7"} {
		p.get(path, http.StatusNotFound, nil)
	}
	for _, path := range []string{"/api/rollouts?reward=x", "/api/run?points=x", "/api/steps/0", "/api/steps/2/tokens?sample=99", "/api/run?run=../x"} {
		p.get(path, http.StatusBadRequest, nil)
	}
}

// TestStep shows the batch of a step as the trainer got it, from the files and from memory.
func TestStep(t *testing.T) {
	p := newRun(t, true)
	p.write(uitest.Step(1)...)
	uitest.Write(t, p.dir, at, uitest.Step(1)...)
	p.write(uitest.Step(2)...)
	p.serve(nil)
	p.holds(2 * perStep)
	for step := int64(1); step <= 2; step++ {
		var a stepAnswer
		p.get(fmt.Sprintf("/api/steps/%d", step), http.StatusOK, &a)
		if len(a.Batches) != 1 || a.Groups != uitest.Batch || a.Version == nil || a.Version.Version != step || a.Last != 2 || a.Note != "" {
			t.Fatalf("%+v", a)
		}
		b := a.Batches[0]
		if b.Tokens != 6*uitest.Batch*uitest.Size || b.Trained != 2*uitest.Batch*uitest.Size || len(b.Samples) != uitest.Batch*uitest.Size {
			t.Errorf("%+v", b)
		}
		for i, s := range b.Samples {
			row := p.rows(fmt.Sprintf("group=%d&limit=10", s.Group))
			if s.ID == "" || *s.Reward != *rowOf(row, s.Rollout).Reward || *s.Advantage != float64(s.Rollout)-1.5 || *s.OffPolicy != step-1-*s.Version {
				t.Errorf("sample %d: %+v", i, s)
			}
		}
		var tokens tokensAnswer
		p.get(fmt.Sprintf("/api/steps/%d/tokens?rank=0&index=0&sample=6&from=3", step), http.StatusOK, &tokens)
		if tokens.Total != 6 || len(tokens.IDs) != 3 || tokens.IDs[0] != 20 || *tokens.Advantages[1] != 0.5 {
			t.Errorf("%+v", tokens)
		}
	}
	var none stepAnswer
	p.get("/api/steps/77", http.StatusOK, &none)
	if len(none.Batches) != 0 || none.Note == "" {
		t.Errorf("%+v", none)
	}
}

func rowOf(rows []index.Row, rollout int) index.Row {
	for _, r := range rows {
		if r.Rollout == rollout {
			return r
		}
	}
	return index.Row{}
}

// TestSearch finds what was said in memory and in the files, whatever its case.
func TestSearch(t *testing.T) {
	p := newRun(t, true)
	p.write(uitest.Step(1)...)
	uitest.Write(t, p.dir, at, uitest.Step(1)...)
	p.write(uitest.Step(2)...)
	p.serve(nil)
	p.holds(2 * perStep)
	for query, want := range map[string]int{"text=ANSWER+2+of+group+7": 1, "text=answer+2+of+group+3": 1, "text=what+is+word&limit=500": 2 * perStep, "text=no+such+thing": 0, "text=TASK4&limit=500": 2 * uitest.Size, "text=answer&fate=filtered&limit=500": 2 * uitest.Size} {
		var s Search
		p.get("/api/rollouts?"+query, http.StatusOK, &s)
		if len(s.Rows) != want || s.From != "" || s.Searched != s.Files {
			t.Errorf("%s: %d rollouts, want %d; %d of %d files, goes on at %q", query, len(s.Rows), want, s.Searched, s.Files, s.From)
		}
	}
	// Pages: what a search has left out, the next one finds.
	found, from := map[string]bool{}, ""
	for range 20 {
		var s Search
		p.get("/api/rollouts?text=answer&limit=1&from="+from, http.StatusOK, &s)
		for _, r := range s.Rows {
			found[r.ID] = true
		}
		if from = s.From; from == "" {
			break
		}
	}
	if len(found) != 2*perStep || from != "" {
		t.Errorf("the pages have %d rollouts", len(found))
	}
}

// TestCompare reads another run's curves from its files.
func TestCompare(t *testing.T) {
	p := newRun(t, false)
	uitest.Write(t, strings.Replace(p.dir, "/test/", "/other/", 1), at, append(uitest.Step(1), uitest.Step(2)...)...)
	p.serve(nil)
	var run struct{ series.View }
	p.get("/api/run?run=other", http.StatusOK, &run)
	if run.Packed != 2 || run.Newest.Version != 2 || len(run.Curves) == 0 {
		t.Errorf("%+v", run)
	}
	if body := p.get("/api/runs", http.StatusOK, nil); !strings.Contains(body, `"runs":["other","test"]`) {
		t.Error(body)
	}
	p.get("/api/run?run=third", http.StatusNotFound, nil)
}

// TestEvents tells at once how things are, and again when something came.
func TestEvents(t *testing.T) {
	p := newRun(t, true).serve(nil)
	ctx, cancel := context.WithTimeout(t.Context(), testDeadline)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/api/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if kind := r.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Errorf("it is %s", kind)
	}
	lines := bufio.NewScanner(r.Body)
	lines.Buffer(nil, 1<<20)
	next := func(want string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), want) {
				return
			}
		}
		t.Fatalf("no %q: %v", want, lines.Err())
	}
	next("retry: ")
	next(`event: flow`)
	next(`"rollouts":0,"version":-1`)
	p.write(uitest.Step(1)...)
	next(fmt.Sprintf(`"rollouts":%d,"version":1`, perStep))
}

// TestRunbook: each fault of a notice leads to what the runbook says of it.
func TestRunbook(t *testing.T) {
	p := newRun(t, false).serve(nil)
	for _, f := range faults.All {
		r, err := http.Get(p.url + "/runbook/" + f.Name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r.Body)
		r.Body.Close()
		if want := "text/plain; charset=utf-8"; err != nil || r.StatusCode != http.StatusOK || r.Header.Get("Content-Type") != want ||
			!strings.HasPrefix(string(text), f.Name+"\n\n") || !strings.Contains(string(text), "**Do:**") || strings.Contains(string(text), "###") {
			t.Errorf("%s: %d, %s, %v: %s", f.Name, r.StatusCode, r.Header.Get("Content-Type"), err, text)
		}
	}
	for _, name := range []string{"Nothing", "diskfull", "%0A"} {
		if r, err := http.Get(p.url + "/runbook/" + name); err != nil || r.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %v, %v", name, r.Status, err)
		}
	}
}

// TestGuard lets in who may, and tells browsers what the page may do.
func TestGuard(t *testing.T) {
	ask := func(url string, change func(*http.Request)) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(req)
		}
		client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		r, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		return r
	}
	open := newRun(t, false).serve(nil)
	for _, path := range []string{"/", "/rollouts", "/rollout/traces-0-1", "/step/3", "/sql", "/static/js/app.js", "/static/app.css", "/api/run"} {
		r := ask(open.url+path, nil)
		if csp := r.Header.Get("Content-Security-Policy"); r.StatusCode != 200 || !strings.HasPrefix(csp, "default-src 'self'") || strings.Contains(csp, "unsafe") || r.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d, %s", path, r.StatusCode, csp)
		}
	}
	if r := ask(open.url+"/api/run", func(r *http.Request) { r.Host = "evil.example" }); r.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("another name of this machine: %d", r.StatusCode)
	}
	for _, path := range []string{"/nothing", "/api/nothing", "/static/../server.go", "/static/js/"} {
		if r := ask(open.url+path, nil); r.StatusCode == http.StatusOK && path != "/static/js/" {
			t.Errorf("%s is served", path)
		}
	}
	if r, err := http.Post(open.url+"/api/run", "application/json", strings.NewReader("{}")); err != nil || r.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("a POST: %v, %v", r.StatusCode, err)
	}

	shut := newRun(t, false).serve(func(c *Config) { c.Token = pipeline.NewSecret("hunter2") })
	for name, c := range map[string]struct {
		path   string
		change func(*http.Request)
		want   int
	}{
		"nothing":         {"/", nil, 401},
		"a wrong token":   {"/?token=hunter3", nil, 401},
		"the token":       {"/rollouts?token=hunter2&env=catch", nil, 303},
		"a wrong cookie":  {"/", func(r *http.Request) { r.AddCookie(&http.Cookie{Name: cookie, Value: "x"}) }, 401},
		"the cookie":      {"/api/run", func(r *http.Request) { r.AddCookie(&http.Cookie{Name: cookie, Value: "hunter2"}) }, 200},
		"a bearer":        {"/api/run", func(r *http.Request) { r.Header.Set("Authorization", "Bearer hunter2") }, 200},
		"a wrong bearer":  {"/api/run", func(r *http.Request) { r.Header.Set("Authorization", "Bearer hunter") }, 401},
		"files want it":   {"/static/app.css", nil, 401},
		"so do its names": {"/api/run", func(r *http.Request) { r.Host = "evil.example" }, 401},
	} {
		r := ask(shut.url+c.path, c.change)
		if r.StatusCode != c.want {
			t.Errorf("%s: %d, want %d", name, r.StatusCode, c.want)
		}
		if c.want == 303 && (r.Header.Get("Location") != "/rollouts?env=catch" || !strings.Contains(r.Header.Get("Set-Cookie"), "HttpOnly; SameSite=Strict")) {
			t.Errorf("it sends to %s with %s", r.Header.Get("Location"), r.Header.Get("Set-Cookie"))
		}
	}
}

func TestConfig(t *testing.T) {
	for listen, wrong := range map[string]bool{"localhost:0": false, "127.0.0.1:80": false, "[::1]:80": false, ":8080": true, "0.0.0.0:8080": true, "example.org:1": true, "8080": true} {
		c := DefaultConfig()
		c.Listen = listen
		if err := c.Validate(); (err != nil) != wrong {
			t.Errorf("%s: %v", listen, err)
		}
		c.Token = pipeline.NewSecret("x")
		if err := c.Validate(); (err != nil) != (listen == "8080") {
			t.Errorf("%s with a token: %v", listen, err)
		}
	}
}

// TestTakenPort takes another one where it may, and says what to do where it may not.
func TestTakenPort(t *testing.T) {
	first := newRun(t, false).serve(nil)
	cfg := DefaultConfig()
	cfg.Listen = strings.TrimPrefix(first.url, "http://")
	u, err := New(first.rt, cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.Listen(); err == nil || !strings.Contains(err.Error(), "--set ui.listen") {
		t.Errorf("a taken port: %v", err)
	}
	u.options.Yield = true
	url, err := u.Listen()
	if err != nil || url == first.url+"/" {
		t.Errorf("%s, %v", url, err)
	}
	u.listener.Close()
}

// TestFilesAreNotForgotten: what was not read, because the run could not be followed, is read the next time; a file that
// cannot be read is left out, and the page says so.
func TestFilesAreNotForgotten(t *testing.T) {
	p := newRun(t, false)
	uitest.Write(t, p.dir, at, uitest.Step(1)...)
	uitest.Write(t, p.dir, at, uitest.Step(2)...)
	u, err := New(p.rt, DefaultConfig(), Options{Parquet: p.dir})
	if err != nil {
		t.Fatal(err)
	}
	seen, left := positions{}, []part(nil)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := u.readOnce(gone, seen, &left); !errors.Is(err, context.Canceled) || len(left) == 0 || u.model.rollouts.Len() != 0 {
		t.Fatalf("%v, %d files left", err, len(left))
	}
	files, err := sink.ListFiles(p.dir, pipeline.TopicTraces)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(files[0].Path, 100); err != nil {
		t.Fatal(err)
	}
	if err := u.readOnce(t.Context(), seen, &left); err != nil || len(left) != 0 {
		t.Fatalf("%v, %d files left", err, len(left))
	}
	if n := u.model.rollouts.Len(); n <= perStep || n >= 2*perStep || u.model.load.Loaded != u.model.load.Files {
		t.Errorf("%d rollouts, %+v", n, u.model.load)
	}
	u.model.run.Policy(uitest.Version(2, true))
	if list := u.notices(); len(list) != 1 || !strings.Contains(list[0].Text, files[0].Path) {
		t.Errorf("%+v", list)
	}
}

// TestGivesWay: a page that is part of a run ends without it.
func TestGivesWay(t *testing.T) {
	for name, fault := range map[string]func(u *UI){
		"its port is gone": func(u *UI) { u.listener.Close() },
		"it panics": func(u *UI) {
			u.now = func() time.Time { panic("a test") }
			if _, err := u.hub.join(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		for _, yield := range []bool{true, false} {
			cfg := DefaultConfig()
			cfg.Listen = "localhost:0"
			p := newRun(t, false)
			u, err := New(p.rt, cfg, Options{Parquet: p.dir, Yield: yield})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := u.Listen(); err != nil {
				t.Fatal(err)
			}
			fault(u)
			ctx, cancel := context.WithTimeout(t.Context(), testDeadline)
			err = u.Run(ctx)
			if ctx.Err() != nil || (err == nil) != yield {
				t.Errorf("%s: %v", name, err)
			}
			cancel()
		}
	}
}

// TestNotices say what is wrong with a run, and what to do.
func TestNotices(t *testing.T) {
	for want, feed := range map[string]func(m *model){
		"All rollouts of a group had the same reward": func(m *model) {
			for range 60 {
				m.recent.fates = last(m.recent.fates, "filtered:zero_advantage")
			}
		},
		"40 of the newest 60 groups went stale": func(m *model) {
			for i := range 60 {
				m.recent.fates = last(m.recent.fates, []string{schemas.FateStale, schemas.FateStale, schemas.FatePacked}[i%3])
			}
		},
		"30 of the newest 60 rollouts failed; 30 times: model: gone": func(m *model) {
			for i := range 60 {
				m.recent.errors = last(m.recent.errors, []string{"", "model: gone"}[i%2])
			}
		},
		"20 of the newest 60 rollouts failed; 20 times: model: gone": func(m *model) { // those nobody waited for are no failures
			for i := range 60 {
				m.recent.errors = last(m.recent.errors, []string{"", "model: gone", "cancelled: the group has ended"}[i%3])
			}
		},
		"3 records were refused":                func(m *model) { m.dlq.counted(3, "scorer: no", 3) },
		"The gradient of step 7 was not finite": func(m *model) { m.small(&schemas.PolicyVersion{Version: 7, Step: 7, Skipped: true}) },
		"cannot be followed: gone":              func(m *model) { m.load.Error = "gone" },
		"No environment server has written for 60 s, and 1 tasks are open": func(m *model) {
			m.load.Live = true
			m.meter.Record(pipeline.Record{Ref: pipeline.Ref{Topic: "tasks.catch", Offset: 5}, Value: &schemas.Task{}}, at)
			m.meter.State(&schemas.StageState{Stage: "envserver", Topic: "tasks.catch", Instance: "one", LowOffset: 5, NextOffset: 5}, at.Add(-60e9))
		},
		"No group has ended for 10m0s": func(m *model) { m.load.Live, m.recent.outcome = true, at.Add(-600e9) },
	} {
		m := newModel(DefaultConfig(), Options{Stages: drawn}, at)
		if list := m.notices(m.meter.View(at), nil, at); len(list) != 0 {
			t.Fatalf("a run of which nothing is known: %v", list)
		}
		feed(m)
		list := m.notices(m.meter.View(at), nil, at)
		if len(list) != 1 || !strings.Contains(list[0].Text, want) {
			t.Errorf("want %q: %+v", want, list)
		}
	}
}

// TestTail forgets the oldest first, and counts its bytes.
func TestTail(t *testing.T) {
	tail := &tail{limit: 20_000}
	for i := range int64(100) {
		tail.trace(index.ID{Offset: i}, uitest.Trace(i, 0, 0))
		tail.trace(index.ID{Offset: i}, uitest.Trace(i, 0, 0))
		tail.batch(uitest.MicroBatch(i, uitest.Samples(i, 0)))
		tail.group(uitest.Samples(i, 0))
	}
	if _, ok := find[*schemas.Trace](tail, index.ID{Offset: 99}); !ok {
		t.Error("the newest is gone")
	}
	if _, ok := find[*schemas.Trace](tail, index.ID{Offset: 10}); ok {
		t.Error("an old one is kept")
	}
	sum := int64(0)
	for _, k := range tail.kept {
		sum += k.bytes
	}
	if sum != tail.bytes || sum > tail.limit || len(tail.order) != len(tail.kept) {
		t.Errorf("%d bytes, %d counted, %d keys of %d", sum, tail.bytes, len(tail.order), len(tail.kept))
	}
}
