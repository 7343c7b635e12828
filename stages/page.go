package stages

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	"github.com/prl-project/prl/stages/ui"
	"github.com/prl-project/prl/stages/ui/flow"
)

// picture is the flow as the page draws it: without the page itself and what else only reads the run for somebody.
func picture() []flow.Stage {
	var list []flow.Stage
	for _, s := range Flow {
		if !s.Aside {
			list = append(list, flow.Stage{Name: s.Name, Does: s.Does, Reads: s.Reads, Tables: s.Tables, Writes: s.Writes})
		}
	}
	return list
}

// page makes the page, unless it listens already.
func (a *App) page(o ui.Options) (*ui.UI, error) {
	if a.shown != nil {
		return a.shown, nil
	}
	runs, err := filepath.Abs(a.Config.Dir)
	if err != nil {
		return nil, fmt.Errorf("the folder of the runs: %w", err)
	}
	o.Stages, o.Envs, o.Parquet, o.Runs, o.MaxSteps = a.picture, a.envs(), a.Config.Sink.Dir, runs, a.Config.Run.MaxSteps
	return ui.New(a.Runtime.For(ui.Name), a.Config.UI, o)
}

// openPage opens the page of a run that is started here, and says where it is. The run goes on without it where that fails.
func (a *App) openPage(out io.Writer) error {
	if !a.Config.UI.Enabled {
		return nil
	}
	page, err := a.page(ui.Options{Live: true, Yield: true})
	if err != nil {
		return err
	}
	url, err := page.Listen()
	if err != nil {
		a.Config.UI.Enabled = false
		fmt.Fprintf(out, "The run goes on without a page: %v\n", err)
		return nil
	}
	fmt.Fprintf(out, "Look at it:  %s\n", url)
	a.shown = page
	return nil
}

// ShowRun serves the page of a run until ctx ends: live where its brokers answer, else what its files hold.
func (a *App) ShowRun(ctx context.Context, live bool, out io.Writer) error {
	page, err := a.page(ui.Options{Live: live})
	if err != nil {
		return err
	}
	url, err := page.Listen()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "Run %s:  %s\n", a.Config.Run.Name, url)
	if !live {
		fmt.Fprintln(out, "It does not run here at the moment: the page shows what its files hold.")
	}
	return page.Run(ctx)
}
