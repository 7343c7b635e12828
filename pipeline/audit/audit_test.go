package audit

import (
	"bytes"
	"errors"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// A log as the stages write it has no violation.
func TestValidLog(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		r := newLog(t, ordered).audit(Config{Ended: true})
		if r.Total() != 0 || len(r.Violations) != 0 {
			t.Errorf("ordered %v:\n%v", ordered, r)
		}
		groups, packed, repeated := int64(7), int64(4), int64(1)
		if ordered {
			groups, repeated = 4, 0
		}
		if r.Groups != groups || r.Rollouts != 2*groups || r.Packed != packed || r.Steps != 2 || r.Versions != 3 || r.EvalGroups != 1 ||
			r.Repeated != repeated || r.Samples != 4*packed {
			t.Errorf("ordered %v: counted\n%v", ordered, r)
		}
	}
}

// Every violation that is planted into a valid log is found, under its invariant.
func TestPlanted(t *testing.T) {
	tables := []struct {
		name    string
		planted []planted
	}{
		{"groups", plantedGroups}, {"batches", plantedBatches}, {"policies", plantedPolicies}, {"states", plantedStates},
		{"samples", plantedSamples}, {"tokens", plantedTokens}, {"ordered", plantedOrdered},
	}
	for _, table := range tables {
		for _, p := range table.planted {
			t.Run(table.name+"/"+p.name, func(t *testing.T) {
				l := newLog(t, table.name == "ordered")
				p.plant(l)
				expect(t, l.audit(Config{Ended: !p.open}), p.invariant, p.text)
			})
		}
	}
}

// planted is a violation: how a valid log becomes one that has it, and what must be said of it.
type planted struct {
	name      string
	open      bool // the run has not ended
	plant     func(l *testLog)
	invariant Invariant
	text      string
}

func expect(t *testing.T, r *Report, inv Invariant, text string) {
	t.Helper()
	for _, v := range r.Violations {
		if v.Invariant == inv && strings.Contains(v.Text, text) {
			if r.Count[inv] == 0 || !strings.Contains(r.String(), v.Text) {
				t.Errorf("not in the table:\n%v", r)
			}
			return
		}
	}
	t.Errorf("%s: nothing says %q:\n%v", inv, text, r)
}

func taskOf(l *testLog, id int64, index int) (*record, *schemas.Task) {
	return find[*schemas.Task](l, pipeline.TopicTasks("e"), func(v *schemas.Task) bool { return v.Eval == "" && v.GroupID == id && v.RolloutIndex == index })
}

func traceRecord(l *testLog, id int64, index int) (*record, *schemas.Trace) {
	return find[*schemas.Trace](l, pipeline.TopicTraces, func(v *schemas.Trace) bool { return v.GroupID == id && v.RolloutIndex == index })
}

func samplesOf(l *testLog, id int64) (*record, *schemas.SampleGroup) {
	return find[*schemas.SampleGroup](l, pipeline.TopicSamples, func(v *schemas.SampleGroup) bool { return v.GroupID == id })
}

func outcomeOf(l *testLog, id int64) (*record, *schemas.GroupOutcome) {
	return find[*schemas.GroupOutcome](l, pipeline.TopicOutcomes, func(v *schemas.GroupOutcome) bool { return v.Eval == "" && v.GroupID == id })
}

func batchOf(l *testLog, step int64, rank int) (*record, *schemas.MicroBatch) {
	return find[*schemas.MicroBatch](l, pipeline.TopicBatches, func(v *schemas.MicroBatch) bool { return v.Step == step && v.Rank == rank })
}

func version(l *testLog, n int64) (*record, *schemas.PolicyVersion) {
	return find[*schemas.PolicyVersion](l, pipeline.TopicPolicies, func(v *schemas.PolicyVersion) bool { return v.Version == n })
}

