package envserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/inference/render"
)

// shown is a game that demonstrates.
type shown struct {
	game
	demonstrate func(task string, seed int64) (string, error)
}

func (s *shown) Demonstrate(task json.RawMessage, seed int64) (string, error) {
	if s.demonstrate != nil {
		return s.demonstrate(string(task), seed)
	}
	return fmt.Sprintf("%s like so %d", task, seed), nil
}

func taught(t testing.TB, e env.Environment, m Directory, teacher string) *player {
	p := testPlayer(t, e, m)
	p.teacher = Teacher{Policy: teacher}
	return p
}

func TestInvariant_Taught(t *testing.T) {
	tok := tokenizer(t)
	m := says(tok, "hi", "bye")
	g := &game{info: env.Info{MaxTurns: 2}, reply: goOn}
	trace := playOne(t, taught(t, g, m, "teacher"), testTask())
	scored(t, trace)
	if got := contents(trace); got != "user:go|assistant:hi|user:on|assistant:bye|user:on" {
		t.Fatal(got)
	}
	if len(m.probes) != 1 {
		t.Fatalf("%d probes, want one for the only branch", len(m.probes))
	}
	p := m.probes[0]
	equal(t, "what is probed is what the trace holds", p.Tokens, tokensOf(trace))
	if p.Policy != "teacher" || p.PinVersion != nil || p.Temperature != 0.5 {
		t.Errorf("probe %+v", p)
	}
	all := likely(p)
	for i, n := range trace.Nodes {
		own := all[:n.TokenIDs.Len()]
		all = all[len(own):]
		if slices.Contains(n.Mask, 1) {
			equal(t, "log-probabilities of the teacher", n.RefLogprobs.Values(), own)
			if n.RefModel != "teacher@1234abcd" || own[0] != 0 || own[1] == 0 {
				t.Errorf("node %d: %s %v", i, n.RefModel, own)
			}
		} else if n.RefLogprobs.Len() != 0 || n.RefModel != "" {
			t.Errorf("node %d, of which nothing was sampled, has a teacher", i)
		}
	}
	for what, change := range map[string]func(*schemas.Task, *player){
		"an eval":    func(t *schemas.Task, _ *player) { t.Eval, t.Split = "held-out", schemas.SplitEval },
		"no teacher": func(_ *schemas.Task, p *player) { p.teacher = Teacher{} },
	} {
		m := says(tok, "hi")
		p, task := taught(t, &game{}, m, "teacher"), testTask()
		change(task, p)
		trace := playOne(t, p, task)
		scored(t, trace)
		if len(m.probes) != 0 || trace.Nodes[1].RefLogprobs.Len() != 0 {
			t.Errorf("%s: %d probes", what, len(m.probes))
		}
	}
}

