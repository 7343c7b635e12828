// Command load says what a rollout costs in an environment server: it lets one process of this project's and, where there is one,
// one of verifiers' play the same conversations against the same slow model, and prints what each took.
//
// Each server has a process to itself, and so has the model: it answers after a while, over as many connections as it is asked on, and
// counts how many rollouts wait for it at once. Of this project's server it answers none before all that there are to be at once
// wait. The rollouts are of alphabet-sort, with three turns in whole sentences. A server in Python has the texts of the same tasks and takes them through the client of its own package.
//
// `make bench-rollouts` starts it. It needs Linux, whose /proc says what a process took.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"
)

type flags struct {
	Binary      string        `default:"bin/prl-stage" help:"The server to measure, as make build makes it."`
	Concurrency int           `default:"10000" help:"Rollouts at once."`
	Rollouts    int           `help:"Rollouts in all; default: as many as at once."`
	Takes       time.Duration `default:"20s" help:"What the model takes for an answer; as long as all rollouts need to begin, where that is longer."`
	Memory      string        `default:"800MiB" help:"GOMEMLIMIT of this project's server: what the garbage collector aims at."`
	Python      string        `help:"Python of an environment with verifiers in it (make verifiers); empty for none." placeholder:"FILE"`
	PythonOnce  int           `default:"200" help:"Rollouts at once of the server in Python; it may not get that far."`
	Profiles    string        `help:"Folder for profiles of the first server: of its first 20 s on the CPU, and of heap and goroutines while it is full." placeholder:"DIR"`
	Model       bool          `hidden:"" help:"Be the model."`
}

func main() {
	var f flags
	kong.Parse(&f, kong.Name("load"), kong.Description("What a rollout costs in an environment server."))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := error(nil)
	if f.Model {
		err = serveModel(ctx, f.Takes, f.Concurrency)
	} else {
		err = run(ctx, f)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

// A result is what one server took for its rollouts.
type result struct {
	Server   string
	Rollouts int // that ended with a reward
	Failed   int
	AtOnce   int // that waited for the model at the fullest moment
	Took     time.Duration
	Usage    usage
	Live     int64 // bytes in use when all waited, behind a garbage collection; 0 where nobody knows
}

// A player starts a server, lets it play as many rollouts as the flags say against a model, and says what it took. Files go to dir.
type player func(ctx context.Context, f flags, dir string, m *model) (result, error)

func run(ctx context.Context, f flags) error {
	dir, err := os.MkdirTemp("", "prl-load-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	m, err := startModel(ctx, f.Takes, min(f.Concurrency, f.rollouts(f.Concurrency)))
	if err != nil {
		return err
	}
	defer m.stop()
	players := []player{playOurs}
	if f.Python != "" {
		if f.Python, err = filepath.Abs(f.Python); err != nil {
			return err
		}
		players = append(players, playVerifiers)
	}
	var results []result
	for _, play := range players {
		r, err := play(ctx, f, dir, m)
		if err != nil {
			show(results)
			return fmt.Errorf("%w (logs: %s)", err, dir)
		}
		results = append(results, r)
	}
	show(results)
	if r := results[0]; r.AtOnce < f.Concurrency {
		err = fmt.Errorf("%d rollouts waited for the model at once, not %d: the others had not begun after %v", r.AtOnce, f.Concurrency, patience)
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// show prints the results as a table in Markdown.
func show(results []result) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
	fmt.Fprintln(w, "| environment server\t| rollouts at once\t| rollouts\t| failed\t| a second\t| CPU ms a rollout\t| most memory, MiB\t| KiB a rollout at once\t| of these in use\t|")
	fmt.Fprintln(w, "|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|")
	for _, r := range results {
		fmt.Fprintf(w, "| %s\t| %d\t| %d\t| %d\t| %.1f\t| %.2f\t| %.0f\t| %.1f\t| %.1f\t|\n", r.Server, r.AtOnce, r.Rollouts, r.Failed, float64(r.Rollouts)/r.Took.Seconds(),
			r.Usage.CPU.Seconds()*1000/float64(r.Rollouts), mib(r.Usage.Peak), float64(r.Usage.Peak-r.Usage.Before)/float64(r.AtOnce)/1024,
			float64(r.Live)/float64(r.AtOnce)/1024)
	}
	_ = w.Flush() // standard output
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }
