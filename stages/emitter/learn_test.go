package emitter

import (
	"maps"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
)

func TestOnlyScoredGroupsAreLearntFrom(t *testing.T) {
	nan, one := math.NaN(), 1.0
	for fate, want := range map[string]bool{
		schemas.FatePacked: true, schemas.FateFiltered: true, schemas.FateStale: true, schemas.FateOverlong: true,
		schemas.FateErrored: false, schemas.FateTimedOut: false, schemas.FateCancelled: false,
	} {
		cfg := DefaultConfig()
		cfg.Mix = MixProgress
		w := ready(t, testRun(), cfg, testEnvs())
		w.tick(second)
		task := w.tasks[0]
		o := &schemas.GroupOutcome{Env: task.Env, GroupID: task.GroupID, Fate: fate, Rollouts: []schemas.RolloutFate{{Reward: &one}, {Reward: nil}, {Reward: &nan}}}
		w.feed(pipeline.TopicOutcomes, w.offset(), o)
		learnt := w.core().mix.(*Progress).envs
		if a, ok := learnt[task.Env]; ok != want || want && a != [3]float64{1, 1, 1} {
			t.Errorf("%s: %v", fate, learnt)
		}
		before, three := maps.Clone(learnt), 3.0
		o.Rollouts[0].Reward = &three
		w.feed(pipeline.TopicOutcomes, w.offset(), o) // the same again
		if !maps.Equal(learnt, before) {
			t.Errorf("%s: learnt twice from one group: %v, and before %v", fate, learnt, before)
		}
	}
}

// learners are configurations that learn from outcomes, each in its own way.
func learners() map[string]func(*Config, map[string]EnvConfig) {
	return map[string]func(*Config, map[string]EnvConfig){
		"progress, pools": func(cfg *Config, envs map[string]EnvConfig) {
			cfg.Mix = MixProgress
			change(envs, func(c *EnvConfig) { c.Curriculum = poolsConfig(nil); c.Curriculum.Remember = 4 })
		},
		"tokens, gate": func(cfg *Config, envs map[string]EnvConfig) {
			cfg.Mix = MixTokens
			change(envs, func(c *EnvConfig) { c.Curriculum = gateConfig(nil) })
		},
	}
}

func change(envs map[string]EnvConfig, f func(*EnvConfig)) {
	for name, c := range envs {
		f(&c)
		envs[name] = c
	}
}

// byTask rewards some tasks always, some never, and some at times.
func byTask(g *schemas.Task, index int) float64 {
	switch g.TaskIndex % 3 {
	case 0:
		return 1
	case 1:
		return 0
	}
	return float64((g.GroupID + int64(index)) % 2)
}

func TestRestartAnywhereWhileLearning(t *testing.T) {
	for name, set := range learners() {
		t.Run(name, func(t *testing.T) {
			run, cfg, envs := testRun(), DefaultConfig(), testEnvs()
			set(&cfg, envs)
			change(envs, func(c *EnvConfig) { c.GroupSize = 4 })
			cfg.Staleness = StalenessWait
			w := newWorld(t, run, cfg, envs)
			w.record, w.score = true, byTask
			w.table(policy(0, false))
			w.table(info("catch", 10))
			w.table(info("wordle", 7))
			rng := rand.New(rand.NewPCG(5, 6))
			for range 20 {
				w.table(info("catch", 10))
				w.table(info("wordle", 7))
				w.live(rng, 8)
				w.table(policy(w.core().packed, false))
				if len(w.open) > 0 { // who waits needs it
					w.outcome(w.open[0], 0)
				}
			}
			if len(w.groups) < 40 {
				t.Errorf("only %d groups", len(w.groups))
			}
			pipelinetest.Check(t, w.r.New, w.steps)
		})
	}
}

