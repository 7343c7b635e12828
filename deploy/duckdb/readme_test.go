package duckdb_test

import (
	"database/sql"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
)

var update = flag.Bool("update", false, "write what the README shows anew")

// shown are the questions in the README with the columns it shows.
var shown = []struct{ file, columns string }{
	{"reward_by_step.sql", "*"}, {"worse.sql", "* EXCLUDE eval"}, {"never_solved.sql", "*"}, {"always_solved.sql", "*"},
	{"dropped.sql", "*"}, {"errors.sql", "* EXCLUDE (last_version, kept)"}, {"length.sql", "* EXCLUDE (rollouts, longest_tenth)"}, {"time.sql", "*"},
	{"collapse.sql", "* EXCLUDE (masked, largest_grad_norm, loss)"}, {"task.sql", "version, env, task_index, group_id, rollout_index, reward, tokens, said"},
}

// shownRows are the most of an answer that the README shows.
const shownRows = 5

// learning is a run of 40 versions, the same every time.
func learning(t testing.TB) string {
	t.Helper()
	run := newRun(t)
	rng := rand.New(rand.NewPCG(1, 2))
	var traces, outcomes, metrics []sink.Row
	group := int64(0)
	words := []string{"aaaaa", "slate", "crate", "trace", "crane"}
	for version := range int64(40) {
		learnt := float64(version) / 39
		for _, env := range []string{"catch", "wordle"} {
			for task := range int64(6) {
				group++
				chance := map[string]float64{"catch": min(1, 0.2+learnt+0.1*float64(task%2)), "wordle": 0.1 + 0.5*learnt}[env]
				switch {
				case env == "wordle" && task == 2:
					chance = 0.9 - 0.8*learnt
				case env == "wordle" && task == 5:
					chance = 0
				}
				o := &schemas.GroupOutcome{Env: env, GroupID: group, TaskIndex: task, Fate: schemas.FatePacked, Step: new(version + 1)}
				sum := 0.0
				for i := range 4 {
					reward, tokens := 0.0, 4+int(4*learnt*4)+rng.IntN(6)
					if rng.Float64() < chance {
						reward = 1
					}
					sum += reward
					f := schemas.RolloutFate{RolloutIndex: i, Reward: &reward, Tokens: tokens + 3, PolicyStart: new(version), Truncated: tokens > 22}
					tr := &schemas.Trace{Env: env, GroupID: group, GroupSize: 4, RolloutIndex: i, TaskIndex: task, Task: `{}`, PolicyStart: new(version), PolicyEnd: new(version), Instance: fmt.Sprintf("host-%d", i%2),
						Timing: schemas.Timing{SetupMs: 2, GenerationMs: 40 * float64(tokens), EnvironmentMs: float64(20 + rng.IntN(200)), ScoringMs: 1}, StopReason: "done"}
					if env == "wordle" && i == 1 && version >= 20 && version < 23 {
						f.Reward, f.Error, tr.PolicyEnd = nil, "env: worker 17 has ended", nil
						tr.Errors = []schemas.TraceError{{Type: "env", Message: fmt.Sprintf("worker %d has ended", 10+rng.IntN(80))}}
					} else {
						tr.Reward = &reward
						mask := slices.Repeat([]byte{1}, tokens)
						tr.Nodes = []schemas.Node{{Parent: -1, Role: "user", Content: "?"}, {Parent: 0, Role: "assistant", Content: words[min(4, int(5*reward*rng.Float64()+4*learnt*rng.Float64()))], Mask: mask,
							TokenIDs: schemas.PackInt32s(make([]int32, tokens)), Logprobs: schemas.PackFloat32s(make([]float32, tokens))}}
					}
					o.Rollouts = append(o.Rollouts, f)
					r := row(t, tr)
					r.Time = time.UnixMilli(1_767_225_600_000 + 60_000*version)
					traces = append(traces, r)
				}
				switch {
				case sum == 0 || sum == 4:
					o.Fate, o.Step, o.Filter = schemas.FateFiltered, nil, "zero_advantage"
				case rng.IntN(12) == 0:
					o.Fate, o.Step = schemas.FateStale, nil
				}
				for i := range o.Rollouts {
					if o.Rollouts[i].Fate = o.Fate; o.Rollouts[i].Error != "" {
						o.Rollouts[i].Fate = schemas.FateErrored
					}
				}
				outcomes = append(outcomes, row(t, o))
			}
		}
		for name, v := range map[string]float64{"entropy": 2.5 * math.Exp(-3*learnt), "kl": 0.001 + 0.01*learnt, "ratio": 1, "grad_norm": 0.4} {
			metrics = append(metrics, row(t, &schemas.MetricPoint{Name: name, Stage: "trainer", Step: new(version + 1), Value: v}))
		}
	}
	write(t, run, pipeline.TopicTraces, traces...)
	write(t, run, pipeline.TopicOutcomes, outcomes...)
	write(t, run, pipeline.TopicMetrics, metrics...)
	return run
}

// table is the first rows of an answer, as Markdown.
func table(t testing.TB, db *sql.DB, query string) string {
	t.Helper()
	rows, err := db.Query(query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for n := 0; rows.Next(); n++ {
		if n == shownRows {
			fmt.Fprintf(&b, "|%s\n", strings.Repeat(" … |", len(columns)))
			break
		}
		values, into := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			switch v := v.(type) {
			case nil:
				b.WriteString("| ")
			case float64:
				fmt.Fprintf(&b, "| %.3g ", v)
			case time.Time:
				fmt.Fprintf(&b, "| %s ", v.UTC().Format(time.TimeOnly))
			default:
				fmt.Fprintf(&b, "| %v ", v)
			}
		}
		b.WriteString("|\n")
	}
	return b.String()
}

// TestREADME shows every question of the folder, as it stands in its file, and the ten with what they answer.
func TestREADME(t *testing.T) {
	db := open(t, learning(t))
	var b strings.Builder
	for _, q := range shown {
		text := source(t, q.file)
		question, _, _ := strings.Cut(strings.ReplaceAll(strings.TrimPrefix(text, "-- "), "\n-- ", " "), "?")
		fmt.Fprintf(&b, "\n### %s?\n`%s`\n\n%s", question, q.file, table(t, db, "SELECT "+q.columns+" FROM "+of(t, q.file)))
	}
	const begin, end = "-update` -->\n", "\n<!-- end of answers -->"
	readme := source(t, "README.md")
	before, rest, ok := strings.Cut(readme, begin)
	_, after, ok2 := strings.Cut(rest, strings.TrimPrefix(end, "\n"))
	if !ok || !ok2 {
		t.Fatal("the README has no place for answers")
	}
	want := before + begin + b.String() + end + after
	if *update {
		if err := os.WriteFile("README.md", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if readme != want {
		t.Errorf("the README shows something else; go test ./deploy/duckdb -run TestREADME -update\ngot\n%s\nwant\n%s", readme, want)
	}
	files, err := filepath.Glob("*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.Contains(want, "`"+f+"`") {
			t.Errorf("the README does not show %s", f)
		}
	}
}