var plantedGroups = []planted{
	{"trace of nothing", false, func(l *testLog) {
		_, trace := traceRecord(l, 6, 0)
		stray := *trace
		stray.GroupID = 88
		l.put(pipeline.TopicTraces, 0, &stray)
	}, OneOutcome, "group 88 has records and was never emitted"},
	{"rollout too many", false, func(l *testLog) {
		_, o := outcomeOf(l, 6)
		o.Rollouts = append(o.Rollouts, o.Rollouts[0])
	}, OneOutcome, "the outcome of group 6 speaks of 3 rollouts, 2 were emitted"},
	{"rollout twice in a SampleGroup", false, func(l *testLog) {
		_, sg := samplesOf(l, 5)
		sg.Rollouts[1].RolloutIndex = 0
	}, OneOutcome, "speaks of rollout 0 of group 5 twice"},
	{"samples of a rollout that is filtered", false, func(l *testLog) {
		_, sg := samplesOf(l, 1)
		sg.Rollouts[0].Fate = schemas.FateFiltered
	}, OneOutcome, `rollout 0 of group 1 has 2 samples and fate "filtered"`},
	{"trace of an eval among those of training", false, func(l *testLog) {
		l.put(pipeline.TopicTraces, 0, l.last(pipeline.TopicEvalTraces, 0).Value)
	}, BadInput, `a trace of eval "q"`},
	{"task that is no object", false, func(l *testLog) {
		for i := range groupSize {
			_, task := taskOf(l, 2, i)
			task.Task = "[1]"
		}
	}, NoEnvironment, "the task is not the one of group 2"},
	{"two outcomes", false, func(l *testLog) {
		_, o := outcomeOf(l, 0)
		l.put(pipeline.TopicOutcomes, 0, o)
	}, OneOutcome, "group 0 has 2 outcomes"},
	{"no outcome", false, func(l *testLog) {
		r, _ := outcomeOf(l, 5)
		l.drop(r)
	}, OneOutcome, "group 5 of e has no outcome (2 of 2"},
	{"no outcome of an eval", false, func(l *testLog) {
		r, _ := find[*schemas.GroupOutcome](l, pipeline.TopicOutcomes, func(v *schemas.GroupOutcome) bool { return v.Eval == "q" })
		l.drop(r)
	}, OneOutcome, "group q/0 of e has no outcome"},
	{"outcome of nothing", false, func(l *testLog) {
		l.put(pipeline.TopicOutcomes, 0, &schemas.GroupOutcome{Env: "e", GroupID: 77, Fate: schemas.FateErrored})
	}, OneOutcome, "group 77 has records and was never emitted"},
	{"hole in the ids", false, func(l *testLog) {
		t := l.task(9, 0)
		l.ask(t)
	}, OneOutcome, "group 9 is the last of 8 groups: 2 were never emitted"},
	{"task twice", false, func(l *testLog) {
		_, task := taskOf(l, 3, 1)
		l.put(pipeline.TopicTasks("e"), 0, task)
	}, OneOutcome, "group 3, rollout 1, attempt 0 was emitted before"},
	{"rollout not emitted", false, func(l *testLog) {
		r, _ := taskOf(l, 3, 1)
		l.drop(r)
	}, OneOutcome, "group 3: rollout 1 of 2 was never emitted"},
	{"attempt not emitted", false, func(l *testLog) {
		_, trace := traceRecord(l, 6, 0)
		trace.Attempt = 1
	}, OneOutcome, "rollout 0 of group 6, attempt 1, was never emitted"},
	{"scored twice", false, func(l *testLog) {
		_, sg := samplesOf(l, 1)
		l.put(pipeline.TopicSamples, 0, sg)
	}, OneOutcome, "group 1 was scored 2 times"},
	{"decided without a score", false, func(l *testLog) {
		r, _ := samplesOf(l, 5)
		l.drop(r)
	}, OneOutcome, "group 5 has an outcome and was never scored"},
	{"SampleGroup without a rollout", false, func(l *testLog) {
		_, sg := samplesOf(l, 5)
		sg.Rollouts = sg.Rollouts[:1]
	}, OneOutcome, "speaks of 1 of the 2 rollouts of group 5"},
	{"other fate than the SampleGroup's", false, func(l *testLog) {
		_, o := outcomeOf(l, 2)
		o.Fate, o.Filter = schemas.FateErrored, ""
	}, OneOutcome, `the outcome of group 2 is "errored" ""`},
	{"other filter than the SampleGroup's", false, func(l *testLog) {
		_, o := outcomeOf(l, 2)
		o.Filter = "another"
	}, OneOutcome, `is "filtered" "another"`},
	{"other reward than the SampleGroup's", false, func(l *testLog) {
		_, o := outcomeOf(l, 1)
		o.Rollouts[0].Reward = new(9.0)
	}, OneOutcome, "rollout 0 of group 1 is not as its SampleGroup"},
	{"other fate of a rollout", false, func(l *testLog) {
		_, o := outcomeOf(l, 1)
		o.Rollouts[1].Fate = schemas.FateOverlong
	}, OneOutcome, `rollout 1 of group 1 is "overlong"`},
	{"outcome of another task", false, func(l *testLog) {
		_, o := outcomeOf(l, 1)
		o.TaskIndex++
	}, OneOutcome, "the outcome of group 1 speaks of task 102"},
	{"eval result twice", false, func(l *testLog) {
		_, v := find[*schemas.EvalResult](l, pipeline.TopicEvals, func(*schemas.EvalResult) bool { return true })
		l.put(pipeline.TopicEvals, 0, v)
	}, OneOutcome, "eval q of version 0 has a second result"},
	{"reward of a failure", false, func(l *testLog) {
		_, trace := traceRecord(l, 6, 0)
		trace.Reward = new(0.0)
	}, OneOutcome, "and has a reward"},
	{"outcome without a rollout", false, func(l *testLog) {
		_, o := outcomeOf(l, 6)
		o.Rollouts = o.Rollouts[:1]
	}, TrainedOnce, "does not say what became of rollout 1 of 2"},
	{"rollout without a fate", false, func(l *testLog) {
		_, o := outcomeOf(l, 6)
		o.Rollouts[1].Fate = ""
	}, TrainedOnce, "does not say what became of rollout 1 of 2"},
	{"eval outcome of no trace", false, func(l *testLog) {
		_, o := find[*schemas.GroupOutcome](l, pipeline.TopicOutcomes, func(v *schemas.GroupOutcome) bool { return v.Eval == "q" })
		o.Rollouts[0].Reward = new(7.0)
	}, TrainedOnce, "rollout 0 of group q/0 (attempt 0, reward 7"},
	{"tasks of a group differ", false, func(l *testLog) {
		_, task := taskOf(l, 2, 1)
		task.GroupSeed++
	}, Determinism, "the tasks of group 2 are not of one task"},
	{"trace of another task", false, func(l *testLog) {
		_, trace := traceRecord(l, 2, 1)
		trace.TaskIndex++
	}, Determinism, "is not of the task of group 2"},
	{"trace of another seed", false, func(l *testLog) {
		_, trace := traceRecord(l, 2, 1)
		trace.Seed = 77
	}, Determinism, "rollout 1 of group 2 has seed 77, its task says 0"},
	{"SampleGroup of another task", false, func(l *testLog) {
		_, sg := samplesOf(l, 2)
		sg.TaskIndex++
	}, Determinism, "is not of the task of group 2"},
	{"field of the task lost", false, func(l *testLog) {
		_, trace := traceRecord(l, 2, 1)
		trace.Task = strings.Replace(trace.Task, "unknown", "known", 1)
	}, NoEnvironment, `field "unknown" of the task of group 2`},
	{"traces of different tasks", false, func(l *testLog) {
		_, trace := traceRecord(l, 2, 1)
		trace.Task = strings.Replace(trace.Task, "true", "false", 1)
	}, NoEnvironment, "is not that of the other traces of group 2"},
	{"task on another environment's topic", false, func(l *testLog) {
		_, task := taskOf(l, 2, 1)
		task.Env = "other"
	}, NoEnvironment, "a task of environment other"},
}

