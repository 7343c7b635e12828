package stages

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/board"
	"github.com/prl-project/prl/stages/broker"
	"github.com/prl-project/prl/stages/cleanup"
	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/envserver"
	"github.com/prl-project/prl/stages/envserver/bridge"
	"github.com/prl-project/prl/stages/eval"
	"github.com/prl-project/prl/stages/export"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/packer"
	"github.com/prl-project/prl/stages/scorer"
	"github.com/prl-project/prl/stages/sink"
	"github.com/prl-project/prl/stages/trainer"
	"github.com/prl-project/prl/stages/ui"
)

// Config is the whole configuration: a section for the run, one for each stage, and one for each environment and eval.
// Every section has defaults; the demo's file explains the ones that are often changed.
type Config struct {
	Run pipeline.RunConfig `toml:"run"`
	// Brokers are Kafka's bootstrap addresses, or "embedded" alone.
	Brokers []string `toml:"brokers"`
	// Kafka says how the brokers and this process know each other.
	Kafka pipeline.KafkaConfig `toml:"kafka"`
	// SchemaRegistry gives records Confluent's framing.
	SchemaRegistry pipeline.SchemaRegistryConfig `toml:"schema_registry"`
	// Dir holds a folder for each run: blobs, Parquet files, locks, the embedded broker's data.
	Dir string `toml:"dir"`
	// Telemetry is the address of /metrics, /healthz and /readyz; port 0 takes a free one, empty serves none.
	Telemetry string `toml:"telemetry"`
	// TelemetryPprof says who gets profiles under /debug/pprof/ there: off for nobody, local for requests from this machine, any
	// for whoever reaches the address.
	TelemetryPprof string `toml:"telemetry_pprof"`
	// Log says how the process logs, and where to.
	Log pipeline.LogConfig `toml:"log"`
	// Tracing follows rollouts through the stages with OpenTelemetry.
	Tracing pipeline.TracingConfig       `toml:"tracing"`
	Envs    map[string]emitter.EnvConfig `toml:"envs"`
	Evals   map[string]eval.Config       `toml:"evals"`
	// Frozen are policies that are not trained: they play, or teach.
	Frozen    map[string]inference.FrozenConfig `toml:"frozen"`
	Broker    broker.Config                     `toml:"broker"`
	Emitter   emitter.Config                    `toml:"emitter"`
	EnvServer envserver.Config                  `toml:"envserver"`
	Inference inference.Config                  `toml:"inference"`
	Scorer    scorer.Config                     `toml:"scorer"`
	Packer    packer.Config                     `toml:"packer"`
	Trainer   trainer.Config                    `toml:"trainer"`
	Model     trainer.ModelConfig               `toml:"model"`
	Sink      sink.Config                       `toml:"sink"`
	Cleanup   cleanup.Config                    `toml:"cleanup"`
	UI        ui.Config                         `toml:"ui"`
	Blobs     pipeline.BlobsConfig              `toml:"blobs"`
	// Fleet are the runs that one environment server or inference server serves together.
	Fleet FleetConfig `toml:"fleet"`
	// Board writes the curves as TensorBoard's event files.
	Board board.Config `toml:"board"`
	// Shadow is a second trainer on the same batches, which publishes nothing (--stage shadow).
	Shadow trainer.ShadowConfig `toml:"shadow"`
	// Export makes conversations to train on of the best rollouts (--stage export).
	Export export.Config `toml:"export"`
}

// Embedded is the broker address that means: the one in the binary.
const Embedded = "embedded"

