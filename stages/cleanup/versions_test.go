package cleanup

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/eval"
)

// history is n versions with a checkpoint every tenth, of which the batches of version v end at offset 3 v.
func history(n int64) *known {
	k := &known{states: map[position]*schemas.StageState{}, measured: map[measurement]bool{}}
	for v := range n {
		p := &schemas.PolicyVersion{Version: v, Step: v, Kind: "full", NextOffsets: []int64{3 * v}, Weights: schemas.BlobRef{URI: fmt.Sprint("weights/", v)}}
		if v%10 == 0 {
			p.Checkpoint = &schemas.BlobRef{URI: fmt.Sprint("checkpoints/", v)}
		}
		k.versions = append(k.versions, p)
	}
	return k
}

func TestVersionsKept(t *testing.T) {
	evals := map[string]eval.Config{"e": {Interval: 8}}
	for _, c := range []struct {
		name    string
		cfg     Config
		final   bool
		pins    []int64
		evals   map[string]eval.Config
		want    string // versions whose weights are kept
		resumed string // those whose checkpoints are
	}{
		{"the newest, and what a restart trains again", Config{KeepVersions: 3}, false, nil, nil, "0 20 21 22 23 24", "0 20"},
		{"more of the newest", Config{KeepVersions: 6}, false, nil, nil, "0 19 20 21 22 23 24", "0 20"},
		{"multiples", Config{KeepVersions: 1, KeepEvery: 5}, false, nil, nil, "0 5 10 15 20 21 22 23 24", "0 10 20"},
		{"pinned by a task", Config{KeepVersions: 1}, false, []int64{3, 7}, nil, "0 3 7 20 21 22 23 24", "0 20"},
		{"an eval that is due", Config{KeepVersions: 1}, false, nil, evals, "0 16 20 21 22 23 24", "0 20"},
		{"the final one", Config{KeepVersions: 1}, true, nil, nil, "0 20 21 22 23 24", "0 20"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := history(25)
			k.versions[24].Final = c.final
			k.measured[measurement{"e", 0}], k.measured[measurement{"e", 8}] = true, true
			var weights, checkpoints []string
			for _, ref := range k.kept(c.cfg, c.evals, c.pins) {
				if v, ok := strings.CutPrefix(ref.URI, "weights/"); ok {
					weights = append(weights, v)
				}
				if v, ok := strings.CutPrefix(ref.URI, "checkpoints/"); ok {
					checkpoints = append(checkpoints, v)
				}
			}
			if got := strings.Join(weights, " "); got != c.want {
				t.Errorf("weights of %s are kept, want %s", got, c.want)
			}
			if got := strings.Join(checkpoints, " "); got != c.resumed {
				t.Errorf("checkpoints of %s are kept, want %s", got, c.resumed)
			}
		})
	}
}

// TestWhatAVersionIsMadeFromIsKept has a full version every seventh, deltas between, and an adapter for the first delta: with
// a delta stays the whole chain below it.
func TestWhatAVersionIsMadeFromIsKept(t *testing.T) {
	k := history(25)
	for i, v := range k.versions {
		v.Weights.SHA256 = fmt.Sprint("blob", i)
		if i%7 != 0 {
			v.Kind, v.BaseSHA256, v.FullSHA256 = schemas.KindDelta, k.versions[i-1].WeightsSHA256(), fmt.Sprint("full", i)
		}
	}
	k.versions[6].Kind, k.versions[6].BaseSHA256, k.versions[6].FullSHA256 = schemas.KindLoRA, "full1", ""
	for _, c := range []struct {
		name string
		cfg  Config
		pins []int64
		want string
	}{
		{"what a restart trains again", Config{KeepVersions: 1}, nil, "0 14 15 16 17 18 19 20 21 22 23 24"},
		{"pinned in the middle of a chain", Config{KeepVersions: 1}, []int64{10}, "0 7 8 9 10 14 15 16 17 18 19 20 21 22 23 24"},
		{"a full one", Config{KeepVersions: 1, KeepEvery: 7}, nil, "0 7 14 15 16 17 18 19 20 21 22 23 24"},
		{"an adapter", Config{KeepVersions: 1}, []int64{6}, "0 1 6 14 15 16 17 18 19 20 21 22 23 24"},
	} {
		kept := map[string]bool{}
		for _, ref := range k.kept(c.cfg, nil, c.pins) {
			kept[ref.URI] = true
		}
		var got []string
		for i, v := range k.versions {
			if kept[v.Weights.URI] {
				got = append(got, fmt.Sprint(i))
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: weights of %v are kept, want %s", c.name, got, c.want)
		}
	}
	k.versions[10].BaseSHA256 = "gone"
	if refs := k.kept(Config{KeepVersions: 1}, nil, []int64{10}); !slices.ContainsFunc(refs, func(r schemas.BlobRef) bool { return r.URI == "weights/10" }) {
		t.Error("a version of which nothing can be made lost its weights")
	}
}

// TestMark takes the position of the reader that is furthest behind; one that has written no state yet needs everything.
func TestMark(t *testing.T) {
	readers := map[string][]string{"traces": {"scorer", "other"}, "tasks.": {"envserver"}}
	k := history(25)
	state := func(stage, topic string, partition int32, low int64) {
		k.states[position{stage, topic, partition}] = &schemas.StageState{LowOffset: low}
	}
	state("scorer", "traces", 0, 70)
	state("other", "traces", 0, 50)
	state("scorer", "traces", 1, 70)
	state("envserver", "tasks.catch", 4, 9)
	for _, c := range []struct {
		topic     string
		partition int32
		want      int64
	}{
		{"traces", 0, 50}, {"traces", 1, 0}, {"traces", 2, 0}, {"tasks.catch", 4, 9}, {"tasks.catch", 3, 0},
		{"batches", 0, 60}, {"batches", 1, 0}, {"samples", 0, 0},
	} {
		if got := k.mark(readers, c.topic, c.partition); got != c.want {
			t.Errorf("%s/%d: records below %d go, want %d", c.topic, c.partition, got, c.want)
		}
	}
}

func TestConfig(t *testing.T) {
	run := pipeline.DefaultRunConfig()
	for key, change := range map[string]func(c *Config){
		"cleanup.every":         func(c *Config) { c.Every = -1 },
		"cleanup.grace":         func(c *Config) { c.Grace = minGrace - 1 },
		"cleanup.keep_versions": func(c *Config) { c.KeepVersions = int64(run.MaxOffPolicySteps) },
		"cleanup.keep_every":    func(c *Config) { c.KeepEvery = -1 },
	} {
		cfg := DefaultConfig()
		change(&cfg)
		if err := cfg.agree(run); err == nil || !strings.HasPrefix(err.Error(), key+" ") {
			t.Errorf("%s: error %v", key, err)
		}
	}
	if err := DefaultConfig().agree(run); err != nil {
		t.Error(err)
	}
	if !heavy("tasks.x") || heavy(pipeline.TopicState) || heavy(pipeline.TopicPolicies) {
		t.Error("the wrong topics lose records")
	}
}