var plantedBatches = []planted{
	{"other number of ranks", false, func(l *testLog) {
		_, b := batchOf(l, 1, 0)
		b.Ranks = 3
	}, TrainedOnce, "one of 3 micro-batches and 3 ranks, the rank has 3 and the run 2 ranks"},
	{"dummy that is trained on", false, func(l *testLog) {
		_, b := batchOf(l, 1, 0)
		b.Samples, b.SeqLens = nil, nil
	}, TrainedOnce, "has no samples and trains on tokens"},
	{"sample longer than its micro-batch", false, func(l *testLog) {
		_, b := batchOf(l, 1, 0)
		b.SeqLens = schemas.PackInt32s([]int32{8, 80})
	}, TokenExactness, "sample 1 ends at token 88 of"},
	{"sample of another environment", false, func(l *testLog) {
		_, b := batchOf(l, 1, 0)
		b.Samples[0].Env = "other"
	}, TrainedOnce, "is of environment other, its tasks of e"},
	{"step left out", false, func(l *testLog) {
		for rank := range l.run.Ranks {
			for r, _ := batchOf(l, 1, rank); r != nil; r, _ = batchOf(l, 1, rank) {
				l.drop(r)
			}
		}
	}, TrainedOnce, "step 2 stands where step 1 must be"},
	{"sample in two steps", false, func(l *testLog) {
		_, first := batchOf(l, 1, 0)
		_, second := batchOf(l, 2, 0)
		second.Samples[0] = first.Samples[0]
	}, TrainedOnce, "is in step 2, and in step 1"},
	{"outcome names another step", false, func(l *testLog) {
		_, o := outcomeOf(l, 0)
		*o = schemas.GroupOutcome{Env: o.Env, GroupID: o.GroupID, TaskIndex: o.TaskIndex, Fate: o.Fate, Rollouts: o.Rollouts, Step: new(int64(2))}
	}, TrainedOnce, "is in step 1, its group's outcome does not say so"},
	{"packed without a step", false, func(l *testLog) {
		_, o := outcomeOf(l, 0)
		o.Step = nil
	}, TrainedOnce, "the outcome of group 0 is packed with step none"},
	{"sample not packed", false, func(l *testLog) {
		_, b := batchOf(l, 2, 1)
		b.Samples[0].Branch = 7
	}, TrainedOnce, "is in no batch, its group is packed"},
	{"sample of nothing", false, func(l *testLog) {
		_, b := batchOf(l, 2, 1)
		b.Samples[0].Branch = 7
	}, TrainedOnce, "branch 7 is a sample of no SampleGroup"},
	{"micro-batch lost", false, func(l *testLog) {
		r, _ := batchOf(l, 1, 1)
		l.drop(r)
	}, TrainedOnce, "step 1 has 2 of 3 micro-batches of rank 1"},
	{"rank lost", false, func(l *testLog) {
		for {
			r, _ := batchOf(l, 2, 1)
			if r == nil {
				return
			}
			l.drop(r)
		}
	}, TrainedOnce, "step 2 has no micro-batch of rank 1"},
	{"micro-batch twice", false, func(l *testLog) {
		r := l.last(pipeline.TopicBatches, 0)
		l.put(pipeline.TopicBatches, 0, r.Value)
	}, TrainedOnce, "micro-batch 2 of step 2 comes after micro-batch 2 of step 2"},
	{"micro-batch of another rank", false, func(l *testLog) {
		_, b := batchOf(l, 1, 0)
		b.Rank = 1
	}, TrainedOnce, "batches/0@0 is of rank 1"},
	{"loss tokens", false, func(l *testLog) {
		_, b := batchOf(l, 1, 0)
		b.LossTokens = []schemas.LossTokens{{Component: "rl", Tokens: 1}}
	}, TrainedOnce, "says that it has 1 tokens of loss rl"},
	{"tokens of a loss that is not named", false, func(l *testLog) {
		_, b := batchOf(l, 1, 0)
		b.CeWeights = b.Temperatures
	}, TrainedOnce, "step 1 says that it has 0 tokens of loss ce, and has"},
	{"loss without tokens", false, func(l *testLog) {
		for _, r := range l.records {
			if b, ok := r.Value.(*schemas.MicroBatch); ok {
				b.LossTokens = append(b.LossTokens, schemas.LossTokens{Component: "ref_kl", Tokens: 2})
			}
		}
	}, TrainedOnce, "step 1 says that it has 2 tokens of loss ref_kl, and has 0"},
	{"loss tokens differ", false, func(l *testLog) {
		_, b := batchOf(l, 2, 1)
		b.LossTokens = []schemas.LossTokens{{Component: "rl", Tokens: 1}}
	}, TrainedOnce, "other micro-batches of step 2 say"},
	{"too long", false, func(l *testLog) { l.run.SeqLen = 15 }, TrainedOnce, "16 tokens, seq_len is 15"},
	{"beyond the last step", false, func(l *testLog) { l.run.MaxSteps = 1 }, TrainedOnce, "step 2 was cut, max_steps is 1"},
	{"stale", false, func(l *testLog) { l.run.MaxOffPolicySteps = 0 }, Staleness, "is 1 off-policy steps old in step 2, the most is 0"},
	{"stale whatever is said of it", false, func(l *testLog) {
		l.run.MaxOffPolicySteps = 0
		_, sg := samplesOf(l, 3)
		for i := range sg.Samples {
			sg.Samples[i].PolicyStart = new(int64(1))
		}
		for _, r := range l.records {
			if b, ok := r.Value.(*schemas.MicroBatch); ok && b.Step == 2 {
				for i := range b.Samples {
					b.Samples[i].PolicyStart = new(int64(1))
				}
			}
		}
	}, Staleness, "group 3, rollout 0, branch 0 is 1 off-policy steps old in step 2, the most is 0"},
	{"from the future", false, func(l *testLog) {
		for index := range groupSize {
			_, trace := traceRecord(l, 0, index)
			for i := range trace.Nodes {
				for k := range trace.Nodes[i].Versions {
					trace.Nodes[i].Versions[k].Version = 1
				}
			}
		}
	}, Staleness, "group 0, rollout 0, branch 0 is -1 off-policy steps old in step 1"},
	{"batch says another version", false, func(l *testLog) {
		_, b := batchOf(l, 2, 1)
		b.Samples[0].PolicyStart = new(int64(1))
		_, b = batchOf(l, 2, 0)
		b.Samples[0].PolicyStart = new(int64(1))
	}, Staleness, "says policy_start 1, its tokens were sampled from 0 on"},
	{"order in a micro-batch", false, func(l *testLog) {
		_, b := batchOf(l, 1, 0)
		b.Samples[0], b.Samples[1] = b.Samples[1], b.Samples[0]
	}, Determinism, "comes after group"},
	{"order of outcomes", false, func(l *testLog) {
		r0, _ := outcomeOf(l, 0)
		r1, _ := outcomeOf(l, 1)
		r0.Value, r1.Value = r1.Value, r0.Value
	}, Determinism, "group 0 of step 1 comes after group 1 of step 1"},
	{"cut too early", false, func(l *testLog) { l.run.BatchSize = 5 }, Determinism, "step 1 was cut at 4 rollouts, batch_size is 5"},
	{"other tokens than the SampleGroup's", false, func(l *testLog) {
		_, b := batchOf(l, 1, 0)
		b.TokenIDs[0]++
	}, TokenExactness, "are not those of its SampleGroup"},
	{"other advantages than the SampleGroup's", false, func(l *testLog) {
		_, b := batchOf(l, 1, 0)
		b.Advantages[len(b.Advantages)-2] ^= 1
	}, TokenExactness, "are not those of its SampleGroup"},
	{"other weights than the SampleGroup's", false, func(l *testLog) {
		_, b := batchOf(l, 1, 0)
		b.CeWeights = b.Temperatures
	}, TokenExactness, "are not those of its SampleGroup"},
	{"another teacher than the SampleGroup's", false, func(l *testLog) {
		_, b := batchOf(l, 1, 0)
		b.RefKlWeights, b.RefLogprobs = make(schemas.Float32s, len(b.Temperatures)), b.Temperatures
	}, TokenExactness, "are not those of its SampleGroup"},
	{"weights of unequal length", false, func(l *testLog) {
		_, b := batchOf(l, 1, 0)
		b.CeWeights = b.Temperatures[4:]
	}, TokenExactness, "tensors of unequal length"},
	{"tensors of unequal length", false, func(l *testLog) {
		_, b := batchOf(l, 1, 0)
		b.Mask = b.Mask[1:]
	}, TokenExactness, "tensors of unequal length"},
}

