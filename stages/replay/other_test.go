package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/eval"
	"github.com/prl-project/prl/stages/packer"
	"github.com/prl-project/prl/stages/scorer"
)

// without is a source that lacks some records.
type without struct {
	Source
	lacks func(schemas.Record) bool
}

func (w without) Read(ctx context.Context, topic string, partition int32) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for r, err := range w.Source.Read(ctx, topic, partition) {
			if v, failed := r.Decode(ctx); failed == nil && w.lacks(v) {
				continue
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// A group that would wait for rollouts that were not recorded is left out and counted, and the others go on: in ordered
// mode, where its id must be there, as in asynchronous mode.
func TestUndecided(t *testing.T) {
	src, run := fixture(t)
	lost := int64(2)
	gap := without{src, func(r schemas.Record) bool {
		t, ok := r.(*schemas.Trace)
		return ok && t.GroupID == lost && t.RolloutIndex == 1
	}}
	for name, change := range map[string]func(*pipeline.RunConfig){
		"ordered":      func(*pipeline.RunConfig) {},
		"asynchronous": func(r *pipeline.RunConfig) { r.MaxAsyncLevel, r.MaxOffPolicySteps = 1, 1 },
	} {
		t.Run(name, func(t *testing.T) {
			changed := run
			change(&changed)
			c := recompute(t, gap, other(run, changed, settings()))
			if c.Recomputed.Groups[undecided] != 1 || total(c.Recomputed.Groups) != total(c.Recorded.Groups) || c.Stopped != nil {
				t.Errorf("groups:\n%v", c)
			}
			if c.Recomputed.Steps < c.Recorded.Steps-1 || c.Recomputed.Steps == 0 || !strings.Contains(c.String(), "1 groups would have waited") {
				t.Errorf("steps:\n%v", c)
			}
			if ages := c.Recomputed.OffPolicy; len(ages) != 1 || ages[0] == 0 {
				t.Errorf("what was on-policy is %v steps old", ages)
			}
		})
	}
}

// In ordered mode a wave has every id of its range: for one that samples does not have, or not readably, a group that
// failed stands in.
func TestGroupThatIsGone(t *testing.T) {
	src, run := fixture(t)
	gap := without{src, func(r schemas.Record) bool {
		g, ok := r.(*schemas.SampleGroup)
		return ok && g.GroupID == 2
	}}
	c := recompute(t, gap, same(run))
	if c.Recomputed.Groups[Open] > 4 || c.Recomputed.Steps < c.Recorded.Steps-1 || c.Recomputed.Steps == 0 || total(c.Recomputed.Groups) != total(c.Recorded.Groups) {
		t.Errorf("%v", c)
	}
}

// Where the other configuration would have stopped the run, the comparison says why and counts what it did not reach.
func TestStopped(t *testing.T) {
	src, run := fixture(t)
	short := run
	short.SeqLen = 6
	cfg := other(run, short, settings())
	settings := packer.DefaultConfig()
	settings.Overlong = packer.OverlongError
	cfg.Packer = packer.New(short, settings)
	c := recompute(t, src, cfg)
	if !errors.Is(c.Stopped, pipeline.ErrFatal) || c.Recomputed.Groups[notReached] == 0 || total(c.Recomputed.Groups) != total(c.Recorded.Groups) {
		t.Errorf("%v", c)
	}
	if text := c.String(); !strings.Contains(text, "The run would have stopped: ") || !strings.Contains(text, "seq_len is 6") || !strings.Contains(text, "the first difference is at step 1") {
		t.Errorf("%s", text)
	}
}

// A group that nobody can read ends as it does in the packer, and the topic is read no further for it.
func TestUnreadableGroup(t *testing.T) {
	src, run := fixture(t)
	run.MaxAsyncLevel, run.MaxOffPolicySteps = 1, 1
	groups := src[pipeline.TopicSamples][0]
	bad := groups[2]
	groups[2] = unreadable(pipeline.TopicSamples, 0, bad.Offset, bad.Key)
	read := map[int64]int{}
	for i := range groups {
		decode := groups[i].decode
		groups[i].decode = func(ctx context.Context) (schemas.Record, error) {
			read[groups[i].Offset]++
			return decode(ctx)
		}
	}
	cfg := same(run)
	cfg.Topic = pipeline.TopicSamples
	cfg.Select.ToOffset = groups[4].Offset
	c := recompute(t, src, cfg)
	if c.Refused != 1 || c.Recomputed.Groups[undecided] != 0 || c.Recomputed.Groups[schemas.FateErrored] != c.Recorded.Groups[schemas.FateErrored]+1 {
		t.Errorf("%v", c)
	}
	if len(read) != 4 {
		t.Errorf("of the four groups that are selected these were read: %v", read)
	}
}

// elsewhere is an environment that plays the tasks of a seed otherwise.
type elsewhere int64

func (e elsewhere) Rescore(_ context.Context, _ json.RawMessage, seed int64, messages []env.Message, _ bool) (env.Score, error) {
	if seed == int64(e) {
		return env.Score{}, env.ErrDiverged
	}
	return env.Score{Rewards: env.Rewards{"r": env.Value(float64(len(messages[len(messages)-1].Content)))}}, nil
}

// Nobody plays a rollout again that has diverged: its group ends as errored, also where what fails is asked for again.
func TestDivergedGroup(t *testing.T) {
	src, run := fixture(t)
	v, err := src[pipeline.TopicTraces][0][0].Decode(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	diverged, groups, traces := v.(*schemas.Trace), map[int64]bool{}, int64(0)
	for _, recs := range src[pipeline.TopicTraces] {
		for _, r := range recs {
			v, err := r.Decode(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if trace := v.(*schemas.Trace); trace.GroupSeed == diverged.GroupSeed {
				groups[trace.GroupID] = true
				traces++
			}
		}
	}
	changed := run
	changed.MaxAsyncLevel, changed.MaxOffPolicySteps = 1, 1
	cfg := settings()
	cfg.Partial = scorer.Refill
	again := other(run, changed, cfg)
	again.Rescorer = func(string) (Rescorer, error) {
		return Rescorer{Env: elsewhere(diverged.GroupSeed), MaxAttempts: 3}, nil
	}
	c := recompute(t, src, again)
	if c.Recomputed.Groups[undecided] != 0 || c.Recomputed.Groups[schemas.FateErrored] != int64(len(groups)) || c.Lost[errorDiverged] != traces {
		t.Errorf("of %d groups and %d traces:\n%v", len(groups), traces, c)
	}
	if want := fmt.Sprintf("%d traces that would have gone another way have failed", traces); !strings.Contains(c.String(), want) {
		t.Errorf("%v\nwant: %s", c, want)
	}
}

// Rewards that are given anew are those that groups are scored by.
func TestRecomputeWithNewRewards(t *testing.T) {
	src, run := fixture(t)
	cfg := same(run)
	cfg.Rescorer = func(string) (Rescorer, error) { return Rescorer{Env: flat{}}, nil }
	c := recompute(t, src, cfg)
	if c.Recomputed.Groups[Open] == 0 || c.Recomputed.Groups[schemas.FatePacked] != 0 || c.Recomputed.Steps != 0 {
		t.Errorf("of rewards that are all the same something is left to train:\n%v", c)
	}
	cfg.Topic = pipeline.TopicSamples
	if _, err := Recompute(t.Context(), src, cfg); err == nil {
		t.Error("groups that are scored have no rewards to give anew")
	}
	cfg.Topic = "metrics"
	if _, err := Recompute(t.Context(), src, cfg); err == nil {
		t.Error("metrics are recomputed")
	}
}

func TestPlan(t *testing.T) {
	src, run := fixture(t)
	cfg := same(run)
	cfg.Scorer = func(int32, []byte) (pipeline.Core, error) { return nil, errors.New("a plan scores nothing") }
	cfg.Select.FromVersion = 1
	text, err := Plan(t.Context(), src, cfg)
	if err != nil || !strings.Contains(text, "decided for the steps 2 to 3; 2 of these steps") || !strings.Contains(text, "would read traces") {
		t.Errorf("%s%v", text, err)
	}
}

func TestGamesOf(t *testing.T) {
	src, _ := fixture(t)
	n := len(src[pipeline.TopicTraces][0])
	traces := append(src[pipeline.TopicTraces][0], unreadable(pipeline.TopicTraces, 0, int64(n), ""))
	src[pipeline.TopicTraces][0] = traces
	all, refused, err := GamesOf(t.Context(), src, pipeline.TopicTraces, Everything(), nil)
	if err != nil || refused != 1 {
		t.Fatalf("%d traces cannot be read: %v", refused, err)
	}
	src[pipeline.TopicTraces][0] = traces[:n]
	games, rewards, seen := all["catch"], Distribution{}, map[eval.Game]bool{}
	for _, recs := range src[pipeline.TopicTraces] {
		for _, r := range recs {
			v, err := r.Decode(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			trace := v.(*schemas.Trace)
			seen[eval.Game{Split: trace.Split, TaskIndex: trace.TaskIndex, GroupSeed: trace.GroupSeed}] = true
			rewards.Add(float32(*trace.Reward), 1)
		}
	}
	if len(all) != 1 || len(games.Games) != len(seen) || games.Rollouts != rewards.N || games.Reward-rewards.Mean() > 1e-9 || rewards.Mean()-games.Reward > 1e-9 {
		t.Errorf("%d games, want %d; %d rollouts, %v", len(games.Games), len(seen), games.Rollouts, games.Reward)
	}
	for _, g := range games.Games {
		if !seen[g] {
			t.Errorf("%+v was not played", g)
		}
	}
	if part, _, err := GamesOf(t.Context(), src, pipeline.TopicTraces, Selection{FromVersion: 2, ToVersion: -1}, nil); err != nil || len(part["catch"].Games) >= len(seen) {
		t.Errorf("from version 2: %v", err)
	}
}
