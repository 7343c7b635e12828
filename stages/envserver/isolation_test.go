package envserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
)

// A vice is what one task of a bad environment does, on the way of a rollout that is otherwise like any other.
type vice struct {
	name   string
	task   func() (json.RawMessage, error)
	start  func() (env.Episode, error)
	prompt func() []env.Message
	tools  func() []env.Tool
	reply  func(context.Context) (env.Turn, error)
	score  func() (env.Score, error)
	close  func() error
	want   string // part of the error; empty where the rollout is scored
	trace  string // part of its traceback
}

// broken is an error that panics when it is asked what it says, as a nil pointer in an interface does.
type broken struct{ text string }

func (b *broken) Error() string { return b.text }

// untraceable panics when it is asked where it comes from.
type untraceable struct{ error }

func (untraceable) Traceback() string { panic("no trace") }

func say(s string) []env.Message { return []env.Message{env.User(s)} }

// figuresOf is a score with n components and metrics.
func figuresOf(rewards, metrics int) env.Score {
	s := env.Score{Rewards: env.Rewards{}, Metrics: map[string]float64{}}
	for i := range rewards {
		s.Rewards[fmt.Sprint(i)] = env.Value(1)
	}
	for i := range metrics {
		s.Metrics[fmt.Sprint(i)] = 1
	}
	return s
}

// vices are ways to be bad. What hangs does so until the test ends.
func vices(hang <-chan struct{}) []vice {
	const most = 1 << 20 // bytes
	big := strings.Repeat("x", most+1)
	schema := json.RawMessage(`{"type":"object"}`)
	tools := func(n int, description string) func() []env.Tool {
		return func() (list []env.Tool) {
			for i := range n {
				list = append(list, env.Tool{Name: fmt.Sprint("t", i), Description: description, Schema: schema})
			}
			return list
		}
	}
	turn := func(t env.Turn, err error) func(context.Context) (env.Turn, error) {
		return func(context.Context) (env.Turn, error) { return t, err }
	}
	score := func(s env.Score) func() (env.Score, error) {
		return func() (env.Score, error) { return s, nil }
	}
	here := "isolation_test.go"
	return []vice{
		{name: "good"},
		{name: "panics at the start", start: func() (env.Episode, error) { panic("boom") }, want: "panicked: boom", trace: here},
		{name: "panics in its prompt", prompt: func() []env.Message { panic("boom") }, want: "panicked: boom", trace: here},
		{name: "panics in its tools", tools: func() []env.Tool { panic("boom") }, want: "panicked: boom", trace: here},
		{name: "panics in a reply", reply: func(context.Context) (env.Turn, error) { panic(errors.New("boom")) }, want: "panicked: boom", trace: here},
		{name: "panics while it scores", score: func() (env.Score, error) { panic("boom") }, want: "panicked: boom", trace: here},
		{name: "panics at the end", close: func() error { panic("boom") }},
		{name: "panics with a book", reply: func(context.Context) (env.Turn, error) { panic(big) }, want: "panicked: xxx", trace: here},
		{name: "ends the goroutine", reply: func(context.Context) (env.Turn, error) { runtime.Goexit(); return env.Turn{}, nil }, want: "runtime.Goexit"},
		{name: "fails with a nil pointer", start: func() (env.Episode, error) { return nil, (*broken)(nil) }, want: "start contest"},
		{name: "fails to close with one", start: func() (env.Episode, error) { return nil, errors.New("no") }, want: "start contest: no"},
		{name: "has no trace", score: func() (env.Score, error) { return env.Score{}, untraceable{errors.New("oh")} }, want: "panics when it is asked"},
		{name: "starts nothing", start: func() (env.Episode, error) { return nil, nil }, want: "no episode and no error"},
		{name: "says nothing first", prompt: func() []env.Message { return nil }, want: "the prompt is empty"},
		{name: "says nothing", reply: turn(env.Turn{}, nil), want: "without a message"},
		{name: "plays a role of its own", reply: turn(env.Turn{Messages: []env.Message{{Role: "robot", Content: "hi"}}}, nil), want: `robot`},
		{name: "speaks no UTF-8", reply: turn(env.Turn{Messages: say("\xff\x00"), Done: true}, nil)},
		{name: "has no task", task: func() (json.RawMessage, error) { panic("lost") }, want: "panicked: lost", trace: here},
		{name: "has a huge task", task: func() (json.RawMessage, error) { return json.Marshal(big) }, want: "a task of"},
		{name: "floods the prompt", prompt: func() []env.Message { return say(big) }, want: "messages of"},
		{name: "floods", reply: turn(env.Turn{Messages: say(big)}, nil), want: "messages of"},
		{name: "floods in drops", reply: turn(env.Turn{Messages: slices.Repeat(say("x"), maxMessages+1)}, nil), want: "1025 messages at once"},
		{name: "floods with pictures", reply: turn(env.Turn{Messages: []env.Message{{Role: env.RoleUser, Images: []env.Image{
			{MIME: "image/png", Data: []byte(big), Alt: "x"}}}}}, nil), want: "messages of"},
		{name: "has a thousand tools", tools: tools(maxTools+1, ""), want: "257 tools"},
		{name: "has a wordy tool", tools: tools(1, big), want: "tools of"},
		{name: "has an endless tool", tools: func() []env.Tool { return []env.Tool{{Name: "t", Schema: json.RawMessage(`{"$ref":"#"}`)}} }, want: "without end"},
		{name: "scores at length", score: score(figuresOf(maxFigures+1, 0)), want: "257 components"},
		{name: "measures at length", score: score(figuresOf(1, maxFigures+1)), want: "257 metrics"},
		{name: "scores NaN", score: score(env.Score{Rewards: env.Rewards{"r": env.Value(math.NaN())}}), want: `"r" is not finite`},
		{name: "sums up to infinity", score: score(env.Score{Rewards: env.Rewards{"a": env.Value(math.MaxFloat64), "b": env.Value(math.MaxFloat64)}}), want: "sum of the rewards is not finite"},
		{name: "measures infinity", score: score(env.Score{Metrics: map[string]float64{"m": math.Inf(1)}}), want: `"m" is not finite`},
		{name: "calls a reward by a book", score: score(env.Score{Rewards: env.Rewards{big: env.Value(1)}}), want: "a reward with a name of"},
		{name: "calls a reward by bytes", score: score(env.Score{Rewards: env.Rewards{"\xff": env.Value(1)}}), want: "not UTF-8"},
		{name: "ends with a book", score: score(env.Score{Stop: big}), want: "a stop reason with a name of"},
		{name: "rewards what nobody said", score: score(env.Score{CharRewards: []env.CharRewards{{1, 2, 3, 4, 5, 6, 7, 8, 9}}}), want: "reply 0"},
		{name: "hangs at the start", start: func() (env.Episode, error) { <-hang; return nil, errors.New("late") }, want: "start: no answer in"},
		{name: "hangs in a reply", reply: func(context.Context) (env.Turn, error) { <-hang; return env.Turn{}, nil }, want: "reply: no answer in"},
		{name: "hangs while it scores", score: func() (env.Score, error) { <-hang; return env.Score{}, nil }, want: "score: no answer in"},
		{name: "hangs at the end", close: func() error { <-hang; return nil }},
		{name: "is slow, and says so", reply: func(ctx context.Context) (env.Turn, error) { <-ctx.Done(); return env.Turn{}, ctx.Err() }, want: "deadline exceeded"},
	}
}

