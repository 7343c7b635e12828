package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/dryrun"
	"github.com/prl-project/prl/stages/settings"
)

// dryRun says what the stage would start with and whether all it needs is there. It is an error if something is not.
func dryRun(ctx context.Context, f flags, cfg *stages.Config, out io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this binary, which makes a child of itself: %w", err)
	}
	r := &dryrun.Run{
		Config: cfg, Name: f.Stage, Instance: f.Instance, Envs: f.Env, BrokerDir: brokerDir(cfg),
		Embedded: cfg.Brokers[0] == stages.Embedded, Probe: []string{self, "--stage", "envserver", "--probe-env"},
	}
	if f.byHand() {
		r.Envs = nil
	}
	for _, s := range stages.Flow {
		if s.Name == f.Stage || f.Stage == allName && (s.Optional == nil || s.Optional(cfg)) {
			r.Stages = append(r.Stages, s)
		}
	}
	text, err := f.resolved(cfg)
	if err != nil {
		return err
	}
	results := r.Checks(ctx)
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
	names := map[string]any{}
	for kind, list := range map[string][]string{"envs": keys(cfg.Envs), "evals": keys(cfg.Evals), "frozen": keys(cfg.Frozen)} {
		tables := map[string]any{}
		for _, name := range list {
			tables[name] = nil
		}
		names[kind] = tables
	}
	usual.Prepare(names)
	return settings.Resolved(cfg, usual, from)
}

func keys[T any](m map[string]T) (list []string) {
	for k := range m {
		list = append(list, k)
	}
	return list
}

// flagOf are the flags that stand for a key.
var flagOf = map[string]string{
	"run.name": "--run", "inference.backend": "--backend", "inference.urls": "--url", "brokers": "--brokers", "telemetry": "--telemetry",
	"trainer.learner": "--learner", "trainer.torch.rank": "--rank", "trainer.torch.world_size": "--world-size", "trainer.torch.rendezvous": "--rendezvous",
}