// DefaultConfig expects a broker on this machine.
func DefaultConfig() *Config {
	return &Config{
		Run: pipeline.DefaultRunConfig(), Brokers: []string{"localhost:9092"}, Dir: "runs", Telemetry: "localhost:0", TelemetryPprof: pipeline.PprofOff,
		SchemaRegistry: pipeline.DefaultSchemaRegistryConfig(), Log: pipeline.DefaultLogConfig(), Tracing: pipeline.DefaultTracingConfig(),
		Envs: map[string]emitter.EnvConfig{}, Evals: map[string]eval.Config{}, Frozen: map[string]inference.FrozenConfig{},
		Broker: broker.DefaultConfig(), Emitter: emitter.DefaultConfig(), EnvServer: envserver.DefaultConfig(),
		Inference: inference.DefaultConfig(), Scorer: scorer.DefaultConfig(), Packer: packer.DefaultConfig(),
		Trainer: trainer.DefaultConfig(), Model: trainer.DefaultModelConfig(), Sink: sink.DefaultConfig(), Cleanup: cleanup.DefaultConfig(),
		Blobs: pipeline.DefaultBlobsConfig(), UI: ui.DefaultConfig(), Fleet: DefaultFleetConfig(), Board: board.DefaultConfig(), Shadow: trainer.DefaultShadowConfig(), Export: export.DefaultConfig(),
	}
}

// Prepare gives environments and evals their defaults before they are decoded.
func (c *Config) Prepare(tree map[string]any) {
	named(c.Envs, tree["envs"], emitter.DefaultEnvConfig)
	named(c.Evals, tree["evals"], eval.DefaultConfig)
	if fleet, ok := tree["fleet"].(map[string]any); ok {
		named(c.Fleet.Runs, fleet["runs"], DefaultFleetRunConfig)
	}
	named(c.Frozen, tree["frozen"], func() inference.FrozenConfig { return inference.FrozenConfig{} })
}

func named[T any](m map[string]T, tree any, defaults func() T) {
	tables, _ := tree.(map[string]any)
	for name := range tables {
		if _, ok := m[name]; !ok {
			m[name] = defaults()
		}
	}
}

// Validate checks every section, and the sections against each other.
func (c *Config) Validate() error {
	if err := c.Run.Validate(); err != nil {
		return err
	}
	if len(c.Brokers) == 0 {
		return fmt.Errorf("brokers is empty: Kafka's bootstrap addresses, or [%q]", Embedded)
	}
	if !slices.Contains([]string{pipeline.PprofOff, pipeline.PprofLocal, pipeline.PprofAny}, c.TelemetryPprof) {
		return fmt.Errorf("telemetry_pprof = %q: %s, %s or %s", c.TelemetryPprof, pipeline.PprofOff, pipeline.PprofLocal, pipeline.PprofAny)
	}
	if c.Brokers[0] == Embedded && c.Kafka.Enabled() {
		return fmt.Errorf("brokers = [%q] with a section [kafka]: the embedded broker has no TLS and no users; leave one of the two out", Embedded)
	}
	for _, section := range []interface{ Validate() error }{c.Kafka, c.Log, c.Tracing, c.SchemaRegistry, c.Broker, c.EnvServer, c.Inference, c.Packer, c.Trainer, c.Model, c.Sink, c.Cleanup, c.UI, c.Blobs, c.Shadow, c.Export, c.Fleet} {
		if err := section.Validate(); err != nil {
			return err
		}
	}
	if err := c.validateFrozen(); err != nil {
		return err
	}
	if err := c.validateBackend(); err != nil {
		return err
	}
	if err := c.validateScoring(); err != nil {
		return err
	}
	for _, section := range []struct {
		name string
		of   []string
	}{
		{"envs", slices.Sorted(maps.Keys(c.Envs))}, {"evals", slices.Sorted(maps.Keys(c.Evals))},
	} {
		for _, name := range section.of {
			if !pipeline.ValidName(name) {
				return fmt.Errorf("%s.%q: a name has letters, digits, dashes and underscores (topics and groups have it in theirs)", section.name, name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Envs)) {
		if source := c.Envs[name].Source; source != "" {
			if err := bridge.Check(source); err != nil {
				return fmt.Errorf("envs.%s.source: %w", name, err)
			}
		}
	}
	if len(c.Envs) > 0 {
		if err := emitter.Validate(c.Run, c.Emitter, c.Envs); err != nil {
			return err
		}
		if err := eval.Validate(c.Run, c.Emitter, c.Envs, c.Evals); err != nil {
			return err
		}
	}
	return nil
}

// RunDir is the folder of this run.
func (c *Config) RunDir() string { return filepath.Join(c.Dir, c.Run.Name) }
