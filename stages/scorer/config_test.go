package scorer

import (
	"reflect"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/stages/scorer/filter"
)

// load decodes sources one over the other, as the configuration does.
func load(t testing.TB, sources ...string) Config {
	t.Helper()
	cfg := DefaultConfig()
	for _, text := range sources {
		if err := toml.NewDecoder(strings.NewReader(text)).DisallowUnknownFields().Decode(&cfg); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	return cfg
}

func of(t testing.TB, c Config, env string) Settings {
	t.Helper()
	s, err := c.Of(env)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What an environment sets holds for it, in whatever source; what it leaves out is the section's.
func TestOverrides(t *testing.T) {
	cfg := load(t, `
advantage = "echo"
echo_roles = ["tool", "user"]
[filters.length]
mode = "monitor"
max_tokens = 9
[envs.wordle]
normalize_std = true
echo_roles = ["system"]
echo_alpha = 1
[envs.wordle.filters]
length = { max_tokens = 5 }
[envs.wordle.filters.repetition]
mode = "off"
`, `envs.wordle.partial = "drop"`, `envs.wordle.filters.truncated.mode = "drop"`, `min_group_size = 7`)
	if err := Validate(pipeline.DefaultRunConfig(), cfg); err != nil {
		t.Fatal(err)
	}
	w, other := of(t, cfg, "wordle"), of(t, cfg, "catch")
	if !w.NormalizeStd || w.Advantage != "echo" || !reflect.DeepEqual(w.EchoRoles, []string{"system"}) || w.EchoAlpha != 1 || w.MinGroupSize != 7 || w.Partial != Drop ||
		w.Filters.Length != (filter.Length{Mode: filter.Monitor, MaxTokens: 5}) || w.Filters.Repetition.Mode != filter.Off || w.Filters.Repetition.Window != 3000 || w.Filters.Truncated.Mode != filter.Drop {
		t.Errorf("%+v", w)
	}
	if !reflect.DeepEqual(other, cfg.Settings) || other.NormalizeStd || !reflect.DeepEqual(other.EchoRoles, []string{"tool", "user"}) || other.Filters.Length.MaxTokens != 9 {
		t.Errorf("%+v", other)
	}
	if _, ok := cfg.Envs["wordle"]; !ok || reflect.DeepEqual(DefaultConfig().EchoRoles, cfg.EchoRoles) {
		t.Errorf("%+v", cfg)
	}
	text, err := toml.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if again := load(t, string(text)); !reflect.DeepEqual(again, cfg) {
		t.Errorf("%+v came back as %+v:\n%s", cfg, again, text)
	}
}

func TestConfigErrors(t *testing.T) {
	for text, want := range map[string]string{
		`advantage = "ppo"`:                                    `scorer.advantage = "ppo": one of echo, `,
		`partial = "wait"`:                                     `scorer.partial = "wait": refill, train or drop`,
		`min_group_size = 0`:                                   `scorer.min_group_size = 0: at least 1`,
		`filters.gibberish.mode = "drop"`:                      `scorer.filters.gibberish.vocab_size = 0: `,
		`envs.wordle.advantage = "ppo"`:                        `scorer.envs.wordle.advantage = "ppo": one of`,
		`envs.wordle.normalise_std = true`:                     `scorer.envs.wordle.normalise_std: unknown key`,
		`envs.wordle.filters.length.max = 1`:                   `scorer.envs.wordle.filters.length.max: unknown key`,
		`envs.wordle.filters.length.max_tokens = "many"`:       `scorer.envs.wordle.filters.length.max_tokens: `,
		`envs.wordle.filters.zero_advantage.mode = "monitor "`: `scorer.envs.wordle.filters.zero_advantage.mode = "monitor ": `,
		`envs."".advantage = "rloo"`:                           `scorer.envs has an environment without a name`,
	} {
		if err := Validate(pipeline.DefaultRunConfig(), load(t, text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", text, err, want)
		}
	}
}

// An average needs one order of all groups.
func TestOnePartition(t *testing.T) {
	run := pipeline.DefaultRunConfig()
	for _, text := range []string{`advantage = "rae"`, `envs.wordle.advantage = "rae"`} {
		cfg := load(t, text)
		if err := Validate(run, cfg); err == nil || !strings.HasPrefix(err.Error(), "run.trace_partitions = 3: advantage = \"rae\" ([scorer") {
			t.Errorf("%s: %v", text, err)
		}
		if _, err := New(run, cfg, 2)(0, nil); err == nil {
			t.Error("a core was made")
		}
		one := run
		one.TracePartitions = 1
		if err := Validate(one, cfg); err != nil {
			t.Error(err)
		}
	}
}

// An algorithm that needs a teacher refuses rollouts that have not been to one, and takes those whose group failed.
func TestTeacher(t *testing.T) {
	cfg := load(t, `advantage = "opd"`)
	if needs := cfg.Settings.Needs(); !needs.Teacher || !needs.OnPolicy || needs.Order {
		t.Errorf("%+v", needs)
	}
	bad := trace(0, 1, 0, 1)
	r := pipelinetest.NewRunner(t, coreOf(cfg, 1, 0))
	if groups := feed(t, r, bad); len(groups) != 0 || len(r.Poison) != 1 || !strings.Contains(r.Poison[0].Error(), "nodes.1.ref_logprobs: 0 of 3 tokens have a teacher's: set teacher in [envs.catch]") {
		t.Fatalf("%d groups, %v", len(groups), r.Poison)
	}
	good := trace(0, 1, 0, 1)
	good.Nodes[1].RefLogprobs = good.Nodes[1].Logprobs
	groups := feed(t, r, good)
	if len(groups) != 1 || groups[0].Reason != "" || groups[0].Samples[0].RefKlWeights.At(2) != 1 || groups[0].Samples[0].Mask[2] != 0 {
		t.Errorf("%+v", groups)
	}
}
