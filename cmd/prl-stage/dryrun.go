package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/broker"
	"github.com/prl-project/prl/stages/dryrun"
	"github.com/prl-project/prl/stages/settings"
	"github.com/prl-project/prl/stages/top"
	"github.com/prl-project/prl/stages/ui"
)

// dryRun says what the stage would start with and whether all it needs is there. It is an error if something is not.
func dryRun(ctx context.Context, f flags, cfg *stages.Config, out io.Writer) error {
	r, err := f.rehearsal(cfg)
	if err != nil {
		return err
	}
	text, err := f.resolved(cfg)
	if err != nil {
		return err
	}
	return f.report(out, text, r.Checks(ctx))
}

// report prints what was found.
func (f flags) report(out io.Writer, text string, results []dryrun.Result) (err error) {
	if f.Try.JSON {
		err = dryrun.JSON(out, text, results)
	} else {
		dryrun.Print(out, text, results)
	}
	if n := dryrun.Failures(results); err == nil && n > 0 {
		err = fmt.Errorf("%d of %d checks failed", n, len(results))
	}
	return err
}

// rehearsal is the process that the flags speak of.
func (f flags) rehearsal(cfg *stages.Config) (*dryrun.Run, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this binary, which makes a child of itself: %w", err)
	}
	r := &dryrun.Run{
		Config: cfg, Name: f.Stage, Instance: f.Instance, Envs: f.Env, BrokerDir: brokerDir(cfg), Probe: []string{self, "--stage", "envserver", "--probe-env"},
	}
	for _, s := range stages.Flow {
		if s.Name == f.Stage && !f.byHand() && !f.plays() && f.Serve.Serve == "" || f.Stage == allName && (s.Optional == nil || s.Optional(cfg)) {
			r.Stages = append(r.Stages, s)
		}
	}
	switch {
	case f.plays() || f.Serve.Serve != "":
		r.Alone = true // no run, only an environment
		return r, nil
	case cfg.Brokers[0] != stages.Embedded:
		return r, nil
	case f.Stage == allName:
		r.Embedded = true
		return r, nil
	}
	return r, f.besideEmbedded(r, cfg)
}

// besideEmbedded is for what is done to a run with an embedded broker: it asks the one that runs. Stages of the flow are not for that.
func (f flags) besideEmbedded(r *dryrun.Run, cfg *stages.Config) error {
	looks := f.byHand() || f.fansOut() || slices.Contains([]string{stages.AuditName, stages.ReplayName, ui.Name, top.Name}, f.Stage)
	addr, err := broker.Running(r.BrokerDir)
	switch {
	case err != nil:
		return err
	case !looks && f.Stage != brokerName:
		r.NoBrokers = fmt.Sprintf("--stage %s needs a broker it shares with the others: start `prl-stage --stage broker` and give --brokers localhost:9092", f.Stage)
	case addr != "" && f.Stage != brokerName:
		own := *cfg
		own.Brokers = []string{addr}
		r.Config = &own
	default:
		r.Embedded = true
	}
	return nil
}

// dryRunFleet is dryRun for each run that a process would serve.
func dryRunFleet(ctx context.Context, f flags, stage stages.Stage, out io.Writer) error {
	cfg, err := f.fleetConfig()
	if err != nil {
		return err
	}
	if err := cfg.ValidateFleet(stage); err != nil {
		return err
	}
	if f.Env, err = named(f.Env, cfg); err != nil {
		return err
	}
	text, err := f.resolved(cfg)
	if err != nil {
		return err
	}
	if f.Instance == "" {
		f.Instance = "fleet-" + pipeline.NextInstance(filepath.Join(cfg.Dir, ".fleet", "locks"), stage.Name)
	}
	var results []dryrun.Result
	for _, name := range slices.Sorted(maps.Keys(cfg.Fleet.Runs)) {
		own, err := cfg.OfRun(name)
		if err != nil {
			results = append(results, dryrun.Result{Check: name, State: dryrun.Failed, Says: err.Error()})
			continue
		}
		r, err := f.rehearsal(own)
		if err != nil {
			return err
		}
		for _, found := range r.Checks(ctx) {
			found.Check = name + ": " + found.Check
			results = append(results, found)
		}
	}
	return f.report(out, text, results)
}

// resolved are the settings, with where those come from that are not the defaults.
func (f flags) resolved(cfg *stages.Config) (string, error) {
	from, err := pipeline.Origins(f.Config, os.Environ(), f.sets())
	if err != nil {
		return "", err
	}
	if here, err := os.Getwd(); err == nil {
		for key, where := range from {
			from[key] = strings.TrimPrefix(where, here+string(filepath.Separator))
		}
	}
	for key, where := range from { // what another flag than --set stands for
		given := func(kv string) bool { k, _, _ := strings.Cut(kv, "="); return strings.TrimSpace(k) == key }
		if flag := flagOf[key]; flag != "" && strings.HasPrefix(where, "--set ") && !slices.ContainsFunc(f.Set, given) {
			from[key] = flag
		}
	}
	usual := stages.DefaultConfig()
	usual.Prepare(map[string]any{
		"envs": tables(cfg.Envs), "evals": tables(cfg.Evals), "frozen": tables(cfg.Frozen), "fleet": map[string]any{"runs": tables(cfg.Fleet.Runs)},
	})
	return settings.Resolved(cfg, usual, from)
}

// tables are empty tables of the names that users have given.
func tables[T any](named map[string]T) map[string]any {
	list := map[string]any{}
	for name := range named {
		list[name] = map[string]any{}
	}
	return list
}

// flagOf are the flags that stand for a key.
var flagOf = map[string]string{
	"run.name": "--run", "inference.backend": "--backend", "inference.urls": "--url", "brokers": "--brokers", "telemetry": "--telemetry",
	"trainer.learner": "--learner", "trainer.torch.rank": "--rank", "trainer.torch.world_size": "--world-size", "trainer.torch.rendezvous": "--rendezvous",
}