// villain is an environment of whose tasks each has a vice.
type villain struct {
	vices   []vice
	started atomic.Int64
}

func (v *villain) Info() env.Info {
	return env.Info{Name: "contest", Version: "1", Train: len(v.vices), Eval: 1, MaxTurns: 3}
}

func (v *villain) Task(_ env.Split, index int) (json.RawMessage, error) {
	if f := v.vices[index].task; f != nil {
		return f()
	}
	return json.Marshal(index)
}

func (v *villain) Start(_ context.Context, task json.RawMessage, _ int64) (env.Episode, error) {
	v.started.Add(1)
	index := 0
	if err := json.Unmarshal(task, &index); err != nil {
		index = 0 // of a task that is too large; the episode begins
	}
	e := &wicked{vice: v.vices[index]}
	if e.start != nil {
		return e.start()
	}
	return e, nil
}

type wicked struct{ vice }

func (w *wicked) Prompt() []env.Message {
	if w.prompt != nil {
		return w.prompt()
	}
	return say("go")
}

func (w *wicked) Tools() []env.Tool {
	if w.tools != nil {
		return w.tools()
	}
	return nil
}

func (w *wicked) CallTool(context.Context, string, json.RawMessage) (env.ToolResult, error) {
	return env.ToolResult{}, nil
}

func (w *wicked) Reply(ctx context.Context, _ env.Message) (env.Turn, error) {
	if w.reply != nil {
		return w.reply(ctx)
	}
	return env.Turn{Done: true}, nil
}

func (w *wicked) Score(context.Context) (env.Score, error) {
	if w.score != nil {
		return w.score()
	}
	return env.Score{Rewards: env.Rewards{"r": env.Value(1)}}, nil
}

func (w *wicked) Close() error {
	if w.close != nil {
		return w.close()
	}
	return nil
}