// A node that branches share is asked about once, and each branch's own nodes given their path alone.
func TestTeacherOfBranches(t *testing.T) {
	m := says(tokenizer(t), "unused")
	r := taught(t, &game{}, m, "teacher").newRollout(testTask(), 2, "", nil)
	node := func(parent int, mask string, ids ...int32) schemas.Node {
		n := schemas.Node{Parent: parent, TokenIDs: schemas.PackInt32s(ids), Logprobs: make([]byte, 4*len(ids))}
		for _, c := range mask {
			n.Mask = append(n.Mask, byte(c-'0'))
		}
		return n
	}
	r.trace.Nodes = []schemas.Node{
		node(-1, "00", 1, 2), node(0, "011", 3, 4, 5), // shared
		node(1, "0", 6), node(2, "01", 7, 8), // the first branch
		node(1, "0", 9), node(4, "01", 10, 11), node(5, ""), // the second, with a message nobody saw
		node(-1, "0", 12), // a branch without anything sampled
	}
	m.known = func(_ context.Context, call int, p inference.Probe) ([]float32, error) {
		if call == 0 {
			return likely(p), nil
		}
		return nil, &inference.Error{Status: 400, Code: inference.CodeInvalid, Message: "no"}
	}
	if err := r.teach(t.Context(), time.Now().Add(time.Minute)); err == nil || r.trace.Nodes[1].RefLogprobs.Len() > 0 {
		t.Fatalf("the teacher failed at the second branch: %v, the first has %v", err, r.trace.Nodes[1].RefLogprobs)
	}
	m.known, m.probes = nil, nil
	if err := r.teach(t.Context(), time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if len(m.probes) != 2 {
		t.Fatalf("%d probes", len(m.probes))
	}
	equal(t, "first branch", m.probes[0].Tokens, []int32{1, 2, 3, 4, 5, 6, 7, 8})
	equal(t, "its mask", m.probes[0].Mask, []byte{0, 0, 0, 1, 1, 0, 0, 1})
	equal(t, "second branch", m.probes[1].Tokens, []int32{1, 2, 3, 4, 5, 9, 10, 11})
	equal(t, "its mask", m.probes[1].Mask, []byte{0, 0, 0, 0, 0, 0, 0, 1})
	for i, want := range map[int][]float32{0: nil, 1: {0, -0.04, -0.05}, 2: nil, 3: {0, -0.08}, 4: nil, 5: {0, -0.11}, 6: nil, 7: nil} {
		equal(t, fmt.Sprintf("node %d", i), r.trace.Nodes[i].RefLogprobs.Values(), want)
	}
}

// The policy itself teaches when it is shown how: the demonstration stands before the very tokens of the trace.
func TestSelfTeaches(t *testing.T) {
	tok := tokenizer(t)
	odd := append(tok.Encode("a\xc3b"), tok.GenerationPrompt()[0], tok.EOS()) // no text renders to it
	for _, pin := range []*int64{nil, new(int64)} {
		m := &model{answer: func(_ context.Context, _ int, r inference.Request) (inference.Completion, error) {
			c := inference.Completion{Tokens: odd, Logprobs: []float32{-1, -1, -1, -1, -1}, FinishReason: inference.FinishStop}
			if r.PinVersion != nil {
				c.Versions = []schemas.VersionRun{{Offset: 0, Version: *r.PinVersion}}
			}
			return c, nil
		}}
		task := testTask()
		task.PinVersion = pin
		trace := playOne(t, taught(t, &shown{}, m, schemas.TeacherSelf), task)
		scored(t, trace)
		demonstration, err := tok.RenderMessage("system", `{"index":5} like so 11`)
		if err != nil {
			t.Fatal(err)
		}
		p, version := m.probes[0], int64(9)
		if pin != nil {
			version = *pin
		}
		equal(t, "the conversation behind a demonstration", p.Tokens, append(demonstration, tokensOf(trace)...))
		if p.Policy != "" || p.PinVersion == nil || *p.PinVersion != version || len(m.probes) != 1 {
			t.Errorf("probe %+v, want version %d", p, version)
		}
		n := trace.Nodes[1]
		if want := fmt.Sprintf("self@%d", version); n.RefModel != want || len(m.requests[0].Tokens) != len(tokensOf(trace))-len(odd) {
			t.Errorf("teacher %q, want %q", n.RefModel, want)
		}
		equal(t, "log-probabilities", n.RefLogprobs.Values(), likely(p)[len(p.Tokens)-n.TokenIDs.Len():])
	}
}

// A teacher that fails is a failure of the rollout, and there is no trace with half of its log-probabilities.
func TestTeacherFails(t *testing.T) {
	inexact := func(change func([]float32) []float32) func(context.Context, int, inference.Probe) ([]float32, error) {
		return func(_ context.Context, _ int, p inference.Probe) ([]float32, error) { return change(likely(p)), nil }
	}
	for _, c := range []struct {
		name, teacher string
		known         func(context.Context, int, inference.Probe) ([]float32, error)
		demonstrate   func(string, int64) (string, error)
		kind, what    string
		probes        int
	}{
		{name: "again and again", teacher: "far", known: func(context.Context, int, inference.Probe) ([]float32, error) {
			return nil, errors.New("away")
		}, kind: errorModel, what: "teacher far@1234abcd: model call, try 3 of 3: away", probes: 3},
		{name: "refuses", teacher: "far", known: func(context.Context, int, inference.Probe) ([]float32, error) {
			return nil, &inference.Error{Status: 404, Code: inference.CodeNoModel, Message: "who"}
		}, kind: errorModel, what: "try 1 of 3: who", probes: 1},
		{name: "does not answer", teacher: "far", known: func(ctx context.Context, _ int, _ inference.Probe) ([]float32, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, kind: errorModel, what: "time is over", probes: 1},
		{name: "too few", teacher: "far", known: inexact(func(l []float32) []float32 { return l[1:] }), kind: errorModel, what: "cannot be trained on", probes: 1},
		{name: "not a number", teacher: "far", known: inexact(func(l []float32) []float32 { l[1] = float32(math.NaN()); return l }), kind: errorModel, what: "cannot be trained on", probes: 1},
		{name: "above 1", teacher: "far", known: inexact(func(l []float32) []float32 { l[len(l)-1] = 0.1; return l }), kind: errorModel, what: "cannot be trained on", probes: 1},
		{name: "no demonstration", teacher: schemas.TeacherSelf, demonstrate: func(string, int64) (string, error) { return "", errors.New("no idea") }, kind: errorEnvironment, what: "demonstration: no idea"},
		{name: "demonstration panics", teacher: schemas.TeacherSelf, demonstrate: func(string, int64) (string, error) { panic("oh") }, kind: errorEnvironment, what: "demonstration: environment panicked: oh"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := says(tokenizer(t), "hello")
				m.known = c.known
				task := testTask()
				task.TimeoutMs = 59_000
				trace := playOne(t, taught(t, &shown{demonstrate: c.demonstrate}, m, c.teacher), task)
				failed(t, trace, c.kind, c.what)
				if len(m.probes) != c.probes {
					t.Errorf("%d probes, want %d", len(m.probes), c.probes)
				}
				for _, n := range trace.Nodes {
					if n.RefLogprobs.Len() > 0 || n.RefModel != "" {
						t.Error("a node has a teacher all the same")
					}
				}
			})
		})
	}
}

func TestTeacherIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := says(tokenizer(t), "hello")
		m.known = func(_ context.Context, call int, p inference.Probe) ([]float32, error) {
			if call < 2 {
				return nil, errors.New("away")
			}
			return likely(p), nil
		}
		trace := playOne(t, taught(t, &game{}, m, "far"), testTask())
		scored(t, trace)
		if len(m.probes) != 3 || len(m.requests) != 1 || trace.Nodes[1].RefLogprobs.Len() == 0 {
			t.Errorf("%d probes, %d model calls", len(m.probes), len(m.requests))
		}
	})
}

// Of the rollout's time some is left for the teacher, however long the policy takes.
func TestTimeOfTheTeacher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tok := tokenizer(t)
		m := &model{answer: func(ctx context.Context, call int, r inference.Request) (inference.Completion, error) {
			if call == 1 {
				<-ctx.Done()
				return inference.Completion{}, ctx.Err()
			}
			return spoken(tok, "hello", r), nil
		}}
		var left time.Duration
		m.known = func(ctx context.Context, _ int, p inference.Probe) ([]float32, error) {
			end, _ := ctx.Deadline()
			left = time.Until(end)
			return likely(p), nil
		}
		start := time.Now()
		trace := playOne(t, taught(t, &game{info: env.Info{MaxTurns: 3}, reply: goOn}, m, "far"), testTask())
		scored(t, trace)
		if trace.StopReason != stopDeadline || time.Since(start) != 48*time.Second || left != 12*time.Second {
			t.Errorf("stop %q after %v, %v left to the teacher", trace.StopReason, time.Since(start), left)
		}
	})
}

// A score that takes long is not the teacher's failure: its time begins behind it.
func TestSlowScoreTakesNothingFromTheTeacher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := says(tokenizer(t), "hello")
		var left time.Duration
		m.known = func(ctx context.Context, _ int, p inference.Probe) ([]float32, error) {
			end, _ := ctx.Deadline()
			left = time.Until(end)
			return likely(p), nil
		}
		g := &game{score: func([]string) (env.Score, error) {
			time.Sleep(59 * time.Second)
			return env.Score{Rewards: env.Rewards{"r": env.Value(1)}}, nil
		}}
		start := time.Now()
		scored(t, playOne(t, taught(t, g, m, "far"), testTask()))
		if time.Since(start) != 59*time.Second || left != 12*time.Second {
			t.Errorf("after %v, %v left to the teacher", time.Since(start), left)
		}
	})
}

func TestTeacherNeedsDemonstrations(t *testing.T) {
	rt, _, _ := testRun(t)
	_, err := New(rt, DefaultConfig(), map[string]env.Environment{"game": &game{}}, says(tokenizer(t), "hi"), map[string]Teacher{"game": {Policy: schemas.TeacherSelf}})
	if err == nil || !strings.Contains(err.Error(), `envs.game.teacher = "self"`) {
		t.Errorf("got %v", err)
	}
	if _, err := New(rt, DefaultConfig(), map[string]env.Environment{"game": &shown{}}, says(tokenizer(t), "hi"), map[string]Teacher{"game": {Policy: schemas.TeacherSelf}}); err != nil {
		t.Error(err)
	}
}

