package ui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/ui/uitest"
)

// TestPages opens every view in Chromium, follows the run live, walks by keyboard, and finds nothing to complain of.
func TestPages(t *testing.T) {
	b := openBrowser(t, 1300, 900)
	p := newRun(t, true)
	for step := range int64(5) {
		p.write(uitest.Step(step + 1)...)
	}
	p.write(uitest.Record{Topic: pipeline.TopicEvals, Value: uitest.Eval("catch", 0)}, uitest.Record{Topic: pipeline.TopicEvals, Value: uitest.Eval("catch", 4)})
	uitest.Write(t, strings.Replace(p.dir, "/test/", "/other/", 1), at, append(uitest.Step(1), uitest.Step(2)...)...)
	p.serve(nil)
	p.holds(5 * perStep)

	b.open(p.url + "/")
	b.until(`document.querySelectorAll('.chart canvas').length >= 8`)
	b.until(`document.querySelector('.tile .value').textContent.startsWith('5')`)
	b.until(`document.querySelectorAll('.flow .node').length === 7`)
	if name := js[string](b, `document.getElementById('run-name').textContent`); name != "test" {
		t.Errorf("the run is called %q", name)
	}
	// What comes is shown without a reload.
	p.write(uitest.Step(6)...)
	b.until(`document.querySelector('.tile .value').textContent.startsWith('6')`)
	b.until(`document.getElementById('live').textContent === 'live'`)
	b.do(chromedp.SetValue("#compare", "other"), chromedp.Evaluate(`document.getElementById('compare').dispatchEvent(new Event('change'))`, nil))
	b.until(`document.querySelector('.legend i.dashed') !== null && location.search.includes('compare=other')`)

	b.open(p.url + "/rollouts")
	b.until(`document.querySelectorAll('tr[data-href]').length === 50`)
	b.do(chromedp.SetValue("#f-fate", "filtered"), chromedp.Evaluate(`document.getElementById('f-fate').dispatchEvent(new Event('change'))`, nil))
	b.until(`location.search === '?fate=filtered' && document.querySelectorAll('tr[data-href]').length === 24`)
	p.write(uitest.Step(7)...)
	b.until(`document.querySelector('.fresh button') !== null`)
	b.do(chromedp.KeyEvent("j"), chromedp.KeyEvent("j"), chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent("k"))
	if at := js[int](b, `[...document.querySelectorAll('tr[data-href]')].indexOf(document.activeElement)`); at != 1 {
		t.Errorf("the keyboard is in row %d", at)
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until(`location.pathname.startsWith('/rollout/') && document.body.dataset.ready === location.pathname`)
	b.until(`document.querySelectorAll('.message').length === 2`)
	if why := js[string](b, `document.querySelector('.became').textContent`); !strings.Contains(why, "zero_advantage") {
		t.Errorf("why: %s", why)
	}
	b.do(chromedp.SetValue("#scale", "logprobs"), chromedp.Evaluate(`document.getElementById('scale').dispatchEvent(new Event('change'))`, nil))
	b.until(`document.querySelectorAll('.tok').length === 6`)
	if title := js[string](b, `document.querySelectorAll('.tok')[5].title`); !strings.Contains(title, "log-probability -3") || !strings.Contains(title, "sampled") {
		t.Errorf("a token says %q", title)
	}
	b.do(chromedp.Click(`.controls button`))
	b.until(`document.querySelectorAll('.talk').length === 4 && location.search.includes('beside=')`)
	// Both within the page: they must not lie far apart, and a busy browser takes its time for each event of the protocol.
	b.do(chromedp.Evaluate(`for (const key of 'gs') document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))`, nil))
	b.until(`location.pathname === '/step/7' && document.querySelectorAll('.micro-row').length === 1`)
	b.do(chromedp.KeyEvent("["))
	b.until(`location.pathname === '/step/6' && document.querySelectorAll('.micro-row i').length === 16`)
	b.do(chromedp.Click(`.micro-row i:nth-child(3)`))
	b.until(`document.querySelectorAll('.picked .tok').length === 6`)
	b.do(chromedp.Click(`nav a[data-view="sql"]`))
	b.until(`document.querySelectorAll('.questions button').length > 4`)
	b.do(chromedp.Evaluate(`history.back()`, nil))
	b.until(`location.pathname === '/step/6' && document.querySelectorAll('.picked .tok').length === 6`)
	b.open(p.url + "/sql?question=never_solved")
	b.until(`document.getElementById('query').value.includes('HAVING')`)
	b.open(p.url + "/rollout/traces-0-999999")
	if said := js[string](b, `document.querySelector('.problem').textContent`); !strings.Contains(said, "sink.max_age") {
		t.Errorf("a rollout that is not there: %q", said)
	}
	for _, s := range b.said() {
		if !strings.Contains(s, "404 (Not Found)") {
			t.Errorf("the page complained: %s", s)
		}
	}
}

// TestInvariant_TextStaysText: whatever a model or an environment wrote is shown as text, and what cannot be seen or turns
// the text around is shown by its number.
func TestInvariant_TextStaysText(t *testing.T) {
	b := openBrowser(t, 1300, 900)
	p := newRun(t, true)
	trace := hostile(0)
	p.write(uitest.Record{Topic: pipeline.TopicTraces, Value: trace}, uitest.Record{Topic: pipeline.TopicTraces, Value: uitest.Trace(0, 1, 0)})
	p.write(uitest.Record{Topic: pipeline.TopicOutcomes, Value: &schemas.GroupOutcome{Env: "catch", GroupID: 0, Fate: uitest.Hostile, Filter: uitest.Hostile, Rollouts: []schemas.RolloutFate{{Fate: uitest.Hostile}}}})
	p.write(uitest.Record{Topic: pipeline.TopicMetrics, Value: &schemas.MetricPoint{Name: uitest.Hostile, Stage: uitest.Hostile, Step: new(int64(1)), Labels: map[string]string{uitest.Hostile: uitest.Hostile}}})
	p.write(uitest.Record{Topic: pipeline.TopicEvals, Value: &schemas.EvalResult{Eval: uitest.Hostile, Env: uitest.Hostile, Baselines: map[string]float64{uitest.Hostile: 1}}})
	p.serve(nil)
	p.holds(2)
	id := ""
	for _, row := range p.rows("eval=any") {
		if row.Rollout == 0 {
			id = row.ID
		}
	}
	for _, path := range []string{"/", "/rollouts?eval=any", "/rollouts?text=pwned", "/rollouts?error=" + "%3Cscript%3E", "/rollout/" + id, "/rollout/" + id + "?tokens=logprobs", "/step/1"} {
		b.open(p.url + path)
		b.do(chromedp.Evaluate(`document.querySelectorAll('details').forEach(d => d.open = true)`, nil))
		if path == "/rollout/"+id {
			b.until(`document.querySelectorAll('.message').length === 3`)
			shown := js[string](b, `document.querySelector('.message .said').textContent`)
			want := `<script>window.pwned = 1</script><img src=x onerror="window.pwned = 1">‹202E›gnp.exe‹202C›‹0000›‹001B›[31m‹200B›{{7*7}}`
			if shown != want {
				t.Errorf("the text is shown as %q\nwant %q", shown, want)
			}
		}
		if js[bool](b, `window.pwned !== undefined || document.querySelector('main script, main iframe, img[onerror]') !== null`) {
			t.Fatalf("%s: the text became markup", path)
		}
	}
	for _, s := range b.said() {
		t.Errorf("the page complained: %s", s)
	}
	// A script that got in all the same would not run.
	b.open(p.url + "/")
	refused := js[string](b, `(() => { try { document.body.innerHTML = '<b>x</b>'; return 'taken'; } catch (e) { return e.name; } })()`)
	if refused != "TypeError" {
		t.Errorf("markup by script is %s", refused)
	}
	js[any](b, `(() => { const s = document.createElement('script'); try { s.textContent = 'window.pwned = 2'; } catch (e) {} document.head.append(s); return null; })()`)
	if js[bool](b, `window.pwned !== undefined`) {
		t.Error("an inline script ran")
	}
}

// TestPhone: no view is wider than a phone.
func TestPhone(t *testing.T) {
	b := openBrowser(t, 390, 844)
	p := newRun(t, false)
	for step := range int64(4) {
		uitest.Write(t, p.dir, at, uitest.Step(step+1)...)
	}
	p.serve(nil)
	p.holds(4 * perStep)
	for _, path := range []string{"/", "/rollouts", "/rollout/" + p.rows("limit=1")[0].ID, "/step/3", "/sql"} {
		b.open(p.url + path)
		if n := js[int](b, `document.documentElement.scrollWidth`); n > 390 {
			wide := js[string](b, `[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > 391).map(e => e.tagName + '.' + e.className).slice(0, 5).join(' ')`)
			t.Errorf("%s is %d wide: %s", path, n, wide)
		}
	}
	b.quiet()
}

// TestScreenshots makes the pictures of the README: PRL_UI_SCREENSHOTS is the folder, `make screenshots` calls it.
// PRL_UI_URL is a page that is served by a run which goes on, PRL_UI_RUN the folder of a run; without them a made-up one is
// shown.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("PRL_UI_SCREENSHOTS")
	if dir == "" {
		t.Skip("make screenshots")
	}
	p := newRun(t, false)
	if url := os.Getenv("PRL_UI_URL"); url != "" {
		p.url = strings.TrimSuffix(url, "/")
	} else if run := os.Getenv("PRL_UI_RUN"); run != "" {
		p.dir, p.rt.Run.Name = filepath.Join(run, "parquet"), filepath.Base(run)
		blobs, err := pipeline.OpenBlobs(filepath.Join(run, "blobs"))
		if err != nil {
			t.Fatal(err)
		}
		p.rt.Blobs = blobs
		t.Cleanup(func() { blobs.Close() })
	} else {
		for step := range int64(40) {
			uitest.Write(t, p.dir, at, uitest.Step(step+1)...)
		}
	}
	if p.url == "" {
		p.serve(nil)
	}
	p.until("/api/run?points=2", func(body string) bool {
		var run runAnswer
		return json.Unmarshal([]byte(body), &run) == nil && run.Packed > 0 && run.Loading.Loaded == run.Loading.Files
	})
	var run struct {
		Packed int64 `json:"packed_step"`
	}
	p.get("/api/run", http.StatusOK, &run)
	step := run.Packed * 3 / 4
	id := p.rows(fmt.Sprintf("sort=-tokens&limit=1&step=%d&reward=..1.9", step))[0].ID
	for _, shot := range []struct {
		name, path string
		width      int
		height     int
		dark       bool
	}{
		{"run", "/", 1280, 900, false}, {"run-dark", "/", 1280, 900, true}, {"run-phone", "/", 390, 844, false},
		{"rollouts", "/rollouts", 1280, 720, false}, {"rollout", "/rollout/" + id + "?tokens=advantages", 1280, 800, false},
		{"step", fmt.Sprintf("/step/%d?sample=0.0.2", step), 1280, 800, false}, {"sql", "/sql", 1280, 640, false},
	} {
		b := openBrowser(t, shot.width, shot.height)
		b.dark(shot.dark)
		b.open(p.url + shot.path)
		if shot.path == "/" {
			b.until(`document.querySelectorAll('.chart canvas').length >= 8 && document.querySelectorAll('.flow .node').length > 0`)
		}
		if strings.Contains(shot.path, "tokens=") || strings.Contains(shot.path, "sample=") {
			b.until(`document.querySelectorAll('.tok').length > 0 && ![...document.querySelectorAll('.empty')].some(e => e.textContent === '…')`)
		}
		var png []byte
		b.do(chromedp.CaptureScreenshot(&png))
		b.quiet()
		if err := os.WriteFile(filepath.Join(dir, shot.name+".png"), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
