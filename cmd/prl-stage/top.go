package main

import (
	"context"
	"fmt"
	"os"

	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/broker"
	"github.com/prl-project/prl/stages/top"
)

// topFlags are those of --stage top.
type topFlags struct {
	Once bool `help:"With --stage top: one table, and end, as it does anyway where the output is no terminal." group:"The run in a terminal (--stage top):" for:"top"`
}

// checkTop refuses flags of --stage top where another stage runs.
func (f flags) checkTop() error {
	if f.Top.Once && f.Stage != top.Name {
		return fmt.Errorf("--once is for --stage top")
	}
	return nil
}

// topRun shows a run in the terminal. The one with an embedded broker goes on in another process of this machine.
func topRun(ctx context.Context, f flags, cfg *stages.Config) error {
	brokers := cfg.Brokers
	if brokers[0] == stages.Embedded {
		addr, err := broker.Running(brokerDir(cfg))
		if err != nil {
			return err
		}
		if addr == "" {
			return fmt.Errorf("run %s does not run here at the moment: prl-stage --stage ui --run %s shows what its files hold, --brokers one that runs elsewhere", cfg.Run.Name, cfg.Run.Name)
		}
		brokers = []string{addr}
	}
	return stages.Top(ctx, cfg, brokers, f.Config != "", top.Options{JSON: f.Try.JSON, Once: f.Top.Once, Out: os.Stdout})
}