var plantedPolicies = []planted{
	{"gap", false, func(l *testLog) {
		r, _ := version(l, 1)
		l.drop(r)
	}, TrainedOnce, "is version 2, version 1 must come: the log has a gap or a fork"},
	{"fork", false, func(l *testLog) {
		r, v := version(l, 2)
		fork := *v
		fork.Version, fork.Step, fork.Final = 1, 1, false
		l.put(pipeline.TopicPolicies, 0, r.Value)
		r.Value = &fork
	}, TrainedOnce, "is version 1, version 2 must come: the log has a gap or a fork"},
	{"another step", false, func(l *testLog) {
		_, v := version(l, 1)
		v.Step = 2
	}, TrainedOnce, "version 1 was made by step 2"},
	{"offsets", false, func(l *testLog) {
		_, v := version(l, 1)
		v.NextOffsets[1]--
	}, TrainedOnce, "version 1 goes on at offset 2 of rank 1, its step ends at 3"},
	{"offset of a rank missing", false, func(l *testLog) {
		_, v := version(l, 1)
		v.NextOffsets = v.NextOffsets[:1]
	}, TrainedOnce, "holds the offsets of 1 ranks of 2"},
	{"final too early", false, func(l *testLog) {
		_, v := version(l, 1)
		v.Final = true
	}, TrainedOnce, "version 2 comes after the final one"},
	{"final before the end", false, func(l *testLog) {
		_, v := version(l, 1)
		v.Final = true
	}, TrainedOnce, "version 1 of 2 has final = true"},
	{"not final", false, func(l *testLog) {
		_, v := version(l, 2)
		v.Final = false
	}, TrainedOnce, "none of its 3 versions is final"},
	{"version of nothing", false, func(l *testLog) {
		for rank := range l.run.Ranks {
			for r, _ := batchOf(l, 2, rank); r != nil; r, _ = batchOf(l, 2, rank) {
				l.drop(r)
			}
		}
	}, TrainedOnce, "version 2 was made by a step that is not in the batches"},
	{"skipped with other weights", false, func(l *testLog) {
		_, v := version(l, 1)
		v.Skipped = true
	}, TrainedOnce, "version 1 made no update and has other weights"},
	{"another run's in the middle", false, func(l *testLog) {
		_, v := version(l, 1)
		v.FromRun = "x"
	}, TrainedOnce, "version 1 is said to be of run x, and is not the first"},
	{"another run's of another number", false, func(l *testLog) {
		_, v := version(l, 0)
		v.FromRun, v.Version, v.Step = "x", 7, 7
	}, TrainedOnce, "is version 1, version 8 must come"},
	{"base of a full version", false, func(l *testLog) {
		_, v := version(l, 1)
		v.BaseSHA256 = "x"
	}, TrainedOnce, "version 1 is full and has the base x"},
	{"no base of a delta", false, func(l *testLog) {
		_, v := version(l, 1)
		v.Kind = "delta"
	}, TrainedOnce, `version 1 is a delta of "", which no version before it has`},
	{"unknown kind", false, func(l *testLog) {
		_, v := version(l, 1)
		v.Kind = "half"
	}, TrainedOnce, `version 1 is of kind "half"`},
	{"weights without a SHA-256", false, func(l *testLog) {
		_, v := version(l, 1)
		v.Weights.SHA256 = "ab"
	}, TrainedOnce, `with SHA-256 "ab"`},
	{"weights that are not there", false, func(l *testLog) {
		_, v := version(l, 1)
		v.Weights.URI += "0"
	}, TrainedOnce, "version 1: read blob"},
	{"other weights", false, func(l *testLog) {
		_, v := version(l, 1)
		v.Weights.URI = v.Config.URI
	}, TrainedOnce, "is not the one its record names"},
	{"sampled by an unknown version", false, func(l *testLog) {
		r, _ := version(l, 2)
		l.drop(r)
		r, _ = version(l, 1)
		l.drop(r)
	}, Staleness, "was sampled by version 1, the newest is 0"},
}

