package main

import (
	"os"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/prl-project/prl/stages"
)

// recorded is the file with the settings that the run was last started with, for those who look at a run or go on with it
// and name no --config; empty where there is none.
func (f flags) recorded() string {
	if f.Config != "" || f.Stage != "all" && f.Stage != stages.AuditName && f.Stage != stages.ReplayName && !f.byHand() {
		return ""
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
	return stages.RecordedConfig(cfg.Dir, cfg.Run.Name)
}
