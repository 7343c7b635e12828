package stages

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/eval"
)

// TestEvalByHandWithRegistry asks for rollouts of a run that frames its records for a schema registry, from a machine
// where nothing of the run is, and is stopped.
func TestEvalByHandWithRegistry(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	reg := srfake.New()
	defer reg.Close()
	open := func() *App {
		cfg := DefaultConfig()
		cfg.Dir, cfg.SchemaRegistry.URLs = t.TempDir(), []string{reg.URL()}
		cfg.Envs = map[string]emitter.EnvConfig{"catch": emitter.DefaultEnvConfig()}
		app, err := NewApp(cfg, cluster.ListenAddrs(), "test", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := app.Close(); err != nil {
				t.Error(err)
			}
		})
		return app
	}
	run := open()
	if err := run.SetUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	cl, err := run.Runtime.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	weights, err := run.Runtime.Blobs.Put(t.Context(), "weights", []byte("version 0"))
	if err != nil {
		t.Fatal(err)
	}
	for topic, v := range map[string]schemas.Record{
		pipeline.TopicPolicies: &schemas.PolicyVersion{Kind: "full", Weights: weights}, pipeline.TopicEnvs: &schemas.EnvInfo{Env: "catch", EvalTasks: 4},
	} {
		r, err := run.Runtime.Encode(t.Context(), pipeline.Emission{Topic: topic, Partition: pipeline.AutoPartition, Value: v})
		if err == nil {
			err = cl.ProduceSync(t.Context(), r).FirstErr()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	f, err := run.Runtime.Follow(pipeline.TopicTasks("catch"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	asked := make(chan error, 1)
	go func() {
		recs, err := f.Poll(ctx)
		if err == nil && len(recs) == 0 {
			err = errors.New("no task")
		}
		asked <- err
		cancel()
	}()
	var out strings.Builder
	if err := open().RunEvalByHand(ctx, &out, EvalByHand{Env: "catch", Policy: eval.Latest}); err != nil || !strings.Contains(out.String(), "stopped; --resume") {
		t.Errorf("error %v after\n%s", err, out.String())
	}
	cancel()
	if err := <-asked; err != nil {
		t.Error(err)
	}
}

// TestSuiteOfAnEvalByHand finds the settings: those of the section that is named, or of the environment's, or the
// defaults.
func TestSuiteOfAnEvalByHand(t *testing.T) {
	cfg := DefaultConfig()
	section := func(env string, k int) eval.Config {
		c := eval.DefaultConfig()
		c.Env, c.K = env, k
		return c
	}
	for _, env := range []string{"catch", "wordle", "chess", "go"} {
		cfg.Envs[env] = emitter.DefaultEnvConfig()
	}
	cfg.Evals = map[string]eval.Config{
		"balls": section("catch", 2), "wordle": section("wordle", 3), "hard": section("wordle", 4), "opening": section("chess", 5), "endgame": section("chess", 6),
	}
	five, hot := 5, 0.5
	for _, c := range []struct {
		wish EvalByHand
		name string
		k    int
		err  string
	}{
		{EvalByHand{Env: "catch"}, "balls", 2, ""},
		{EvalByHand{Env: "catch", K: &five, Examples: &five, Temperature: &hot}, "balls", 5, ""},
		{EvalByHand{Env: "wordle"}, "wordle", 3, ""},
		{EvalByHand{Env: "wordle", Suite: "hard"}, "hard", 4, ""},
		{EvalByHand{Suite: "hard"}, "hard", 4, ""},
		{EvalByHand{Env: "go"}, "go", 1, ""},
		{EvalByHand{Env: "chess"}, "", 0, "--env chess has the suites endgame, opening: choose one with --suite"},
		{EvalByHand{Env: "shogi"}, "", 0, "no section [envs.shogi]; there are [catch chess go wordle]"},
		{EvalByHand{Suite: "easy"}, "", 0, "no section [evals.easy]; there are [balls endgame hard opening wordle]"},
		{EvalByHand{Env: "catch", Suite: "hard"}, "", 0, "--suite hard is of environment wordle, not catch"},
	} {
		name, got, err := cfg.suite(c.wish)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%+v: error %v, want %q", c.wish, err, c.err)
			continue
		}
		if err == nil && (name != c.name || got.K != c.k || got.Env == "") {
			t.Errorf("%+v: suite %s %+v", c.wish, name, got)
		}
		if c.wish.Examples != nil && (got.Examples != 5 || got.Temperature != 0.5) {
			t.Errorf("%+v: %+v", c.wish, got)
		}
	}
}