var plantedStates = []planted{
	{"dlq names nothing", false, func(l *testLog) {
		l.last(pipeline.TopicDLQ, 0).Key = "traces"
	}, BadInput, "want topic/partition/offset"},
	{"next offset goes back", false, func(l *testLog) {
		l.packer.next--
		l.state(l.packer)
	}, Crash, "next offset 6, and 7 before"},
	{"low offset goes back", false, func(l *testLog) {
		l.packer.open[2] = true
		l.state(l.packer)
	}, Crash, "low offset 2, and 7 before"},
	{"finished comes back", true, func(l *testLog) {
		s := l.others[stateKey{"envserver", part{pipeline.TopicTasks("e"), 0}}]
		held := *s
		held.open = map[int64]bool{0: true}
		l.records = dropStates(l, "envserver")
		l.state(&held)
		held.open = map[int64]bool{0: true, 3: true}
		l.state(&held)
	}, Crash, "offset 3 is unfinished, and was finished before"},
	{"low offset is not the oldest", false, func(l *testLog) {
		v := l.last(pipeline.TopicState, 3).Value.(*schemas.StageState)
		v.LowOffset--
	}, Crash, "low offset 6, the oldest unfinished record is 7"},
	{"damaged set", false, func(l *testLog) {
		v := l.last(pipeline.TopicState, 3).Value.(*schemas.StageState)
		v.Unfinished = []byte("x")
	}, Crash, "unfinished set"},
	{"ahead of the topic", false, func(l *testLog) {
		l.packer.next += 5
		l.state(l.packer)
	}, Crash, "packer has read samples/0 to offset 12, the last record is before 7"},
	{"keeps what does not exist", true, func(l *testLog) {
		s := l.others[stateKey{"envserver", part{pipeline.TopicTasks("e"), 1}}]
		s.open[s.next] = true
		s.next++
		l.state(s)
	}, Crash, "envserver has 1 unfinished records of tasks.e/1, of which 0 exist"},
	{"another partition", false, func(l *testLog) {
		v := l.last(pipeline.TopicState, 3).Value.(*schemas.StageState)
		l.put(pipeline.TopicState, 0, v)
	}, Crash, "is in partition 0, its stage's is 3"},
	{"unreadable and not in dlq", false, func(l *testLog) {
		l.drop(l.last(pipeline.TopicDLQ, 0))
	}, BadInput, "cannot be read (not a record), scorer has passed it, and dlq does not have it"},
	{"dlq without a reason", false, func(l *testLog) {
		l.last(pipeline.TopicDLQ, 0).Headers["prl-error"] = " "
	}, BadInput, "does not say why scorer refused"},
	{"dlq without a stage", false, func(l *testLog) {
		delete(l.last(pipeline.TopicDLQ, 0).Headers, "prl-stage")
	}, BadInput, "does not say which stage refused"},
	{"dlq names no record", false, func(l *testLog) {
		l.last(pipeline.TopicDLQ, 0).Key = "traces/0/x"
	}, BadInput, `the key "traces/0/x" names no record`},
	{"dlq names a record that does not exist", false, func(l *testLog) {
		l.last(pipeline.TopicDLQ, 0).Key = "traces/1/999"
	}, BadInput, "scorer refused traces/1@999, which does not exist"},
	{"dlq holds other bytes", false, func(l *testLog) {
		l.last(pipeline.TopicDLQ, 0).Raw = []byte("other")
	}, BadInput, "holds other bytes than traces/0@"},
	{"refused and unfinished", true, func(l *testLog) {
		s := l.others[stateKey{"envserver", part{pipeline.TopicTasks("e"), 0}}]
		r := l.last(pipeline.TopicTasks("e"), 0)
		l.refuse(s, r).Raw, _ = schemas.Encode(r.Value)
		l.records = dropStates(l, "envserver")
		s.open[r.Offset] = true
		l.state(s)
	}, BadInput, "is in dlq and still unfinished in the state of envserver"},
	{"kept though decided", true, func(l *testLog) {
		r, _ := traceRecord(l, 2, 1)
		l.records = dropStates(l, "scorer")
		l.scorers[0].open[r.Offset] = true
		l.state(l.scorers[0])
	}, BadInput, "is still unfinished, though group 2 is decided"},
	{"kept by the packer though decided", true, func(l *testLog) {
		r, _ := samplesOf(l, 2)
		l.records = dropStates(l, "packer")
		l.packer.open[r.Offset] = true
		l.state(l.packer)
	}, BadInput, "is still unfinished, though group 2 has its outcome"},
	{"kept at the end", false, func(l *testLog) {
		r := l.last(pipeline.TopicEvalTraces, 0)
		l.records = dropStates(l, "eval")
		s := l.others[stateKey{"eval", part{pipeline.TopicEvalTraces, 0}}]
		s.open[r.Offset] = true
		l.state(s)
	}, BadInput, "is still unfinished, though group q/0 is decided or the run has ended"},
	{"outcome kept", true, func(l *testLog) {
		r, _ := outcomeOf(l, 2)
		l.records = dropStates(l, "emitter")
		s := l.others[stateKey{"emitter", part{pipeline.TopicOutcomes, 0}}]
		s.open[r.Offset] = true
		l.state(s)
	}, BadInput, "is unfinished in the state of emitter"},
	{"finished and never scored", true, func(l *testLog) {
		r, _ := samplesOf(l, 6)
		l.drop(r)
	}, TrainedOnce, "is finished, and group 6 was never scored"},
	{"finished and never decided", true, func(l *testLog) {
		r, _ := outcomeOf(l, 6)
		l.drop(r)
	}, TrainedOnce, "is finished, and group 6 has no outcome"},
	{"finished and never played", true, func(l *testLog) {
		r, _ := traceRecord(l, 6, 1)
		l.drop(r)
	}, TrainedOnce, "is finished, and rollout 1 of group 6 has no trace"},
}

