package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/prl-project/prl/pipeline/faults"
	"github.com/prl-project/prl/pipeline/pipelinetest/need"
)

// seen looks at the page in a Chromium: it names the fault and says what to do, as an alert to those who hear pages.
func (w *world) seen(t *testing.T, f faults.Fault) {
	t.Helper()
	profile, err := os.MkdirTemp("", "prl-fault-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(profile) }) // its processes may still be writing while they end
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(need.Chromium(t)), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.UserDataDir(profile), chromedp.WSURLReadTimeout(faultDeadline))
	ctx, cancel := context.WithTimeout(t.Context(), faultDeadline)
	defer cancel()
	ctx, stop := chromedp.NewExecAllocator(ctx, options...)
	defer stop()
	ctx, closePage := chromedp.NewContext(ctx)
	defer closePage()
	var text string
	if err := chromedp.Run(ctx, chromedp.Navigate(w.page+"/"), chromedp.Text(`p.notice[role="alert"]`, &text, chromedp.NodeVisible)); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(text, f.Name+" "+f.Says) || !strings.Contains(text, f.Do) {
		t.Errorf("the page shows %q", text)
	}
}
