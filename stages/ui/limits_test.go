package ui

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/ui/uitest"
)

// TestConnectionsAreBounded: one more than there may be gets an answer at once, and has its place when another one goes.
func TestConnectionsAreBounded(t *testing.T) {
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(bound(l, 2)) }()
	t.Cleanup(func() {
		_ = srv.Close()
		<-served
	})
	ask := func() (net.Conn, *http.Response) {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(testDeadline))
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") // it may be closed already
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatalf("an answer that is cut off: %v", err)
		}
		if got := string(body); r.StatusCode == http.StatusOK != (got == "here") || r.StatusCode != http.StatusOK && !strings.Contains(got, "too many connections") {
			t.Errorf("%d %s", r.StatusCode, got)
		}
		return c, r
	}
	first, r := ask()
	if _, r2 := ask(); r.StatusCode != http.StatusOK || r2.StatusCode != http.StatusOK {
		t.Fatal("the first two are refused")
	}
	if _, r := ask(); r.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a third one: %d", r.StatusCode)
	}
	_ = first.Close()
	for deadline := time.Now().Add(testDeadline); ; time.Sleep(10 * time.Millisecond) {
		if _, r := ask(); r.StatusCode == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nobody gets the place of one that is gone")
		}
	}
}

// TestServerLimits: whoever sends no request, or half of one, is cut off; a stream is not.
func TestServerLimits(t *testing.T) {
	p := newRun(t, false).serve(nil)
	srv := p.ui.server(t.Context())
	if srv.ReadHeaderTimeout == 0 || srv.ReadTimeout == 0 || srv.WriteTimeout == 0 || srv.IdleTimeout == 0 || srv.MaxHeaderBytes == 0 {
		t.Errorf("%+v", srv)
	}
	srv.ReadTimeout, srv.ReadHeaderTimeout = 300*time.Millisecond, 200*time.Millisecond
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		_ = srv.Close()
		<-served
	})
	for _, request := range []string{"", "GET / HTTP/1.1\r\nHost: localh", "POST /api/sql HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"} {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(testDeadline))
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(c); err != nil { // it ends when the server closes it
			t.Errorf("%q: %v", request, err)
		}
		_ = c.Close()
	}
	r, err := http.Get("http://" + l.Addr().String() + "/api/events")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	events := bufio.NewScanner(r.Body)
	for n := 0; n < 3 && events.Scan(); { // which takes two seconds
		if events.Text() == "event: flow" {
			if n++; n == 3 {
				return
			}
		}
	}
	t.Errorf("the stream was cut off: %v", events.Err())
}

// TestTabs: eight tabs of one browser, which has six connections, share one stream; another one takes it over.
func TestTabs(t *testing.T) {
	p := newRun(t, true)
	p.write(uitest.Step(1)...)
	p.serve(nil)
	p.decided(1)
	b := openBrowser(t, 900, 700)
	b.open(p.url + "/")
	tabs := []*browser{b}
	var closes []context.CancelFunc
	for range 7 {
		ctx, cancel := chromedp.NewContext(b.ctx)
		t.Cleanup(cancel)
		tab := &browser{t: t, ctx: ctx}
		tab.open(p.url + "/rollouts")
		tabs, closes = append(tabs, tab), append(closes, cancel)
	}
	const live = `document.getElementById('live').dataset.state !== 'off'`
	for _, tab := range tabs {
		tab.until(live)
	}
	if n := p.ui.hub.count(); n != 1 {
		t.Errorf("%d streams", n)
	}
	b.open(p.url + "/rollouts") // its stream ends with the page that had it
	p.write(uitest.Step(2)...)
	p.decided(2)
	for _, tab := range tabs {
		tab.do(chromedp.Evaluate(`import('/static/js/api.js').then(m => { window.told = m.latest })`, nil))
		tab.until(`window.told?.change?.step === 2 && ` + live)
	}
	for _, cancel := range closes[:3] {
		cancel()
	}
	p.write(uitest.Step(3)...)
	p.decided(3)
	for _, tab := range append(tabs[4:], tabs[0]) {
		tab.until(`window.told.change.step === 3 && ` + live)
	}
	if n := p.ui.hub.count(); n != 1 {
		t.Errorf("%d streams at the end", n)
	}
}

// TestPolls: where the stream is refused the page asks, and stays live.
func TestPolls(t *testing.T) {
	p := newRun(t, true)
	p.write(uitest.Step(1)...)
	p.serve(nil)
	p.decided(1)
	p.ui.hub.mu.Lock()
	p.ui.hub.most = 0
	p.ui.hub.mu.Unlock()
	p.get("/api/events", http.StatusServiceUnavailable, nil)
	b := openBrowser(t, 900, 700)
	b.open(p.url + "/")
	b.until(`document.getElementById('live').dataset.state === 'on'`)
	p.write(uitest.Step(2)...)
	p.decided(2)
	b.do(chromedp.Evaluate(`import('/static/js/api.js').then(m => { window.told = m.latest })`, nil))
	b.until(`window.told?.change?.step === 2`)
}

// TestAgentsAndPictures: each agent's conversation can be chosen, a picture is shown where its bytes are one, and text otherwise.
func TestAgentsAndPictures(t *testing.T) {
	png := []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89\x00\x00\x00\rIDATx\x9cc\xf8\xcf\xc0\xf0\x1f\x00\x05\x00\x01\xff\x89\x99=\x1d\x00\x00\x00\x00IEND\xaeB`\x82")
	p := newRun(t, true)
	tr := uitest.Trace(0, 0, 0)
	tr.Nodes[0].Images = []schemas.Image{
		{Mime: "image/png", Data: png, Alt: "a point"}, {Mime: "image/png", Data: []byte("<svg onload='window.pwned=1'>"), Alt: "no picture"}, {Mime: "image/svg+xml", Data: []byte("<svg onload='window.pwned=1'>"), Alt: uitest.Hostile},
	}
	for i := range tr.Nodes[0].Images {
		tr.Nodes[0].Images[i].SHA256 = fmt.Sprintf("%x", sha256.Sum256(tr.Nodes[0].Images[i].Data))
	}
	tr.Nodes[1].Agent = "alice"
	tr.Nodes = append(tr.Nodes, schemas.Node{Parent: 0, Role: "assistant", Agent: "bob", Content: "what bob says"})
	p.write(uitest.Record{Topic: "traces", Value: tr})
	p.serve(nil)
	p.holds(1)
	id := p.rows("limit=1")[0].ID
	p.get("/api/rollouts/"+id+"/images/0/0", http.StatusOK, nil)
	for _, i := range []string{"1", "2", "3"} {
		p.get("/api/rollouts/"+id+"/images/0/"+i, http.StatusNotFound, nil)
	}
	b := openBrowser(t, 900, 700)
	b.open(p.url + "/rollout/" + id)
	b.until(`document.querySelectorAll('button.agent').length === 2`)
	if !js[bool](b, `document.querySelector('.talk').textContent.includes('what bob says') && !document.querySelector('.talk').textContent.includes('answer 0')`) {
		t.Error("the last agent's conversation is not shown")
	}
	b.do(chromedp.Click(`button.agent[aria-pressed="false"]`))
	b.until(`document.querySelector('.talk').textContent.includes('answer 0') && !document.querySelector('.talk').textContent.includes('what bob says')`)
	b.until(`[...document.querySelectorAll('img')].length === 1 && document.querySelector('img').naturalWidth === 1`)
	if !js[bool](b, `window.pwned === undefined && document.querySelector('.talk').textContent.includes('A picture that cannot be shown: no picture')`) {
		t.Error("what is no picture is not shown as text")
	}
	b.quiet()
}