// dropStates takes a stage's state records out of the log.
func dropStates(l *testLog, stage string) (kept []*record) {
	for _, r := range l.records {
		if v, ok := r.Value.(*schemas.StageState); !ok || v.Stage != stage {
			kept = append(kept, r)
		}
	}
	return kept
}

var plantedSamples = []planted{
	{"trained without a reward", false, func(l *testLog) {
		_, sg := samplesOf(l, 1)
		sg.Rollouts[0].Reward = nil
	}, Determinism, "rollout 0 of group 1 has no reward and is trained on"},
	{"rollout of no trace", false, func(l *testLog) {
		_, sg := samplesOf(l, 1)
		sg.Rollouts[0].Reward = new(3.0)
	}, TrainedOnce, "rollout 0 of group 1 (attempt 0, reward 3,"},
	{"branch left out", false, func(l *testLog) {
		_, sg := samplesOf(l, 4)
		sg.Samples = sg.Samples[:3]
	}, TrainedOnce, "branch 1 of rollout 1 of group 4 is left out"},
	{"sample twice", false, func(l *testLog) {
		_, sg := samplesOf(l, 4)
		sg.Samples = append(sg.Samples, sg.Samples[3])
	}, TrainedOnce, "group 4 has the sample of rollout 1, branch 1 twice"},
	{"not the first trace", false, func(l *testLog) {
		first, a := traceRecord(l, 1, 0)
		_, b := find[*schemas.Trace](l, pipeline.TopicTraces, func(v *schemas.Trace) bool { return v.GroupID == 1 && v.RolloutIndex == 0 && v != a })
		first.Value = b
		l.put(pipeline.TopicTraces, 1, a)
	}, Determinism, "rollout 0 of group 1 was not taken from its first trace without error"},
	{"other advantages", false, func(l *testLog) {
		_, sg := samplesOf(l, 1)
		for i := range sg.Samples {
			s := &sg.Samples[i]
			s.Advantages = scaled(s.Advantages, 2)
		}
	}, Determinism, "of group 1 has advantages from -0.5 to -0.5, its reward gives -0.25"},
	{"other policy_start", false, func(l *testLog) {
		_, sg := samplesOf(l, 3)
		sg.Samples[0].PolicyStart = new(int64(1))
	}, Staleness, "rollout 0, branch 0 says policy_start 1, its tokens were sampled from 0 on"},
	{"other tokens than the trace's", false, func(l *testLog) {
		_, sg := samplesOf(l, 1)
		sg.Samples[0].TokenIDs[0]++
	}, TokenExactness, "are those of none of its traces"},
	{"other log-probabilities than the trace's", false, func(l *testLog) {
		_, sg := samplesOf(l, 1)
		sg.Samples[0].Logprobs[len(sg.Samples[0].Logprobs)-4] ^= 1
	}, TokenExactness, "are those of none of its traces"},
	{"shared node trained twice", false, func(l *testLog) {
		_, sg := samplesOf(l, 1)
		copy(sg.Samples[1].Mask, sg.Samples[0].Mask[:6])
	}, TokenExactness, "rollout 0, branch 1 of group 1 trains other tokens than were sampled"},
	{"divergence of a token that was not sampled", false, func(l *testLog) {
		_, sg := samplesOf(l, 1)
		weights := make([]float32, sg.Samples[0].TokenIDs.Len())
		weights[1] = 1
		sg.Samples[0].RefKlWeights, sg.Samples[0].RefLogprobs = schemas.PackFloat32s(weights), schemas.PackFloat32s(weights)
	}, TokenExactness, "rollout 0, branch 0 of group 1 trains other tokens than were sampled"},
	{"weights without the teacher", false, func(l *testLog) {
		_, sg := samplesOf(l, 1)
		sg.Samples[0].RefKlWeights = sg.Samples[0].Temperatures
	}, TokenExactness, "tensors of unequal length"},
	{"other temperatures than the trace's", false, func(l *testLog) {
		_, sg := samplesOf(l, 1)
		sg.Samples[0].Temperatures = scaled(sg.Samples[0].Temperatures, 2)
	}, TokenExactness, "are those of none of its traces"},
	{"advantage where nothing is trained", false, func(l *testLog) {
		_, sg := samplesOf(l, 1)
		copy(sg.Samples[0].Advantages, schemas.PackFloat32s([]float32{1}))
	}, TokenExactness, "advantages where nothing is trained"},
	{"tensors of unequal length", false, func(l *testLog) {
		_, sg := samplesOf(l, 1)
		sg.Samples[0].Mask = sg.Samples[0].Mask[1:]
	}, TokenExactness, "tensors of unequal length"},
}

