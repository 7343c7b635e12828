package ui

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
)

// browserDeadline bounds what a test waits for in a browser, which shares the machine with others.
const browserDeadline = 5 * time.Minute

// browser is a headless Chromium of a test, with whatever its pages complained of.
type browser struct {
	t   testing.TB
	ctx context.Context

	mu         sync.Mutex
	complaints []string
}

// openBrowser starts Chromium with a window of a size.
func openBrowser(t testing.TB, width, height int) *browser {
	t.Helper()
	profile, err := os.MkdirTemp("", "prl-ui-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(profile) }) // its processes may still be writing while they end
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(need.Chromium(t)), chromedp.UserDataDir(profile), chromedp.WindowSize(width, height), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.NoFirstRun, chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("hide-scrollbars", true), chromedp.WSURLReadTimeout(browserDeadline))
	ctx, cancel := context.WithTimeout(t.Context(), browserDeadline)
	t.Cleanup(cancel)
	ctx, stop := chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(stop)
	b := &browser{t: t}
	ctx, close := chromedp.NewContext(ctx)
	t.Cleanup(close)
	b.ctx = ctx
	chromedp.ListenTarget(ctx, func(ev any) {
		switch e := ev.(type) {
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning || e.Type == runtime.APITypeAssert {
				var parts []string
				for _, a := range e.Args {
					parts = append(parts, string(a.Value)+a.Description)
				}
				b.complain("console: " + strings.Join(parts, " "))
			}
		case *runtime.EventExceptionThrown:
			b.complain("exception: " + e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			if e.Entry.Level == log.LevelError || e.Entry.Level == log.LevelWarning {
				b.complain(fmt.Sprintf("%s: %s (%s)", e.Entry.Source, e.Entry.Text, e.Entry.URL))
			}
		}
	})
	b.do(log.Enable(), emulation.SetDeviceMetricsOverride(int64(width), int64(height), 1, width < 500))
	return b
}

func (b *browser) complain(s string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.complaints = append(b.complaints, s)
}

func (b *browser) do(actions ...chromedp.Action) {
	b.t.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.t.Fatalf("%v\nthe page said: %q", err, b.said())
	}
}

func (b *browser) said() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string{}, b.complaints...)
}

// quiet fails the test where a page complained of something.
func (b *browser) quiet() {
	b.t.Helper()
	if said := b.said(); len(said) > 0 {
		b.t.Errorf("the page complained: %q", said)
	}
}

// open goes to an address and waits until its view is there.
func (b *browser) open(url string) {
	b.t.Helper()
	b.do(chromedp.Navigate(url), chromedp.WaitReady("body[data-ready]"))
}

// js evaluates an expression.
func js[T any](b *browser, expression string) (v T) {
	b.t.Helper()
	b.do(chromedp.Evaluate(expression, &v))
	return v
}

// until waits for an expression to be true.
func (b *browser) until(expression string) {
	b.t.Helper()
	if err := chromedp.Run(b.ctx, chromedp.Poll(expression, nil, chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(browserDeadline))); err != nil {
		b.t.Fatalf("%s: %v\nthe page said: %q", expression, err, b.said())
	}
}

// dark sets what the system prefers.
func (b *browser) dark(on bool) {
	b.t.Helper()
	value := "light"
	if on {
		value = "dark"
	}
	b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}}))
}
