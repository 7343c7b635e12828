package stages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/eval"
	"github.com/prl-project/prl/stages/internal/progress"
)

// EvalByHand is an eval that somebody runs by hand: which policy plays what.
type EvalByHand struct {
	// Env is the environment, and Suite the section [evals.<name>] with the settings; one of them is enough.
	Env, Suite string
	// Policy is "latest", the number of a version, or the name of a section [frozen.<name>].
	Policy string
	// Examples, K and Temperature are over those of the suite; nil leaves them.
	Examples, K *int
	Temperature *float64
	// Resume is the id of an eval that goes on, or "last"; empty begins one.
	Resume string
	// Alone says that no other process of the run is there: the policy and the environment are served in this one, for this
	// eval only, and its sink runs here. Else the run's own servers play.
	Alone bool
	// Games are recorded games that are played in place of held-out tasks; nil for those.
	Games []eval.Game
}

// RunEvalByHand runs one eval of the run and prints its table. The run must have begun, and is not disturbed: none of its
// own tasks is played here, and nothing that it would believe is written. When ctx ends first it says how to go on.
func (a *App) RunEvalByHand(ctx context.Context, out io.Writer, h EvalByHand) error {
	a.says = out
	suite, cfg, err := a.Config.suite(h)
	if err != nil {
		return err
	}
	// Beside its servers the run's folder may be on other machines, and with it what it began with.
	if err := a.Config.asBegun(); err != nil && (h.Alone || !errors.Is(err, fs.ErrNotExist)) {
		return fmt.Errorf("eval by hand: %w", err)
	}
	if a.Runtime.Schemas != nil {
		err = a.Runtime.Schemas.Resolve(ctx)
	} else {
		err = a.Config.agreeFraming()
	}
	if err != nil {
		return fmt.Errorf("eval by hand: %w", err)
	}
	b, err := eval.OpenByHand(ctx, a.Runtime, a.Config.Emitter, a.Config.Envs, eval.Wish{
		Suite: suite, Config: cfg, Policy: h.Policy, Frozen: slices.Sorted(maps.Keys(a.Config.Frozen)), Resume: h.Resume, Here: h.Alone,
		Games: h.Games,
	})
	if err != nil {
		return fmt.Errorf("eval by hand: %w", err)
	}
	defer b.Close()
	title := fmt.Sprintf("%s: %s on %s, %d examples, k = %d, temperature %g", b.Plan.Name, measured(b.Plan), cfg.Env, cfg.Examples, cfg.K, cfg.Temperature)
	var res *schemas.EvalResult
	printer := progress.NewPrinter(out)
	play := func(ctx context.Context) (err error) {
		defer printer.Close()
		waited := ""
		res, err = b.Run(ctx, func() {
			if waits := b.Waiting(); waits != waited {
				printer.Turn()
				waited = waits
			}
			if now := time.Now(); printer.BarDue(now) {
				printer.ShowBar(bar(b.Progress(), cfg.K), now)
			}
		})
		if res != nil && !b.Finished() {
			printer.ShowBar(bar(b.Progress(), cfg.K), time.Now())
		}
		return err
	}
	switch {
	case b.Finished():
		fmt.Fprintf(out, "%s\nNothing of it is missing and nothing failed.\n", title)
		err = play(ctx)
	case h.Alone:
		fmt.Fprintln(out, title)
		a.Serve, a.measures = []string{cfg.Env}, b
		a.Config.Inference.Listen = "" // its only client is in this process
		err = a.runStages(ctx, func(s Stage) bool {
			return s.Name == "inference" || s.Name == "envserver" || s.Name == "sink"
		}, play)
	default:
		fmt.Fprintln(out, title)
		err = play(ctx)
	}
	again := fmt.Sprintf("--resume %s, with the same settings,", b.ID())
	switch {
	case err != nil && b.Begun():
		return fmt.Errorf("%s: %w; %s goes on from here", b.Plan.Name, err, again)
	case err != nil:
		return fmt.Errorf("eval by hand: %w", err)
	case res == nil && b.Begun():
		fmt.Fprintf(out, "stopped; %s goes on from here\n", again)
		return nil
	case res == nil:
		fmt.Fprintln(out, "stopped before anything was played")
		return nil
	}
	fmt.Fprint(out, progress.Table(res, cfg.PassThreshold))
	if res.Errored > 0 {
		fmt.Fprintf(out, "Rollouts that failed are in no figure; %s plays them again.\n", again)
	}
	fmt.Fprintf(out, "Ask it with SQL:  SELECT * FROM traces WHERE eval = '%s'\n", b.Plan.Name)
	return nil
}

// measured names what an eval by hand measures.
func measured(p eval.Plan) string {
	if p.Policy != "" {
		return "frozen policy " + p.Policy
	}
	return fmt.Sprintf("policy version %d", p.Version)
}

// bar is how far an eval by hand is.
func bar(p eval.Progress, k int) progress.Bar {
	b := progress.Bar{Done: p.Done, Total: p.Examples}
	if p.Waiting != "" {
		b.Note = "examples; waits: " + p.Waiting
	} else {
		b.Note = fmt.Sprintf("examples, %d in flight", p.InFlight)
		if p.Failed > 0 {
			b.Note += fmt.Sprintf(", %d rollouts failed", p.Failed)
		}
		if p.Done > 0 {
			b.Note += fmt.Sprintf(", avg@%d %s", k, progress.Avg(p.Result))
		}
	}
	return b
}

// suite gives the settings of an eval by hand: of the section [evals.<name>] that is named, or the one of the
// environment, or the defaults; over them what is asked for.
func (c *Config) suite(h EvalByHand) (name string, cfg eval.Config, err error) {
	var of []string
	for _, s := range slices.Sorted(maps.Keys(c.Evals)) {
		if c.Evals[s].Env == h.Env {
			of = append(of, s)
		}
	}
	_, known := c.Envs[h.Env]
	switch section, there := c.Evals[h.Suite]; {
	case h.Suite != "" && !there:
		return "", cfg, fmt.Errorf("--suite %s: no section [evals.%s]; there are %v", h.Suite, h.Suite, slices.Sorted(maps.Keys(c.Evals)))
	case there && h.Env != "" && h.Env != section.Env:
		return "", cfg, fmt.Errorf("--suite %s is of environment %s, not %s", h.Suite, section.Env, h.Env)
	case there:
		name = h.Suite
	case !known:
		return "", cfg, fmt.Errorf("--env %s: no section [envs.%s]; there are %v", h.Env, h.Env, slices.Sorted(maps.Keys(c.Envs)))
	case len(of) == 0:
		name = h.Env
	case len(of) == 1:
		name = of[0]
	case slices.Contains(of, h.Env):
		name = h.Env
	default:
		return "", cfg, fmt.Errorf("--env %s has the suites %s: choose one with --suite", h.Env, strings.Join(of, ", "))
	}
	cfg, there := c.Evals[name]
	if !there {
		cfg = eval.DefaultConfig()
		cfg.Env = h.Env
	}
	if h.Examples != nil {
		cfg.Examples = *h.Examples
	}
	if h.Games != nil {
		cfg.Examples = len(h.Games)
	}
	if h.K != nil {
		cfg.K = *h.K
	}
	if h.Temperature != nil {
		cfg.Temperature = *h.Temperature
	}
	return name, cfg, nil
}