func scaled(t schemas.Float32s, by float32) schemas.Float32s {
	v := t.Values()
	for i := range v {
		v[i] *= by
	}
	return schemas.PackFloat32s(v)
}

// setLogprob sets the log-probability of token k of an answer.
func setLogprob(l *testLog, k int, p float32) {
	_, trace := traceRecord(l, 2, 1)
	v := trace.Nodes[1].Logprobs.Values()
	v[k] = p
	trace.Nodes[1].Logprobs = schemas.PackFloat32s(v)
}

var plantedTokens = []planted{
	{"log-probability above 0", false, func(l *testLog) { setLogprob(l, 2, 0.5) }, TokenExactness, "nodes.1: token 2 was sampled with log-probability 0.5"},
	{"log-probability not a number", false, func(l *testLog) { setLogprob(l, 2, float32(math.NaN())) }, TokenExactness, "with log-probability NaN"},
	{"log-probability of a prompt", false, func(l *testLog) { setLogprob(l, 0, -1) }, TokenExactness, "token 0 was not sampled and has log-probability -1"},
	{"mask", false, func(l *testLog) {
		_, trace := traceRecord(l, 2, 1)
		trace.Nodes[1].Mask[0] = 2
	}, TokenExactness, "token 0: mask 2"},
	{"lengths", false, func(l *testLog) {
		_, trace := traceRecord(l, 5, 0)
		trace.Nodes[1].Logprobs = trace.Nodes[1].Logprobs.Slice(0, 2)
	}, TokenExactness, "3 tokens, 3 in the mask, 2 log-probabilities"},
	{"temperature", false, func(l *testLog) {
		_, trace := traceRecord(l, 2, 1)
		trace.Nodes[1].Temperature = 0.7
	}, TokenExactness, "was sampled at temperature 0.7, its task says 0.5"},
	{"greedy training", false, func(l *testLog) {
		_, task := taskOf(l, 2, 1)
		task.Temperature = 0
	}, TokenExactness, "group 2 is sampled at temperature 0"},
	{"top_p", false, func(l *testLog) {
		_, task := taskOf(l, 2, 1)
		task.TopP = 0.9
	}, TokenExactness, "group 2 is sampled with top_p 0.9"},
	{"policy_start of a trace", false, func(l *testLog) {
		_, trace := traceRecord(l, 2, 1)
		trace.PolicyStart = nil
	}, Staleness, "says versions none to 0, its tokens were sampled by 0 to 0"},
	{"token of no version", false, func(l *testLog) {
		_, trace := traceRecord(l, 2, 1)
		trace.Nodes[1].Versions[0].Offset = 2
	}, Staleness, "nodes.1: no version is known of sampled token 1"},
}

var plantedOrdered = []planted{
	{"not pinned", false, func(l *testLog) {
		for i := range groupSize {
			_, task := taskOf(l, 1, i)
			task.PinVersion = nil
		}
	}, Determinism, "group 1 of step 1 is not pinned to version 0"},
	{"sampled by another version", false, func(l *testLog) {
		_, trace := traceRecord(l, 2, 1)
		trace.Nodes[1].Versions[0].Version = 0
		trace.PolicyStart = new(int64(0))
	}, Determinism, "is pinned to version 1 and was sampled by 0 to 1"},
	{"outside of its wave", false, func(l *testLog) {
		_, task := taskOf(l, 3, 1)
		task.WaveLast = 2
	}, Determinism, "group 3 of step 2, wave 1, is not among the groups 2 to 2 of the wave"},
	{"packed into another step", false, func(l *testLog) {
		for i := range groupSize {
			_, task := taskOf(l, 1, i)
			task.Step = 2
		}
	}, Determinism, "is in step 1, its task was for step 2"},
}

// What crashes, bad input and a fault harness leave behind is no violation.
// imitate makes step 1 one of a teacher, whose policy gradient has no token, and gives the prompts of group 0 to
// cross-entropy; micro-batches fill up with zeros.
func imitate(l *testLog) {
	var count [2]int64
	weights := func(mask schemas.Uint8s, group int64) (ce, refKL []float32) {
		ce, refKL = make([]float32, len(mask)), make([]float32, len(mask))
		for k, m := range mask {
			refKL[k] = float32(m)
		}
		if group == 0 {
			ce[1] = 0.5
		}
		return ce, refKL
	}
	for id := range int64(2) {
		_, sg := samplesOf(l, id)
		for i := range sg.Samples {
			s := &sg.Samples[i]
			ce, refKL := weights(s.Mask, id)
			count[0] += int64(1 - id)
			count[1] += int64(bytes.Count(s.Mask, []byte{1}))
			if id == 0 {
				s.CeWeights = schemas.PackFloat32s(ce)
			}
			s.RefKlWeights = schemas.PackFloat32s(refKL)
			s.RefLogprobs, s.Advantages, s.Mask = s.RefKlWeights, make(schemas.Float32s, 4*len(s.Mask)), make(schemas.Uint8s, len(s.Mask))
		}
	}
	for _, r := range l.records {
		b, ok := r.Value.(*schemas.MicroBatch)
		if !ok || b.Step != 1 {
			continue
		}
		b.LossTokens = []schemas.LossTokens{{Component: "rl"}, {Component: "ce", Tokens: count[0]}, {Component: "ref_kl", Tokens: count[1]}}
		if len(b.Samples) == 0 {
			continue
		}
		var all, allRefKL []float32
		at := 0
		for i, p := range b.Samples {
			end := at + int(b.SeqLens.At(i))
			ce, refKL := weights(b.Mask[at:end], p.GroupID)
			all, allRefKL, at = append(all, ce...), append(allRefKL, refKL...), end
		}
		b.CeWeights, b.RefKlWeights = schemas.PackFloat32s(all), schemas.PackFloat32s(allRefKL)
		b.RefLogprobs, b.Advantages, b.Mask = b.RefKlWeights, make(schemas.Float32s, 4*len(b.Mask)), make(schemas.Uint8s, len(b.Mask))
	}
}

