package stages

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/inference"
)

// FleetConfig is the section [fleet]: the runs that one process of --stage envserver, or of --stage inference, serves together.
// Other stages do not read it.
type FleetConfig struct {
	// Runs are served, each with a section [fleet.runs.<name>]. A process follows changes of its file: a run that comes is
	// served, one that goes is given up, shares count from then on.
	Runs map[string]FleetRunConfig `toml:"runs"`
	// Linger is how long a run that has published its last policy version is still served after its last task or request;
	// then the fleet lets it go. Above 0s.
	Linger pipeline.Duration `toml:"linger"`
	// Patience is how long the brokers may refuse a run its work (its topics are gone, say) until the fleet stops it, frees
	// what it holds and begins anew with it. Above 0s.
	Patience pipeline.Duration `toml:"patience"`
}

// FleetRunConfig is a section [fleet.runs.<name>].
type FleetRunConfig struct {
	// Share is what the run has of slots and tokens while others want them, too, in any unit: twice the share is twice as
	// much. 0.001 to 1000.
	Share float64 `toml:"share"`
	// Config is the file with the run's settings; empty for those that the run has recorded in its folder, or else for the
	// fleet's own.
	Config string `toml:"config"`
	// Token is what clients of this run must send to the inference server, in place of inference.token; empty for that one.
	// Give it in PRL__FLEET__RUNS__<NAME>__TOKEN.
	Token pipeline.Secret `toml:"token"`
}

// DefaultFleetConfig serves no fleet.
func DefaultFleetConfig() FleetConfig {
	return FleetConfig{Runs: map[string]FleetRunConfig{}, Linger: pipeline.Duration(10 * time.Minute), Patience: pipeline.Duration(time.Minute)}
}

// DefaultFleetRunConfig is what a section [fleet.runs.<name>] starts from.
func DefaultFleetRunConfig() FleetRunConfig { return FleetRunConfig{Share: 1} }

// Validate checks the section.
func (c FleetConfig) Validate() error {
	switch {
	case c.Linger <= 0:
		return fmt.Errorf("fleet.linger = %v: above 0s", c.Linger)
	case c.Patience <= 0:
		return fmt.Errorf("fleet.patience = %v: above 0s", c.Patience)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Runs)) {
		switch r := c.Runs[name]; {
		case !pipeline.ValidName(name):
			return fmt.Errorf("fleet.runs.%s: the name of a run has letters, digits, dashes and underscores", name)
		case !(r.Share >= 0.001 && r.Share <= 1000) || math.IsNaN(r.Share):
			return fmt.Errorf("fleet.runs.%s.share = %v: 0.001 to 1000", name, r.Share)
		}
	}
	return nil
}

// ValidateFleet holds the configuration of a process to what a fleet of that stage can do.
func (c *Config) ValidateFleet(stage Stage) error {
	switch {
	case stage.Name != "envserver" && stage.Name != inference.Stage:
		return fmt.Errorf("--stage %s serves one run: several are for envserver and inference; start it once for each run", stage.Name)
	case stage.Name == inference.Stage && !c.Inference.Native():
		return fmt.Errorf("inference.backend = %q with several runs (%s): its servers hold the weights of one run; start --stage inference once for each run, with servers of its own (inference.urls) and an address of its own, and give environment servers envserver.model_url with {run} in it",
			c.Inference.Backend, strings.Join(slices.Sorted(maps.Keys(c.Fleet.Runs)), ", "))
	case c.Brokers[0] == Embedded:
		return fmt.Errorf("brokers = [%q] with several runs: they need brokers that all reach: start `prl-stage --stage broker`, and give its address", Embedded)
	}
	return nil
}

// ofRun are the settings with which this process serves one of its runs: what describes the run is the run's own, from the file
// that the fleet names for it or from the run's folder, and what describes the process is the fleet's.
func (c *Config) ofRun(name string) (*Config, error) {
	merged := *c
	merged.Run.Name = name
	merged.Sink.Dir = ""
	if _, err := os.Stat(merged.RunDir()); err != nil {
		return nil, fmt.Errorf("run %s: %w: there is no folder %s; its own stages make it, in a folder that they share with this process (dir)", name, errNotBegun, merged.RunDir())
	}
	path := c.Fleet.Runs[name].Config
	if path == "" {
		path = RecordedConfig(c.Dir, name)
	}
	own := &merged
	if path != "" {
		own = DefaultConfig()
		if err := pipeline.LoadConfig(path, nil, nil, own); err != nil {
			return nil, fmt.Errorf("the settings of run %s: %w", name, err)
		}
	} else if err := merged.runAsBegun(); err != nil {
		return nil, err
	}
	merged.Run, merged.Envs, merged.Evals, merged.Frozen, merged.Model = own.Run, own.Envs, own.Evals, own.Frozen, own.Model
	merged.Emitter, merged.Scorer, merged.Packer, merged.Trainer, merged.Cleanup = own.Emitter, own.Scorer, own.Packer, own.Trainer, own.Cleanup
	merged.Run.Name = name
	merged.EnvServer.ModelURL = modelURL(c.EnvServer.ModelURL, name)
	if t := c.Fleet.Runs[name].Token; t.Reveal() != "" {
		merged.Inference.Token = t
	}
	if merged.Inference.Model != "" {
		return nil, fmt.Errorf("inference.model = %q with several runs: each is served under its own name; leave it out", merged.Inference.Model)
	}
	if err := merged.Validate(); err != nil {
		return nil, fmt.Errorf("the settings of run %s with those of the fleet: %w", name, err)
	}
	return &merged, nil
}

// runPlace stands for a run's name in envserver.model_url.
const runPlace = "{run}"

// modelURL is where the policy of a run is served: {run} in the URL is its name, and without one it is at /runs/<name>, as
// prl's own servers have it.
func modelURL(root, run string) string {
	if strings.Contains(root, runPlace) {
		return strings.ReplaceAll(root, runPlace, url.PathEscape(run))
	}
	return strings.TrimRight(root, "/") + inference.RunPath(run)
}

// runAsBegun takes the section [run] with which the run began, where its folder has nothing more.
func (c *Config) runAsBegun() error {
	path := filepath.Join(c.RunDir(), "run.toml")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("run %s: %w: there is no %s; its own stages write it", c.Run.Name, errNotBegun, path)
	}
	if err != nil {
		return fmt.Errorf("the settings of run %s: %w", c.Run.Name, err)
	}
	began := struct {
		Run pipeline.RunConfig `toml:"run"`
	}{c.Run}
	if err := toml.Unmarshal(text, &began); err != nil {
		return fmt.Errorf("the settings of run %s: %s: %w", c.Run.Name, path, err)
	}
	c.Run = began.Run
	return nil
}