// A demonstration that does not fit beside the longest rollout ends the server at its start.
func TestDemonstrationsFit(t *testing.T) {
	tok := tokenizer(t)
	longest, err := tok.RenderMessage("system", `{"index":10} like so 10`) // as are all of two digits
	if err != nil {
		t.Fatal(err)
	}
	fails := func(string, int64) (string, error) { return "", errors.New("no idea") }
	for what, c := range map[string]struct {
		env     shown
		teacher Teacher
		want    string
		fatal   bool
	}{
		"room":         {shown{}, Teacher{schemas.TeacherSelf, len(longest)}, "", false},
		"too little":   {shown{}, Teacher{schemas.TeacherSelf, len(longest) - 1}, fmt.Sprintf(`envs.game.teacher = "self": the demonstration of task 10 has %d tokens, and the longest rollout leaves %d`, len(longest), len(longest)-1), true},
		"none":         {shown{demonstrate: fails}, Teacher{schemas.TeacherSelf, 1000}, "envs.game: task 0: demonstration: no idea", false},
		"not asked of": {shown{demonstrate: fails}, Teacher{"far", 0}, "", false},
	} {
		p := testPlayer(t, &c.env, says(tok, "hi"))
		p.teacher = c.teacher
		err := p.checkDemonstrations(t.Context())
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || errors.Is(err, pipeline.ErrFatal) != c.fatal {
			t.Errorf("%s: got %v, want %q, fatal: %v", what, err, c.want, c.fatal)
		}
	}
	rt, _, _ := testRun(t)
	s, err := New(rt, DefaultConfig(), map[string]env.Environment{"game": &shown{}}, says(tok, "hi"), map[string]Teacher{"game": {schemas.TeacherSelf, 5}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if err := s.Run(ctx); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "the demonstration of task 0") {
		t.Errorf("got %v", err)
	}
}

// What fails is logged with the policy and the server that was asked, each for itself.
func TestFailuresNameTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m := says(tokenizer(t), "hi")
		m.known = func(_ context.Context, call int, p inference.Probe) ([]float32, error) {
			if call == 0 {
				return nil, errors.New("away")
			}
			return likely(p), nil
		}
		answer := m.answer
		m.answer = func(ctx context.Context, call int, r inference.Request) (inference.Completion, error) {
			if call < 2 {
				return inference.Completion{}, errors.New("busy")
			}
			return answer(ctx, call, r)
		}
		p := taught(t, &game{}, m, "far")
		p.caller.warn = warner(slog.New(slog.NewTextHandler(&log, nil)), m)
		scored(t, playOne(t, p, testTask()))
		for _, want := range []string{`policy="" server="server of " failed=1 error=busy`, `policy=far server="server of far" failed=1 error=away`} {
			if strings.Count(log.String(), want) != 1 || strings.Count(log.String(), "\n") != 2 {
				t.Errorf("logged %s, want once %s", &log, want)
			}
		}
	})
}

// careful is a model that looks at the tokenizer.
type careful struct {
	*model
	verify func(tokenizer []byte) error
}

func (c *careful) Verify(_ context.Context, tokenizer []byte) error { return c.verify(tokenizer) }

// A model that does not take the run's tokenizer ends the server; one that cannot say yet is asked again, and nothing is
// played before.
func TestModelSeesTheTokenizerFirst(t *testing.T) {
	rt, _, _ := testRun(t)
	var log bytes.Buffer
	rt.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	m := &careful{model: says(tokenizer(t), "hi"), verify: func([]byte) error { return pipeline.Fatal("another tokenizer") }}
	s, err := New(rt, DefaultConfig(), map[string]env.Environment{"game": &game{}}, m, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if err := s.Run(ctx); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "another tokenizer") {
		t.Errorf("got %v", err)
	}
	produce(t, rt, pipeline.TopicTasks("game"), tasks(3, nil)...)
	calls := 0
	m.verify = func(tokenizer []byte) error {
		if calls++; len(m.requests) > 0 {
			t.Error("a model was asked before it took the tokenizer")
		}
		if calls == 1 {
			return errors.New("away")
		}
		if _, err := render.New("", tokenizer); err != nil {
			t.Error(err)
		}
		return nil
	}
	stop := serveEnv(t, rt, &game{}, m)
	for _, r := range read(t, rt, pipeline.TopicTraces, covers(3)) {
		scored(t, r.Value.(*schemas.Trace))
	}
	stop()
	if calls != 2 || !m.closed || !strings.Contains(log.String(), "nothing is played yet") || !strings.Contains(log.String(), "error=away") {
		t.Errorf("asked %d times, closed: %v, logged %s", calls, m.closed, &log)
	}
}