// besideGame serves an environment "contest" beside the healthy "game" in one process, writes tasks of both and gives the
// traces of all.
func besideGame(t *testing.T, rt *pipeline.Runtime, n int, contest []schemas.Record) (bad map[int64]*schemas.Trace) {
	t.Helper()
	for i, task := range contest {
		task := task.(*schemas.Task)
		task.Env, task.GroupID = "contest", int64(n+i)
	}
	produce(t, rt, pipeline.TopicTasks("contest"), contest...)
	produce(t, rt, pipeline.TopicTasks("game"), tasks(n, nil)...)
	bad = map[int64]*schemas.Trace{}
	for _, r := range read(t, rt, pipeline.TopicTraces, covers(int64(n+len(contest)))) {
		trace := r.Value.(*schemas.Trace)
		if trace.Env == "game" {
			scored(t, trace)
			continue
		}
		bad[trace.GroupID-int64(n)] = trace
	}
	return bad
}

// A bad environment costs its own rollouts only, and each of their traces says what was wrong: with every vice at once.
func TestBadEnvironmentsHurtNobodyElse(t *testing.T) {
	rt, _, _ := testRun(t)
	hang := make(chan struct{})
	v := &villain{vices: vices(hang)}
	stop := serveAll(t, rt, map[string]env.Environment{"game": &game{}, "contest": v}, says(tokenizer(t), "hi"), nil, func(c *Config) {
		c.EnvTimeout, c.MaxEnvBytes = pipeline.Duration(300*time.Millisecond), 1<<20
		c.Concurrency = 2 * len(v.vices)
	})
	bad := besideGame(t, rt, 100, tasks(len(v.vices), func(i int, task *schemas.Task) { task.TaskIndex = int64(i) }))
	for i, vice := range v.vices {
		t.Run(vice.name, func(t *testing.T) {
			trace := bad[int64(i)]
			if vice.want == "" {
				scored(t, trace)
				return
			}
			failed(t, trace, errorEnvironment, vice.want)
			e := trace.Errors[0]
			if !strings.Contains(e.Traceback, vice.trace) {
				t.Errorf("traceback %q", e.Traceback)
			}
			if len(e.Message) > mostMessage+100 || len(e.Traceback) > mostTraceback+100 {
				t.Errorf("a message of %d bytes, a traceback of %d", len(e.Message), len(e.Traceback))
			}
		})
	}
	close(hang)
	stop()
}

// Calls that never return are bounded: an environment of which too many hang is not begun any more, its rollouts fail at once,
// and when the calls return at last it is played again.
func TestHangingEnvironmentIsShedUntilItReturns(t *testing.T) {
	rt, _, _ := testRun(t)
	reg := prometheus.NewRegistry()
	rt.Registry = reg
	hang := make(chan struct{})
	wait := func(context.Context) (env.Turn, error) { <-hang; return env.Turn{Done: true}, nil }
	v := &villain{vices: []vice{{}, {reply: wait}}}
	const slots, most, n = 8, 4, 60
	cfg := DefaultConfig()
	cfg.Concurrency, cfg.MaxStuck, cfg.EnvTimeout = slots, most, pipeline.Duration(200*time.Millisecond)
	s, err := New(rt, cfg, map[string]env.Environment{"game": &game{}, "contest": v}, says(tokenizer(t), "hi"), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	bad := besideGame(t, rt, n, tasks(n, func(_ int, task *schemas.Task) { task.TaskIndex = 1 }))
	shed := 0
	for _, trace := range bad {
		if strings.Contains(trace.Errors[0].Message, "have not returned") {
			failed(t, trace, errorEnvironment, "max_stuck")
			shed++
		} else {
			failed(t, trace, errorEnvironment, "reply: no answer in 200ms")
		}
	}
	// What ran when the first of them were overdue hangs, too.
	if began := v.started.Load() - 1; began > slots+most || int(began)+shed != n {
		t.Fatalf("%d episodes began, and %d of %d rollouts were shed; want at most %d to begin", began, shed, n, slots+most)
	}
	if got := gauge(t, reg, "prl_envserver_stuck_calls", "contest"); got < most {
		t.Fatalf("%v calls hang", got)
	}
	close(hang)
	for start := time.Now(); gauge(t, reg, "prl_envserver_stuck_calls", "contest") > 0; time.Sleep(time.Millisecond) {
		if time.Since(start) > deadline {
			t.Fatal("calls that have returned still count")
		}
	}
	produce(t, rt, pipeline.TopicTasks("contest"), tasks(1, func(_ int, task *schemas.Task) {
		task.Env, task.GroupID, task.TaskIndex = "contest", 2*n, 1
	})...)
	recs := read(t, rt, pipeline.TopicTraces, covers(2*n+1))
	i := slices.IndexFunc(recs, func(r pipeline.Record) bool { return r.Value.(*schemas.Trace).GroupID == 2*n })
	scored(t, recs[i].Value.(*schemas.Trace))
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// gauge reads a gauge of an environment.
func gauge(t *testing.T, reg *prometheus.Registry, name, environment string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == environment }) {
				return m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no %s of %s", name, environment)
	return 0
}
