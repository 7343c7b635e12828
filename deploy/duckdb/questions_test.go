package duckdb_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
)

// of is a question as a table to select from.
func of(t testing.TB, name string) string {
	t.Helper()
	lines := strings.Split(source(t, name), "\n")
	for len(lines) > 0 && strings.HasPrefix(lines[0], "--") {
		lines = lines[1:]
	}
	return "(" + strings.TrimSuffix(strings.TrimSpace(strings.Join(lines, "\n")), ";") + ")"
}

// fates is the outcome of a group, rollout by rollout.
func fates(t testing.TB, env, eval string, group, task, version int64, rollouts ...schemas.RolloutFate) sink.Row {
	t.Helper()
	o := &schemas.GroupOutcome{Env: env, Eval: eval, GroupID: group, TaskIndex: task, Fate: schemas.FatePacked, Step: new(version + 1)}
	if eval != "" {
		o.Fate, o.Step = schemas.FateEvaluated, nil
	}
	for i, r := range rollouts {
		r.RolloutIndex, r.Fate, r.PolicyStart = i, o.Fate, new(version)
		o.Rollouts = append(o.Rollouts, r)
	}
	return row(t, o)
}

func rewards(list ...float64) (rollouts []schemas.RolloutFate) {
	for _, r := range list {
		rollouts = append(rollouts, schemas.RolloutFate{Reward: new(r), Tokens: 10})
	}
	return rollouts
}

// Task 1 got better, 2 worse by accident, 3 worse for sure, 4 was played once by each; and the eval of task 3 got worse, too.
func TestQuestion_Worse(t *testing.T) {
	run := newRun(t)
	var rows []sink.Row
	for version, played := range map[int64]map[int64][]float64{
		0:  {1: {0, 0, 0.5, 0.5}, 2: {0, 1, 0, 1}, 3: {1, 1, 1, 0.5}, 4: {1}},
		5:  {3: {0.75, 0.75}}, // between the two
		10: {1: {1, 1, 1, 1}, 2: {0, 1, 0, 0.5}, 3: {0, 0, 0, 0.5}, 4: {0}},
	} {
		for task, list := range played {
			rows = append(rows, fates(t, "catch", "", 100*version+task, task, version, rewards(list...)...))
		}
		if version != 5 {
			rows = append(rows, fates(t, "catch", "held-out", version, 3, version, rewards(1-float64(version)/10, 1-float64(version)/10)...))
		}
	}
	write(t, run, pipeline.TopicOutcomes, rows...)
	db := open(t, run)
	expect(t, db, "SELECT env, eval, task_index, reward_a, reward_b, difference, round(z, 2) AS z, rollouts_a, rollouts_b FROM "+of(t, "worse.sql"),
		"catch held-out 3 1 0 -1 <nil> 2 2", "catch  3 0.875 0.125 -0.75 -4.24 4 4", "catch  2 0.5 0.375 -0.125 -0.33 4 4")
	exec1(t, db, "SET VARIABLE a = 5")
	exec1(t, db, "SET VARIABLE least = 1")
	expect(t, db, "SELECT task_index, reward_a, reward_b, rollouts_a FROM "+of(t, "worse.sql")+" WHERE eval = ''", "3 0.75 0.125 2")
}

// Of the tasks that the last fifth played, 1 is solved since version 3, 2 always was, 3 sometimes is not; 4 was not played.
func TestQuestion_AlwaysSolved(t *testing.T) {
	run := newRun(t)
	write(t, run, pipeline.TopicOutcomes,
		fates(t, "catch", "", 1, 1, 0, rewards(1, 0)...), fates(t, "catch", "", 2, 1, 2, rewards(0, 1)...), fates(t, "catch", "", 3, 1, 5, rewards(1, 1)...),
		fates(t, "catch", "", 4, 1, 10, rewards(1, 1)...), fates(t, "catch", "", 5, 2, 4, rewards(1, 1)...), fates(t, "catch", "", 6, 2, 9, rewards(1, 1, 1)...),
		fates(t, "catch", "", 7, 3, 10, rewards(1, 0, 1, 1, 1)...), fates(t, "catch", "", 8, 4, 3, rewards(1, 1)...),
		fates(t, "catch", "held-out", 9, 3, 10, rewards(1, 1)...))
	expect(t, open(t, run), of(t, "always_solved.sql"), "catch 2 3 4 0.3", "catch 1 2 3 0.2")
}

