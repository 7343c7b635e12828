package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/top"
	"github.com/prl-project/prl/stages/ui"
)

// recorded is the file with the settings that the run was last started with, for those who look at a run or go on with it
// and name no --config; empty where there is none. Who looks at a run of this machine that is not there is told which are.
func (f flags) recorded() (string, error) {
	looks := f.Stage == stages.AuditName || f.Stage == stages.ReplayName || f.Stage == ui.Name || f.Stage == top.Name || f.fansOut() || f.byHand()
	if f.Config != "" || f.Stage != "all" && !looks {
		return f.Config, nil
	}
	cfg := stages.DefaultConfig()
	at := map[string]*string{"dir": &cfg.Dir, "run.name": &cfg.Run.Name}
	take := func(key, value string) {
		to := at[strings.TrimSpace(key)]
		if to == nil {
			return
		}
		var one struct{ Value string }
		if *to = strings.TrimSpace(value); toml.Unmarshal([]byte("value = "+*to), &one) == nil { // else text without quotes
			*to = one.Value
		}
	}
	for key, name := range map[string]string{"dir": "PRL__DIR", "run.name": "PRL__RUN__NAME"} {
		if value, ok := os.LookupEnv(name); ok {
			take(key, value)
		}
	}
	for _, kv := range f.Set {
		key, value, _ := strings.Cut(kv, "=")
		take(key, value)
	}
	if f.Run != "" {
		cfg.Run.Name = f.Run
	}
	if _, err := os.Stat(cfg.RunDir()); looks && len(f.Brokers) == 0 && errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("there is no run %s in %s: %s (--run and --set dir=… name another, --config and --brokers one that runs elsewhere)", cfg.Run.Name, cfg.Dir, runs(cfg.Dir))
	}
	path := stages.RecordedConfig(cfg.Dir, cfg.Run.Name)
	if origin, err := stages.ParseOrigin(f.From); err == nil && path == "" { // a new run has the settings of the one it begins from
		path = stages.RecordedConfig(cfg.Dir, origin.Run)
	}
	return path, nil
}

// runs says which runs have a folder in dir.
func runs(dir string) string {
	var names []string
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	if err != nil || len(names) == 0 {
		return "there is none"
	}
	return "there are " + strings.Join(names, ", ")
}
