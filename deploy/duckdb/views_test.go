// Package duckdb_test runs the views and the questions beside them with DuckDB on files that the sink wrote. DuckDB is
// imported here only: the binary does not hold it.
package duckdb_test

import (
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/duckdb/duckdb-go/v2"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
)

// newRun is the folder of a run whose sink has started and seen nothing.
func newRun(t testing.TB) string {
	t.Helper()
	run := t.TempDir()
	if err := sink.WriteSchemas(filepath.Join(run, "parquet")); err != nil {
		t.Fatal(err)
	}
	return run
}

// write adds rows to a topic of a run.
func write(t testing.TB, run, topic string, rows ...sink.Row) {
	t.Helper()
	c, err := sink.OpenChain(filepath.Join(run, "parquet"), topic, [16]byte{1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		r.Offset = c.Next()
		if err := c.Append(r, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}

func row(t testing.TB, v schemas.Record) sink.Row {
	t.Helper()
	b, err := schemas.Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	return sink.Row{Time: time.UnixMilli(1_700_000_000_123), Value: b}
}

// open starts DuckDB as `duckdb -init views.sql` does, with the run set before.
func open(t testing.TB, run string) *sql.DB {
	t.Helper()
	db, err := sql.Open("duckdb", "")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1) // variables belong to a connection
	t.Cleanup(func() { db.Close() })
	exec1(t, db, "SET VARIABLE run = '"+run+"'")
	exec1(t, db, source(t, "views.sql"))
	return db
}

func source(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func exec1(t testing.TB, db *sql.DB, query string) {
	t.Helper()
	if _, err := db.Exec(query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// ask runs a query and gives its rows, fields joined by spaces.
func ask(t testing.TB, db *sql.DB, query string) []string {
	t.Helper()
	rows, err := db.Query(query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for rows.Next() {
		fields := make([]any, len(columns))
		into := make([]any, len(columns))
		for i := range fields {
			into[i] = &fields[i]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		out = append(out, strings.TrimSuffix(fmt.Sprintln(fields...), "\n"))
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return out
}

func expect(t testing.TB, db *sql.DB, query string, want ...string) {
	t.Helper()
	if got := ask(t, db, query); !slices.Equal(got, want) {
		t.Errorf("%s\ngot\n%s\nwant\n%s", query, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

var views = []string{"traces", "nodes", "sample_groups", "samples", "outcomes", "rollouts", "policies", "evals", "metrics", "tasks", "batches", "dlq"}

var questions = []string{"reward_by_step.sql", "worse.sql", "never_solved.sql", "always_solved.sql", "dropped.sql", "errors.sql", "length.sql", "time.sql", "collapse.sql", "task.sql", "duplicates.sql", "stale.sql", "filters.sql"}

// Every view answers, with its columns, before there is any record.
func TestViews_EmptyRun(t *testing.T) {
	db := open(t, newRun(t))
	for _, view := range views {
		expect(t, db, "SELECT count(*) FROM "+view, "0")
	}
	expect(t, db, "SELECT env, reward, len(nodes) FROM traces")
	for _, question := range questions {
		expect(t, db, source(t, question))
	}
}

// The run may be named after the views were made, too.
func TestViews_AnotherRun(t *testing.T) {
	one, two := newRun(t), newRun(t)
	write(t, one, pipeline.TopicMetrics, row(t, &schemas.MetricPoint{Name: "loss", Value: 1}))
	write(t, two, pipeline.TopicMetrics, row(t, &schemas.MetricPoint{Name: "loss", Value: 2}), row(t, &schemas.MetricPoint{Name: "loss", Value: 3}))
	db := open(t, one)
	expect(t, db, "SELECT name, value FROM metrics", "loss 1")
	exec1(t, db, "SET VARIABLE run = '"+two+"'")
	expect(t, db, "SELECT name, value FROM metrics ORDER BY value", "loss 2", "loss 3")
}

func TestViews_DefaultRun(t *testing.T) {
	script := source(t, "views.sql")
	t.Chdir(t.TempDir())
	if err := sink.WriteSchemas("runs/demo/parquet"); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("duckdb", "")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	exec1(t, db, script)
	expect(t, db, "SELECT count(*) FROM traces", "0")
}

func TestViews_Traces(t *testing.T) {
	run := newRun(t)
	write(t, run, pipeline.TopicTraces, row(t, &schemas.Trace{
		Env: "wordle", GroupID: 4, GroupSize: 2, RolloutIndex: 1, Task: `{"word":"crane","level":2}`, Reward: new(0.5), PolicyStart: new(int64(3)),
		Rewards: map[string]*float64{"green": new(0.25), "valid": nil}, Metrics: map[string]float64{"turns": 6},
		Timing: schemas.Timing{GenerationMs: 12.5},
		Nodes: []schemas.Node{
			{Parent: -1, Role: "user", Content: "cut \xe2\x98"},
			{Parent: 0, Role: "assistant", Content: "crane", TokenIDs: schemas.PackInt32s([]int32{5, -6}), Mask: []byte{0, 1},
				Logprobs: schemas.PackFloat32s([]float32{0, -1.5}), ToolCalls: []schemas.ToolCall{{Name: "guess", Arguments: "{}"}},
				Versions: []schemas.VersionRun{{Offset: 0, Version: 3}}},
		},
		Blobs: []schemas.BlobRef{{Path: "nodes.0.mask", URI: "tensors/x"}},
	}), sink.Row{Value: []byte("garbage")})
	write(t, run, pipeline.TopicEvalTraces, row(t, &schemas.Trace{Env: "catch", Eval: "final", GroupSize: 1,
		Task: "{cut", Errors: []schemas.TraceError{{Type: schemas.ErrorTimedOut, Message: "late"}}}))
	db := open(t, run)
	expect(t, db, "SELECT env, eval, reward, policy_start, policy_end, task->>'word', task->'level' FROM traces ORDER BY env DESC",
		"wordle  0.5 3 <nil> crane 2", "catch final <nil> <nil> <nil> <nil> <nil>")
	expect(t, db, "SELECT env, avg(reward) FROM traces GROUP BY 1 ORDER BY 1", "catch <nil>", "wordle 0.5")
	expect(t, db, "SELECT rewards['green'], rewards['valid'], metrics['turns'], timing.generation_ms, blobs[1].uri FROM traces WHERE env = 'wordle'",
		"0.25 <nil> 6 12.5 tensors/x")
	expect(t, db, "SELECT errors[1].type, errors[1].message, len(nodes) FROM traces WHERE eval = 'final'", "timed_out late 0")
	expect(t, db, "SELECT kafka_topic, kafka_partition, kafka_offset, kafka_time::VARCHAR FROM traces WHERE env = 'wordle'",
		"traces 0 0 2023-11-14 22:13:20.123")
	expect(t, db, "SELECT env, group_id, rollout_index, node, parent, role, content, token_ids, mask, logprobs, tool_calls[1].name, versions[1].version FROM nodes ORDER BY node",
		"wordle 4 1 0 -1 user cut \uFFFD [] [] [] <nil> <nil>", "wordle 4 1 1 0 assistant crane [5 -6] [0 1] [0 -1.5] guess 3")
	expect(t, db, "SELECT typeof(token_ids), typeof(logprobs), typeof(mask), typeof(temperature) FROM nodes LIMIT 1", "INTEGER[] FLOAT[] INTEGER[] DOUBLE")
	expect(t, db, "SELECT kafka_offset, kafka_raw::VARCHAR FROM read_parquet('"+run+"/parquet/traces/*.parquet', union_by_name = true) WHERE kafka_error IS NOT NULL", "1 garbage")
}

func TestViews_Others(t *testing.T) {
	run := newRun(t)
	write(t, run, pipeline.TopicSamples, row(t, &schemas.SampleGroup{Env: "catch", GroupID: 7, Emitted: 1, Samples: []schemas.Sample{{
		RolloutIndex: 2, TokenIDs: schemas.PackInt32s([]int32{1, 2}), Mask: []byte{0, 1}, Logprobs: make([]byte, 8),
		Advantages: schemas.PackFloat32s([]float32{0, 0.5}), Temperatures: schemas.PackFloat32s([]float32{1, 1})}}}),
		row(t, &schemas.SampleGroup{Env: "catch", GroupID: 8, Reason: schemas.FateErrored}))
	write(t, run, pipeline.TopicPolicies, row(t, &schemas.PolicyVersion{Version: 1, Step: 1, Kind: "full", Weights: schemas.BlobRef{URI: "weights/x", SHA256: "aa"},
		NextOffsets: []int64{3, 4}, Metrics: map[string]float64{"loss": 0.1}}))
	write(t, run, pipeline.TopicEvals, row(t, &schemas.EvalResult{Eval: "final", Env: "catch", Version: 9, K: 1, AvgAtK: 0.75, AvgStderr: 0.125, PassStderr: 0.25, Baselines: map[string]float64{"random": 0.25}}))
	write(t, run, pipeline.TopicMetrics, row(t, &schemas.MetricPoint{Name: "loss", Step: new(int64(2)), Value: 0.5, Labels: map[string]string{"env": "catch"}, TimeMs: 1_700_000_000_123}))
	write(t, run, pipeline.TopicTasks("my-env"), row(t, &schemas.Task{Env: "my-env", GroupSize: 1, Seed: 5}))
	write(t, run, pipeline.TopicTasks("catch"), row(t, &schemas.Task{Env: "catch", GroupSize: 1, Seed: 6}))
	write(t, run, pipeline.TopicBatches, row(t, &schemas.MicroBatch{Step: 1, Ranks: 1, Count: 1}))
	write(t, run, pipeline.TopicDLQ, sink.Row{Key: []byte("run.traces/2/41"), Value: []byte{0, 0xFF}, Headers: []sink.Header{
		{Key: "prl-stage", Value: []byte("scorer")}, {Key: "prl-error", Value: []byte("no Avro")}}})
	db := open(t, run)
	expect(t, db, "SELECT group_id, rollout_index, token_ids, mask, advantages, policy_start FROM samples", "7 2 [1 2] [0 1] [0 0.5] <nil>")
	expect(t, db, "SELECT group_id, reason, len(samples) FROM sample_groups ORDER BY 1", "7  1", "8 errored 0")
	expect(t, db, "SELECT version, weights.uri, checkpoint, next_offsets, metrics['loss'] FROM policies", "1 weights/x <nil> [3 4] 0.1")
	expect(t, db, "SELECT version, avg_at_k - baselines['random'], avg_stderr, pass_stderr FROM evals", "9 0.5 0.125 0.25")
	expect(t, db, "SELECT step, value, labels['env'], time::VARCHAR FROM metrics", "2 0.5 catch 2023-11-14 22:13:20.123")
	expect(t, db, "SELECT env, kafka_topic, seed FROM tasks ORDER BY env", "catch tasks.catch 6", "my-env tasks.my-env 5")
	expect(t, db, "SELECT step, token_ids FROM batches", "1 []")
	expect(t, db, "SELECT source_topic, source_partition, source_offset, stage, error, hex(value) FROM dlq", "run.traces 2 41 scorer no Avro 00FF")
}

// outcome is a group whose rollouts all have its fate.
func outcome(t testing.TB, env string, group, task int64, fate string, version int64, tokens int, rewards ...float64) sink.Row {
	t.Helper()
	o := &schemas.GroupOutcome{Env: env, GroupID: group, TaskIndex: task, Fate: fate}
	switch fate {
	case schemas.FatePacked:
		o.Step = new(version + 1)
	case schemas.FateFiltered:
		o.Filter = "zero_advantage"
	}
	for i, r := range rewards {
		o.Rollouts = append(o.Rollouts, schemas.RolloutFate{RolloutIndex: i, Fate: fate, Reward: new(r), PolicyStart: new(version), Tokens: tokens})
	}
	return row(t, o)
}

func TestQuestions(t *testing.T) {
	run := newRun(t)
	errored := &schemas.GroupOutcome{Env: "catch", GroupID: 4, TaskIndex: 11, Fate: schemas.FateErrored,
		Rollouts: []schemas.RolloutFate{{Fate: schemas.FateErrored, Error: "model: gone"}}}
	eval := &schemas.GroupOutcome{Env: "catch", Eval: "final", TaskIndex: 90, Fate: schemas.FateEvaluated,
		Rollouts: []schemas.RolloutFate{{Fate: schemas.FateEvaluated, Reward: new(0.0), PolicyStart: new(int64(0))}}}
	write(t, run, pipeline.TopicOutcomes,
		outcome(t, "catch", 0, 10, schemas.FatePacked, 0, 4, 0, 1),
		outcome(t, "catch", 1, 11, schemas.FateFiltered, 0, 8, 0, 0),
		outcome(t, "catch", 2, 11, schemas.FateFiltered, 1, 8, 0.5, 0.5),
		outcome(t, "catch", 3, 10, schemas.FatePacked, 1, 4, 1, 0),
		row(t, errored), row(t, eval),
		outcome(t, "wordle", 5, 3, schemas.FateStale, 1, 6, 0.25))
	db := open(t, run)

	expect(t, db, source(t, "reward_by_step.sql"), "catch 0 4 0.25 0", "catch 1 4 0.5 0", "wordle 1 1 0.25 0")

	expect(t, db, source(t, "never_solved.sql"), "catch 11 4 0.5 0.25 1", "wordle 3 1 0.25 0.25 1")
	exec1(t, db, "SET VARIABLE pass = 0.5")
	expect(t, db, source(t, "never_solved.sql"), "wordle 3 1 0.25 0.25 1")

	expect(t, db, "SELECT round(share, 3) AS share, * EXCLUDE share FROM ("+strings.TrimSuffix(strings.TrimSpace(source(t, "dropped.sql")), ";")+")",
		"0.444 catch filtered zero_advantage 4 0.25 -0.25 8 4",
		"0.444 catch packed  4 0.5 0 4 0",
		"0.111 catch errored  1 <nil> <nil> 0 -4",
		"1 wordle stale  1 0.25 <nil> 6 <nil>")
}

// Of an eval by hand that was resumed the newest result counts; the run's own have one each, and a second would be seen.
func TestViews_EvalsByHand(t *testing.T) {
	run := newRun(t)
	result := func(eval string, version int64, policy string, errored int64) sink.Row {
		return row(t, &schemas.EvalResult{Eval: eval, Env: "catch", K: 1, Version: version, Policy: policy, Errored: errored})
	}
	write(t, run, pipeline.TopicEvals, result("by-hand/a", 3, "", 2), result("catch", 3, "", 0), result("by-hand/a", 3, "", 0),
		result("by-hand/b", 0, "teacher", 1), result("catch", 3, "", 1))
	db := open(t, run)
	expect(t, db, "SELECT eval, version, policy, errored FROM evals ORDER BY ALL",
		"by-hand/a 3  0", "by-hand/b 0 teacher 1", "catch 3  0", "catch 3  1")
}

// The long rollouts go stale, and are the better ones.
func TestQuestion_Stale(t *testing.T) {
	run := newRun(t)
	write(t, run, pipeline.TopicOutcomes,
		outcome(t, "catch", 0, 1, schemas.FatePacked, 0, 10, 0, 0.5), outcome(t, "catch", 1, 1, schemas.FatePacked, 0, 20, 0.25, 0.75),
		outcome(t, "catch", 2, 1, schemas.FateFiltered, 0, 99, 0, 0), outcome(t, "catch", 3, 1, schemas.FatePacked, 0, 30, 0.5, 0.5),
		outcome(t, "catch", 4, 1, schemas.FateStale, 0, 40, 1, 0.5), outcome(t, "wordle", 5, 1, schemas.FatePacked, 0, 5, 1))
	db := open(t, run)
	ask := "SELECT env, quarter, shortest, longest, trained, stale, stale_share, trained_reward, stale_reward, reward_difference, round(standard_error, 3) FROM (" +
		strings.TrimSuffix(strings.TrimSpace(source(t, "stale.sql")), ";") + ")"
	expect(t, db, ask,
		"catch all 10 40 6 2 0.25 0.4166666666666667 0.75 0.3333333333333333 0.271",
		"catch 1 10 10 2 0 0 0.25 <nil> <nil> <nil>", "catch 2 20 20 2 0 0 0.5 <nil> <nil> <nil>",
		"catch 3 30 30 2 0 0 0.5 <nil> <nil> <nil>", "catch 4 40 40 0 2 1 <nil> 0.75 <nil> <nil>",
		"wordle all 5 5 1 0 0 1 <nil> <nil> <nil>", "wordle 4 5 5 1 0 0 1 <nil> <nil> <nil>")
}

func TestQuestion_Filters(t *testing.T) {
	run := newRun(t)
	group := func(env, reason, filter string, monitored map[string]int64, fates ...string) sink.Row {
		sg := &schemas.SampleGroup{Env: env, Emitted: len(fates), Reason: reason, Filter: filter, Monitored: monitored}
		if reason == "" {
			sg.Samples = []schemas.Sample{{TokenIDs: schemas.PackInt32s([]int32{1}), Mask: []byte{1}, Logprobs: make([]byte, 4),
				Advantages: make([]byte, 4), Temperatures: schemas.PackFloat32s([]float32{1})}}
		}
		for i, f := range fates {
			sg.Rollouts = append(sg.Rollouts, schemas.RolloutFate{RolloutIndex: i, Fate: f})
		}
		return row(t, sg)
	}
	write(t, run, pipeline.TopicSamples,
		group("catch", schemas.FateFiltered, "zero_advantage", nil, schemas.FateFiltered, schemas.FateFiltered),
		group("catch", schemas.FateFiltered, "zero_advantage", map[string]int64{"gibberish": 2}, schemas.FateFiltered, schemas.FateFiltered),
		group("catch", "", "", map[string]int64{"gibberish": 1, "length": 4}, "", schemas.FateFiltered),
		group("catch", schemas.FateErrored, "", nil, schemas.FateErrored, schemas.FateErrored),
		group("wordle", "", "", nil, ""))
	expect(t, open(t, run), source(t, "filters.sql"),
		"catch zero_advantage groups 2 4 <nil> 0.5", "catch  rollouts 1 1 <nil> 0.125",
		"catch gibberish samples 2 <nil> 3 <nil>", "catch length samples 1 <nil> 4 <nil>")
}

// DuckDB is a large C++ library: nothing that ships imports it.
func TestBinary_HoldsNoDuckDB(t *testing.T) {
	cmd := exec.Command("go", "list", "-e", "-deps", "./...")
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if err != nil || len(out) == 0 {
		t.Fatalf("list the packages: %v", err)
	}
	for pkg := range strings.Lines(string(out)) {
		if strings.Contains(pkg, "duckdb-go") {
			t.Errorf("%s is imported outside tests", strings.TrimSpace(pkg))
		}
	}
}
