package stages

import (
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
)

// TestScoring holds every algorithm to what it needs of the run and of its environments.
func TestScoring(t *testing.T) {
	const frozen, teacher, self = `frozen.big={url = "http://localhost:1", model = "m"}`, `envs.catch.teacher="big"`, `envs.catch.teacher="self"`
	const played = `envs.catch.policy="big"`
	for _, tt := range []struct {
		sets []string
		want string // empty for none
	}{
		{[]string{`scorer.advantage="rae"`}, "run.trace_partitions = 3: "},
		{[]string{`scorer.advantage="rae"`, "run.trace_partitions=1"}, ""},
		{[]string{`scorer.envs.catch.advantage="rae"`}, "run.trace_partitions = 3: "},
		{[]string{`scorer.advantage="opd"`}, `envs.catch.teacher = "": scorer.advantage = "opd" needs one`},
		{[]string{`scorer.advantage="opd"`, frozen, teacher}, ""},
		{[]string{`scorer.advantage="opd"`, self}, `envs.catch.teacher = "self": with scorer.advantage = "opd"`},
		{[]string{`scorer.advantage="opsd"`, self}, ""},
		{[]string{`scorer.advantage="opsd"`, frozen, teacher}, `envs.catch.teacher = "big": with scorer.advantage = "opsd"`},
		{[]string{"scorer.ref_kl=0.1"}, `envs.catch.teacher = "": scorer.ref_kl = 0.1 needs one`},
		{[]string{"scorer.ref_kl=0.1", frozen, teacher}, ""},
		{[]string{`scorer.advantage="sft"`, frozen, played}, ""},
		{[]string{`scorer.advantage="rloo"`, frozen, played}, `envs.catch.policy = "big": scorer.advantage = "rloo" needs rollouts of the policy that is trained`},
		{[]string{`scorer.partial="train"`, "scorer.min_group_size=9"}, "envs.catch.group_size = 8 is below scorer.min_group_size = 9"},
		{[]string{`scorer.partial="train"`, "scorer.min_group_size=8"}, ""},
		{[]string{"scorer.envs.chess.partial=\"drop\""}, "scorer.envs.chess: there is no section [envs.chess]"},
		{[]string{"scorer.envs.catch.partials=\"drop\""}, "scorer.envs.catch.partials: unknown key"},
	} {
		err := pipeline.LoadConfig("../configs/ordered.toml", nil, tt.sets, DefaultConfig())
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("--set %q: error %v, want %q", tt.sets, err, tt.want)
		}
	}
}

// TestBranchwise: the auditor is told where filters may drop one branch of a rollout and not the others.
func TestBranchwise(t *testing.T) {
	for set, want := range map[string]bool{
		"":                                       false,
		"scorer.filters.truncated.mode=\"drop\"": false,
		"scorer.filters.repetition.mode=\"drop\"":                 true,
		"scorer.envs.catch.filters.repetition.mode=\"drop\"":      true,
		"scorer.filters.length={mode = \"drop\", max_tokens = 9}": true,
		"scorer.advantage=\"echo\"":                               true,
	} {
		var sets []string
		if set != "" {
			sets = append(sets, set)
		}
		cfg := DefaultConfig()
		if err := pipeline.LoadConfig("../configs/ordered.toml", nil, sets, cfg); err != nil {
			t.Fatal(err)
		}
		if got := cfg.branchwise()["catch"]; got != want {
			t.Errorf("--set %s: %v", set, got)
		}
	}
}
