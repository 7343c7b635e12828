package stages

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/prl-project/prl/stages/board"
	"github.com/prl-project/prl/stages/export"
	"github.com/prl-project/prl/stages/trainer"
)

// board makes the stage that writes event files.
func (a *App) board() (*board.Board, error) {
	own, err := a.Config.text()
	if err != nil {
		return nil, err
	}
	dir := a.Config.Board.Dir
	if dir == "" {
		dir = filepath.Join(a.Config.RunDir(), board.Name)
	}
	return board.New(a.Runtime, board.Options{Dir: dir, Settings: func(shadow string) []byte {
		if shadow == "" {
			return own
		}
		text, err := os.ReadFile(filepath.Join(a.Config.shadowDir(shadow), recordedName))
		if err != nil {
			return nil // it runs elsewhere
		}
		return text
	}}), nil
}

// BoardFiles writes the event files of what the sink's files hold.
func (a *App) BoardFiles(ctx context.Context, out io.Writer) error {
	b, err := a.board()
	if err != nil {
		return err
	}
	n, err := b.WriteHistory(ctx, a.Config.Sink.Dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "Run %s does not run here at the moment: of what its files hold %d points were written that were not there.\nLook at them:  tensorboard --logdir %s\n",
		a.Config.Run.Name, n, a.Config.Dir)
	return nil
}

// shadow makes the shadow trainer.
func (a *App) shadow() (*trainer.ShadowTrainer, error) {
	settings, err := a.Config.text()
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(a.Config.shadowDir(a.Config.Shadow.Name))
	if err != nil {
		return nil, fmt.Errorf("the folder of a shadow trainer: %w", err)
	}
	return trainer.NewShadow(a.Runtime, a.Config.Trainer, a.Config.Model, a.Config.Shadow, dir, settings)
}

// exporter makes the exporter of conversations.
func (a *App) exporter() (*export.Export, error) {
	dir, err := filepath.Abs(a.Config.RunDir())
	if err != nil {
		return nil, fmt.Errorf("the run's folder: %w", err)
	}
	return export.New(a.Runtime, a.Config.Export, dir, a.Config.Sink.Dir, a.Config.Model.Renderer)
}

// ExportFiles exports what the run's files hold, and says on out what that is.
func (a *App) ExportFiles(ctx context.Context, out, bar io.Writer) error {
	e, err := a.exporter()
	if err != nil {
		return err
	}
	show, end := showing(bar)
	e.Show(show)
	summary, err := e.Files(ctx)
	end()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%sThe conversations:  %s\n", summary, e.Out())
	return nil
}

// shadowDir is the folder of a shadow trainer of the run.
func (c *Config) shadowDir(name string) string { return filepath.Join(c.RunDir(), "shadow", name) }