func TestQuestion_Errors(t *testing.T) {
	run := newRun(t)
	trace := func(env string, group int64, server, kind, message string, at int64) sink.Row {
		tr := &schemas.Trace{Env: env, GroupID: group, GroupSize: 1, Instance: server, PolicyStart: new(group)}
		if kind != "" {
			tr.Errors = []schemas.TraceError{{Type: kind, Message: message}}
		}
		r := row(t, tr)
		r.Time = time.UnixMilli(1_700_000_000_000 + 1000*at)
		return r
	}
	write(t, run, pipeline.TopicTraces,
		trace("catch", 1, "one", "model", "port 8100 refused", 3), trace("catch", 2, "two", "model", "port 8101 refused", 9), trace("catch", 2, "two", "", "", 10),
		trace("catch", 3, "one", "env", "bad", 5), trace("wordle", 4, "one", "", "", 5), trace("wordle", 5, "three", "env", "bad", 6))
	write(t, run, pipeline.TopicOutcomes, fates(t, "catch", "", 2, 1, 0, rewards(1)...))
	expect(t, open(t, run), "SELECT env, error, message, rollouts, share, servers, first::VARCHAR, last::VARCHAR, first_version, last_version, kept FROM "+of(t, "errors.sql"),
		"catch model port # refused 2 0.5 [one two] 2023-11-14 22:13:23 2023-11-14 22:13:29 1 2 1",
		"catch env bad 1 0.25 [one] 2023-11-14 22:13:25 2023-11-14 22:13:25 3 3 0", "wordle env bad 1 0.5 [three] 2023-11-14 22:13:26 2023-11-14 22:13:26 5 5 0")
}

// At version 0 two hundred more tokens bring a reward of 1; at version 1 they bring nothing, and rollouts are cut.
func TestQuestion_Length(t *testing.T) {
	run := newRun(t)
	rollout := func(tokens int, reward float64, cut bool) schemas.RolloutFate {
		return schemas.RolloutFate{Tokens: tokens, Reward: new(reward), Truncated: cut}
	}
	write(t, run, pipeline.TopicOutcomes,
		fates(t, "catch", "", 1, 1, 0, rollout(100, 0, false), rollout(300, 1, false)),
		fates(t, "catch", "", 2, 1, 1, rollout(400, 0.5, false), rollout(600, 0.5, true), rollout(500, 1, false), rollout(500, 0, false)),
		fates(t, "wordle", "", 3, 1, 1, rollout(7, 1, false)))
	expect(t, open(t, run), of(t, "length.sql"),
		"catch 0 0 2 200 280 0 0.5 <nil> 1 0.5", "catch 1 1 4 500 570 0.25 0.5 0.5 0.5 0", "wordle 1 1 1 7 7 0 1 <nil> <nil> <nil>")
}

func TestQuestion_Time(t *testing.T) {
	run := newRun(t)
	trace := func(group int64, model, env float64, tokens int, failed bool) sink.Row {
		mask := make([]byte, tokens+3)
		for i := range tokens {
			mask[i+3] = 1
		}
		tr := &schemas.Trace{Env: "catch", GroupID: group, GroupSize: 2, Timing: schemas.Timing{SetupMs: 100, GenerationMs: model, EnvironmentMs: env, ScoringMs: 100},
			Nodes: []schemas.Node{{Parent: -1, Role: "user"}, {Parent: 0, Role: "assistant", Mask: mask, TokenIDs: schemas.PackInt32s(make([]int32, len(mask))), Logprobs: schemas.PackFloat32s(make([]float32, len(mask)))}}}
		if failed {
			tr.Errors = []schemas.TraceError{{Type: "env"}}
		}
		return row(t, tr)
	}
	write(t, run, pipeline.TopicTraces, trace(1, 600, 200, 30, false), trace(1, 2600, 200, 130, false), trace(2, 600, 200, 0, false), trace(3, 9e6, 0, 9, true))
	expect(t, open(t, run), "SELECT env, rollouts, seconds, round(slowest_twentieth, 3), model, environment, setting_up, scoring, straggle, round(tokens_per_second, 1) FROM "+of(t, "time.sql"),
		"catch 3 1 2.8 0.76 0.12 0.06 0.06 1.25 42.1")
}