// TestOrderedLearningIsTheSameWheneverThingsCome: outcomes come in the order of ids, as the packer writes them; ticks,
// versions, requests and evals come between them as they like.
func TestOrderedLearningIsTheSameWheneverThingsCome(t *testing.T) {
	for name, set := range learners() {
		t.Run(name, func(t *testing.T) {
			play := func(seed uint64) string {
				rng := rand.New(rand.NewPCG(seed, 0))
				cfg, envs := DefaultConfig(), testEnvs()
				set(&cfg, envs)
				run := orderedRun()
				run.MaxSteps = 12
				w := ready(t, run, cfg, envs)
				w.score = byTask
				idle := func() {
					for range rng.IntN(4) {
						w.tick(second)
					}
					switch rng.IntN(4) {
					case 0:
						w.r.Restart(t)
					case 1:
						reward := rng.Float64()
						w.feed(pipeline.TopicOutcomes, w.offset(), &schemas.GroupOutcome{
							Env: "catch", Eval: "e", GroupID: w.open[0], Fate: schemas.FateEvaluated, Rollouts: []schemas.RolloutFate{{Reward: &reward, Tokens: 99}},
						})
					}
				}
				for step := int64(1); step <= 12; step++ {
					w.tick(second)
					idle()
					if step%3 == 0 {
						w.wave(step, 2, 7)
						w.tick(second)
					}
					early := rng.IntN(2) == 0
					if early {
						w.table(policy(step, false))
					}
					for len(w.open) > 0 {
						idle()
						w.outcome(w.open[0], step)
					}
					if !early {
						w.table(policy(step, false))
					}
				}
				return describe(w.tasks)
			}
			want := play(0)
			for seed := range uint64(8) {
				if got := play(seed); got != want {
					t.Fatalf("seed %d emits\n%s\nwant\n%s", seed, got, want)
				}
			}
		})
	}
}

func TestLearningChangesWhatIsEmitted(t *testing.T) {
	for name, set := range learners() {
		play := func(score func(*schemas.Task, int) float64) string {
			cfg, envs := DefaultConfig(), testEnvs()
			set(&cfg, envs)
			w := ready(t, testRun(), cfg, envs)
			w.score = score
			for range 30 {
				w.tick(second)
				for range 3 {
					w.outcome(w.open[0], 0)
				}
			}
			return describe(w.tasks)
		}
		if play(byTask) == play(func(g *schemas.Task, i int) float64 { return float64(g.TaskIndex+int64(i)) + float64(g.GroupID)*0.1 }) {
			t.Errorf("%s: other rewards, and the same tasks", name)
		}
	}
}

func TestFrozenPolicies(t *testing.T) {
	run, cfg, envs := testRun(), DefaultConfig(), testEnvs()
	run.MaxOffPolicySteps = 1
	c := envs["catch"]
	c.Policy, c.Teacher = "teacher-1", schemas.TeacherSelf
	envs["catch"] = c
	cfg.Permits = 200
	w := ready(t, run, cfg, envs)
	w.tick(second)
	w.table(policy(1, true))
	w.tick(second)
	for _, task := range w.tasks {
		want, most := "", 1
		if task.Env == "catch" {
			want, most = "teacher-1", -1
		}
		if task.Policy != want || task.MaxOffPolicySteps != most {
			t.Fatalf("task %+v", task)
		}
	}
	for _, trace := range w.traces {
		if (trace.Policy == "teacher-1") != (trace.Env == "catch") {
			t.Fatalf("trace %+v", trace)
		}
	}
	if len(w.traces) == 0 {
		t.Error("no rollout was cancelled")
	}
	// What never goes stale is not held back by versions: without a live environment the permits are the only bound.
	delete(envs, "wordle")
	for _, cfg.Staleness = range []string{StalenessDrop, StalenessWait} {
		w = newWorld(t, run, cfg, envs)
		w.table(policy(0, false))
		w.table(info("catch", 10))
		if w.tick(second); w.rolloutsOpen() != 200 {
			t.Errorf("%s: %d rollouts open of 200 permits", cfg.Staleness, w.rolloutsOpen())
		}
	}
}
