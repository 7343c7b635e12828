// Command chaos tries to break a run of prl and says what came of it; `make chaos` starts it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/prl-project/prl/pipeline/chaos"
)

type flags struct {
	Minutes float64       `default:"20" help:"How long the run has faults."`
	Seed    uint64        `default:"1" help:"Seed of the faults."`
	Nodes   int           `default:"3" help:"Nodes of Apache Kafka: 1 or 3; 0 for the embedded broker, which is not killed."`
	Every   time.Duration `default:"2500ms" help:"Mean time between two faults."`
	Calm    time.Duration `default:"60s" help:"How long the run is measured without faults first."`
	Probes  int           `default:"3" help:"How often each stage is killed alone."`
	Again   bool          `help:"Only audit what is in --dir once more."`
	Dir     string        `help:"Folder of data and logs; default: a new one, deleted if nothing was found."`
}

func main() {
	var f flags
	kong.Parse(&f, kong.Name("chaos"), kong.Description("Breaks a run of prl in every way its design allows for, and audits it."))
	found, err := run(f)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
	}
	if err != nil || found {
		os.Exit(1)
	}
}

func run(f flags) (found bool, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	temporary := f.Dir == ""
	if temporary {
		if f.Dir, err = os.MkdirTemp("", "prl-chaos-"); err != nil {
			return false, fmt.Errorf("make a folder: %w", err)
		}
	}
	cfg := chaos.Config{
		Dir: f.Dir, Seed: f.Seed, Nodes: f.Nodes, Calm: f.Calm, Chaos: time.Duration(f.Minutes * float64(time.Minute)), Every: f.Every,
		Probes: f.Probes, Out: os.Stdout,
	}
	work := chaos.Run
	if f.Again {
		work = chaos.Audit
	}
	report, err := work(ctx, cfg)
	fmt.Printf("\n%v\n", report)
	if found = report.Violated() > 0; found || err != nil {
		fmt.Printf("%d violations. Logs and data are in %s; the same faults again:\n  make chaos MINUTES=%g SEED=%d NODES=%d\n", report.Violated(), f.Dir, f.Minutes, f.Seed, f.Nodes)
		return found, err
	}
	fmt.Println("0 violations")
	if temporary {
		return false, os.RemoveAll(f.Dir)
	}
	return false, nil
}