// Of a step that was made again after a restart the last figure counts.
func TestQuestion_Collapse(t *testing.T) {
	run := newRun(t)
	var rows []sink.Row
	point := func(step int64, name string, value float64) {
		rows = append(rows, row(t, &schemas.MetricPoint{Name: name, Stage: "trainer", Step: &step, Value: value}))
	}
	for step := range int64(40) {
		point(step+1, "entropy", 9)
		point(step+1, "entropy", 2-float64(step)/20)
		point(step+1, "grad_norm", float64(step%2))
	}
	rows = append(rows, row(t, &schemas.MetricPoint{Name: "entropy", Stage: "shadow", Step: new(int64(1)), Value: 99}))
	write(t, run, pipeline.TopicMetrics, rows...)
	expect(t, open(t, run), "SELECT from_step, to_step, round(entropy, 3), round(entropy_left, 3), kl, grad_norm, largest_grad_norm FROM "+of(t, "collapse.sql")+" WHERE from_step IN (1, 3, 39)",
		"1 2 1.975 1 <nil> 0.5 1", "3 4 1.875 0.949 <nil> 0.5 1", "39 40 0.075 0.038 <nil> 0.5 1")
}

func said(t testing.TB, group int64, i int, task, version int64, reward float64, words ...string) sink.Row {
	t.Helper()
	tr := &schemas.Trace{Env: "wordle", GroupID: group, GroupSize: 2, RolloutIndex: i, TaskIndex: task, Task: `{"word":"crane"}`, PolicyStart: &version, Reward: &reward, StopReason: "done",
		Nodes: []schemas.Node{{Parent: -1, Role: "user", Content: "guess"}}}
	for k, w := range words {
		tr.Nodes = append(tr.Nodes, schemas.Node{Parent: k, Role: "assistant", Content: w, Mask: []byte{1}, TokenIDs: schemas.PackInt32s([]int32{1}), Logprobs: make([]byte, 4)})
	}
	return row(t, tr)
}

// Of the task that was played most, the first and the last version that did, or those nearest to what is asked for.
func TestQuestion_Task(t *testing.T) {
	run := newRun(t)
	write(t, run, pipeline.TopicTraces, said(t, 1, 0, 7, 0, 0, "aaaaa"), said(t, 1, 1, 7, 0, 0.25, "slate", "crate"), said(t, 2, 0, 7, 12, 0.5, "trace"),
		said(t, 3, 0, 7, 40, 1, "crane"), said(t, 4, 0, 8, 40, 1, "other"), said(t, 5, 0, 8, 1, 1, "other"))
	db := open(t, run)
	ask := "SELECT version, task_index, group_id, rollout_index, reward, stop_reason, tokens, said, task FROM " + of(t, "task.sql")
	expect(t, db, ask, `0 7 1 0 0 done 1 aaaaa {"word":"crane"}`, `0 7 1 1 0.25 done 2 crate {"word":"crane"}`, `40 7 3 0 1 done 1 crane {"word":"crane"}`)
	exec1(t, db, "SET VARIABLE a = 10")
	exec1(t, db, "SET VARIABLE b = 400")
	expect(t, db, ask, `12 7 2 0 0.5 done 1 trace {"word":"crane"}`, `40 7 3 0 1 done 1 crane {"word":"crane"}`)
	exec1(t, db, "SET VARIABLE task = 8")
	expect(t, db, "SELECT DISTINCT task_index, version FROM "+of(t, "task.sql")+" ORDER BY version", "8 1", "8 40")
}

func TestQuestion_Duplicates(t *testing.T) {
	run := newRun(t)
	write(t, run, pipeline.TopicTraces, said(t, 1, 0, 7, 0, 0, "a", "b"), said(t, 1, 1, 7, 0, 0, "b", "a"), said(t, 2, 0, 7, 1, 0, "a"), said(t, 2, 1, 7, 1, 0, "a"),
		said(t, 3, 0, 7, 1, 0, "a"), said(t, 3, 1, 7, 1, 0, "b"), said(t, 4, 0, 7, 1, 0, "alone"))
	expect(t, open(t, run), of(t, "duplicates.sql"), "wordle 0 0 1 2 0 0", "wordle 1 1 2 1.5 0.25 0.5")
}
