package stages

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// A lesson is an environment of the demo that its model learns alone, from nothing.
type lesson struct {
	env    string
	reward float64  // at which it counts as learned: the mean over the rollouts of window steps
	steps  int64    // at most
	sets   []string // what is set otherwise than in the demo
}

// window is the number of steps over whose rollouts a reward is the mean.
const window = 5

// lessons are of a length that five seeds learn all of them in about two minutes on two cores. What catch asks for is most of what
// there is to learn, in the demo's settings. The others only begin to be learned, with fewer rollouts a step and a higher rate, which
// is faster alone: to several times what a player at random gets in reverse-text (0.03), and to more than that in wordle (0.152).
// How far they go in the demo's 900 steps stands in configs/demo.md.
var lessons = []lesson{
	{"catch", 0.8, 120, nil},
	{"reverse-text", 0.1, 150, []string{"run.batch_size=128", "trainer.lr=0.005"}},
	{"wordle", 0.2, 100, []string{"run.batch_size=128", "trainer.lr=0.005"}},
}

// A course is how far a lesson has come.
type course struct {
	lesson
	sum, n [window]float64 // rewards of the newest steps, and how many
	step   int64           // the newest of them
	done   int64           // steps it took; 0 while it is not learned
	took   time.Duration
}

// take counts what was packed. With the first outcome of a step those before it are whole.
func (c *course) take(o *schemas.GroupOutcome) {
	if o.Step == nil {
		return
	}
	for ; c.step < *o.Step; c.step++ {
		if c.done == 0 && c.step >= window && c.reward() >= c.lesson.reward {
			c.done = c.step
		}
		c.sum[(c.step+1)%window], c.n[(c.step+1)%window] = 0, 0
	}
	for _, r := range o.Rollouts {
		if r.Reward != nil {
			c.sum[c.step%window] += *r.Reward
			c.n[c.step%window]++
		}
	}
}

func (c *course) reward() float64 {
	var sum, n float64
	for i := range window {
		sum, n = sum+c.sum[i], n+c.n[i]
	}
	return sum / n
}

// learn runs the whole pipeline on a broker of its own, in this process and in ordered mode, so that a seed always takes the same
// steps, until the lesson is learned or has no steps left.
func (l lesson) learn(tb testing.TB, seed int) *course {
	tb.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		tb.Fatal(err)
	}
	defer cluster.Close()
	cfg := DefaultConfig()
	sets := append([]string{
		"dir=" + tb.TempDir(), "ui.enabled=false", fmt.Sprintf("run.seed=%d", seed), "run.max_async_level=0", "run.max_off_policy_steps=0",
	}, l.sets...)
	if err := pipeline.LoadConfig("../configs/demo.toml", nil, sets, cfg); err != nil {
		tb.Fatal(err)
	}
	keep(cfg.Envs, l.env)
	keep(cfg.Scorer.Envs, l.env)
	clear(cfg.Evals)
	app, err := NewApp(cfg, cluster.ListenAddrs(), "learn", slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	defer app.Close()
	ctx, cancel := context.WithTimeout(tb.Context(), 5*time.Minute)
	defer cancel()
	if err := app.SetUp(ctx); err != nil {
		tb.Fatal(err)
	}
	outcomes, err := app.Runtime.Follow(pipeline.TopicOutcomes)
	if err != nil {
		tb.Fatal(err)
	}
	defer outcomes.Close()
	c, start := &course{lesson: l}, time.Now()
	wanted := func(s Stage) bool { return s.Optional == nil || s.Optional(app.Config) }
	err = app.runStages(ctx, wanted, func(ctx context.Context) error {
		for c.done == 0 && c.step <= l.steps {
			recs, err := outcomes.Poll(ctx)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil && !errors.Is(err, pipeline.ErrTransient) {
				return err
			}
			for _, r := range recs {
				c.take(r.Value.(*schemas.GroupOutcome))
			}
		}
		c.took = time.Since(start)
		return nil
	})
	if err != nil {
		tb.Fatalf("%s, seed %d, at step %d: %v", l.env, seed, c.step, err)
	}
	return c
}

// keep leaves one entry.
func keep[V any](m map[string]V, name string) {
	maps.DeleteFunc(m, func(k string, _ V) bool { return k != name })
}

// BenchmarkLearn is the time in which the demo's model learns each of its environments alone, over five seeds: from the start of
// the stages until the packer has cut the step after the last that it took.
func BenchmarkLearn(b *testing.B) {
	for _, l := range lessons {
		b.Run(l.env, func(b *testing.B) {
			var seconds, steps []float64
			for b.Loop() {
				for seed := 1; seed <= 5; seed++ {
					c := l.learn(b, seed)
					b.Logf("seed %d: reward %.3f after %d steps, %.1f s", seed, c.reward(), c.step-1, c.took.Seconds())
					if c.done > 0 {
						seconds, steps = append(seconds, c.took.Seconds()), append(steps, float64(c.done))
					}
				}
			}
			b.ReportMetric(float64(len(steps))/float64(b.N), "reached")
			if len(steps) > 0 {
				slices.Sort(seconds)
				slices.Sort(steps)
				b.ReportMetric(seconds[len(seconds)/2], "s")
				b.ReportMetric(seconds[len(seconds)-1], "s-slowest")
				b.ReportMetric(steps[len(steps)/2], "steps")
				b.ReportMetric(steps[len(steps)-1], "steps-slowest")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