func TestAllowed(t *testing.T) {
	tests := map[string]func(l *testLog){
		"refused twice": func(l *testLog) {
			d := l.last(pipeline.TopicDLQ, 0)
			again := l.put(pipeline.TopicDLQ, 0, nil)
			again.Key, again.Raw, again.Headers = d.Key, d.Raw, d.Headers
		},
		"injected": func(l *testLog) {
			_, task := taskOf(l, 3, 1)
			_, sg := samplesOf(l, 3)
			_, o := outcomeOf(l, 3)
			for _, r := range []*record{
				l.put(pipeline.TopicTasks("e"), 0, task), l.put(pipeline.TopicSamples, 0, sg), l.put(pipeline.TopicOutcomes, 0, o), l.put(pipeline.TopicDLQ, 0, nil),
			} {
				r.Injected = true
			}
		},
		"SampleGroup that cannot be read": func(l *testLog) {
			l.ask(l.task(7, 0))
			r := l.put(pipeline.TopicSamples, 0, nil)
			r.Key, r.Raw, r.Err = "7", []byte("garbage"), errors.New("not a record")
			l.packer.next++
			var out pipeline.Out
			if err := l.packer.core.(pipeline.Undecoder).Undecodable(r.Record, r.Err, &out); err != nil {
				l.t.Fatal(err)
			}
			l.read("emitter", l.put(pipeline.TopicOutcomes, 0, out.Emitted[0].Value))
			l.refuse(l.packer, r)
			l.state(l.packer)
			l.fail(7, 0, 0, schemas.ErrorTimedOut)
			l.fail(7, 1, 0, schemas.ErrorTimedOut)
		},
		"rollout that was tried again": func(l *testLog) {
			l.ask(l.task(7, 0))
			l.play(7, 0, 1, 1)
			l.fail(7, 1, 0, schemas.ErrorCrashed)
			request := l.last(pipeline.TopicRequests, 0)
			if v := request.Value.(*schemas.Request); v.GroupID != 7 || v.RolloutIndex != 1 || v.Attempt != 1 {
				l.t.Fatalf("%+v", v)
			}
			l.read("emitter", request)
			again := l.task(7, 1)
			again.Attempt = 1
			l.read("envserver", l.put(pipeline.TopicTasks("e"), 1, &again))
			trace := traceOf(&again)
			l.answer(trace, 0, 0.5, 1)
			l.deliver(trace)
			if _, sg := samplesOf(l, 7); len(sg.Samples) == 0 {
				l.t.Fatal("no samples")
			}
		},
		"trace of another size": func(l *testLog) {
			l.ask(l.task(7, 0))
			stray := l.result(7, 0)
			stray.GroupSize = 3
			l.fail(7, 1, 0, schemas.ErrorCrashed)
			l.deliver(stray)
			l.last(pipeline.TopicTraces, 1).Injected = true
		},
		"imitation": imitate,
		"group that is scored as a whole": func(l *testLog) {
			task := l.task(7, -1)
			l.read("envserver", l.put(pipeline.TopicTasks("e"), 1, &task))
			for i, run := range []string{"a", "b", "b", "a"} { // the server of run a was killed, and came back
				trace := traceOf(&task)
				trace.RolloutIndex, trace.GroupRun = []int{0, 1, 0, 1}[i], run
				l.answer(trace, float64(i), 0.5, 1)
				l.deliver(trace)
			}
		},
	}
	for name, leave := range tests {
		t.Run(name, func(t *testing.T) {
			l := newLog(t, false)
			leave(l)
			if r := l.audit(Config{Ended: true}); r.Total() != 0 {
				t.Errorf("%v", r)
			}
		})
	}
}

// Traces of several runs of a group are not mixed.
func TestPlantedRuns(t *testing.T) {
	l := newLog(t, false)
	task := l.task(7, -1)
	l.read("envserver", l.put(pipeline.TopicTasks("e"), 1, &task))
	var traces []*schemas.Trace
	for i, run := range []string{"a", "b", "b", "a"} {
		trace := traceOf(&task)
		trace.RolloutIndex, trace.GroupRun = []int{0, 1, 0, 1}[i], run
		l.answer(trace, float64(i%2), 0.5, 1)
		traces = append(traces, trace)
		l.deliver(trace)
	}
	traces[1].GroupRun = "c"
	expect(t, l.audit(Config{Ended: true}), Determinism, "or its group from several runs")
}

func TestAdvantages(t *testing.T) {
	rewards := map[int]float64{0: 1, 2: 3, 3: 5}
	for kind, want := range map[Advantage][]float64{MeanFree: {-2, 0, 2}, Standardized: {-1.2247448713915892, 0, 1.2247448713915892}} {
		got, slack := advantages(rewards, kind)
		for i, index := range []int{0, 2, 3} {
			if math.Abs(got[index]-want[i]) > 1e-12 || len(got) != 3 || slack > 1e-3 {
				t.Errorf("%s: %v within %v, want %v", kind, got, slack, want)
			}
		}
	}
}

// A version whose blobs were taken away or changed after it was published.
func TestPlantedWeights(t *testing.T) {
	l := newLog(t, false)
	_, v := version(l, 2)
	if _, err := l.blobs.Get(t.Context(), v.Weights); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.dir+"/"+v.Weights.URI, []byte("weights 3"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, l.audit(Config{Ended: true}), TrainedOnce, "is not the one its record names")
}
