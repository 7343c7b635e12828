package envserver

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/inference/render"
	"github.com/prl-project/prl/stages/internal/lm"
)

// game is an environment made of functions; those that are nil do the obvious.
type game struct {
	info   env.Info
	start  func() error
	prompt []env.Message
	reply  func(ctx context.Context, turn int, m env.Message) (env.Turn, error)
	score  func(replies []string) (env.Score, error)
}

func (g *game) Info() env.Info {
	i := g.info
	if i.Name == "" {
		i.Name = "game"
	}
	i.Version, i.Train, i.Eval, i.MaxTurns = "1", 100, 10, max(i.MaxTurns, 1)
	return i
}

func (g *game) Task(_ env.Split, index int) (json.RawMessage, error) {
	return json.Marshal(map[string]int{"index": index})
}

func (g *game) Start(context.Context, json.RawMessage, int64) (env.Episode, error) {
	if g.start != nil {
		if err := g.start(); err != nil {
			return nil, err
		}
	}
	return &match{game: g}, nil
}

type match struct {
	*game
	replies []string
}

func (m *match) Prompt() []env.Message {
	if m.prompt != nil {
		return m.prompt
	}
	return []env.Message{env.User("go")}
}

func (m *match) Reply(ctx context.Context, r env.Message) (env.Turn, error) {
	m.replies = append(m.replies, r.Content)
	if m.game.reply == nil {
		return env.Turn{Done: true}, nil
	}
	return m.game.reply(ctx, len(m.replies), r)
}

func (m *match) Score(context.Context) (env.Score, error) {
	if m.game.score != nil {
		return m.game.score(m.replies)
	}
	return env.Score{Rewards: env.Rewards{"length": env.Value(float64(len(strings.Join(m.replies, ""))))}}, nil
}

// goOn answers every reply with the same message.
func goOn(context.Context, int, env.Message) (env.Turn, error) {
	return env.Turn{Messages: []env.Message{env.User("on")}}, nil
}

// model is a Directory that notes what it is asked, and a home for others.
type model struct {
	answer func(ctx context.Context, call int, r inference.Request) (inference.Completion, error)
	// known answers probes; nil thinks each token as likely as its id says
	known func(ctx context.Context, call int, p inference.Probe) ([]float32, error)

	closed bool

	mu       sync.Mutex
	requests []inference.Request
	probes   []inference.Probe
}

func (m *model) Probe(ctx context.Context, p inference.Probe) ([]float32, error) {
	m.mu.Lock()
	call := len(m.probes)
	m.probes = append(m.probes, p)
	m.mu.Unlock()
	if m.known != nil {
		return m.known(ctx, call, p)
	}
	return likely(p), nil
}

func (m *model) Models(context.Context) ([]inference.ModelCard, error) { return nil, nil }
func (m *model) String() string                                        { return "home" }
func (m *model) Verify(context.Context, []byte) error                  { return nil }
func (m *model) Recorded(policy string) string                         { return policy + "@1234abcd" }
func (m *model) Server(policy string) string                           { return "server of " + policy }
func (m *model) Close()                                                { m.closed = true }

// likely is -id/100 for the tokens that a probe asks for.
func likely(p inference.Probe) []float32 {
	out := make([]float32, len(p.Tokens))
	for i, on := range p.Mask {
		out[i] = -float32(on) * float32(p.Tokens[i]) / 100
	}
	return out
}

func (m *model) Generate(ctx context.Context, r inference.Request) (inference.Completion, error) {
	m.mu.Lock()
	call := len(m.requests)
	m.requests = append(m.requests, r)
	m.mu.Unlock()
	return m.answer(ctx, call, r)
}

// says is a model that says the texts one after the other, and the last one ever after.
func says(tok *lm.Tokenizer, texts ...string) *model {
	return &model{answer: func(_ context.Context, call int, r inference.Request) (inference.Completion, error) {
		return spoken(tok, texts[min(call, len(texts)-1)], r), nil
	}}
}

// spoken is a completion of a text, cut where the request says.
func spoken(tok *lm.Tokenizer, text string, r inference.Request) inference.Completion {
	c := inference.Completion{Tokens: append(tok.Encode(text), tok.EOS()), FinishReason: inference.FinishStop}
	if len(c.Tokens) > r.MaxTokens {
		c.Tokens, c.FinishReason = c.Tokens[:r.MaxTokens], inference.FinishLength
	}
	for i := range c.Tokens {
		c.Logprobs = append(c.Logprobs, -float32(i+1)/4)
	}
	version := int64(3)
	if r.PinVersion != nil {
		version = *r.PinVersion
	}
	c.Versions = []schemas.VersionRun{{Offset: 0, Version: version}}
	return c
}

func tokenizer(t testing.TB) *lm.Tokenizer {
	t.Helper()
	tok, err := lm.NewTokenizer("")
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// speech is a renderer of a tokenizer.
func speech(t testing.TB, name string, tokenizer json.Marshaler) render.Renderer {
	t.Helper()
	data, err := json.Marshal(tokenizer)
	if err != nil {
		t.Fatal(err)
	}
	r, err := render.New(name, data)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func testPlayer(t testing.TB, e env.Environment, m Directory) *player {
	return &player{environment: e, info: e.Info(), caller: caller{m, 2, time.Minute, nil, nil}, renderer: speech(t, "", tokenizer(t)),
		envTimeout: time.Minute, maxBytes: DefaultConfig().MaxEnvBytes, maxStuck: DefaultConfig().MaxStuck, overdue: new(overdue), instance: "here", newest: func() int64 { return 9 }}
}

func testTask() *schemas.Task {
	return &schemas.Task{Env: "game", GroupID: 7, GroupSize: 4, RolloutIndex: 2, Split: schemas.SplitTrain, TaskIndex: 5, GroupSeed: 11,
		Seed: 13, Temperature: 0.5, TopP: 1, MaxTokens: 20, MaxRolloutTokens: 1000, TimeoutMs: 60_000, MaxOffPolicySteps: 2}
}

// playOne plays a task of one rollout.
func playOne(t testing.TB, p *player, task *schemas.Task) *schemas.Trace {
	t.Helper()
	traces := p.play(context.Background(), task, nil)
	if len(traces) != 1 {
		t.Fatalf("%d traces", len(traces))
	}
	if err := traces[0].Validate(); err != nil {
		t.Fatal(err)
	}
	if _, err := schemas.Encode(traces[0]); err != nil {
		t.Fatal(err)
	}
	return traces[0]
}

// scored fails unless the trace has a reward and no error.
func scored(t testing.TB, trace *schemas.Trace) {
	t.Helper()
	if len(trace.Errors) > 0 || trace.Reward == nil {
		t.Fatalf("errors %v, reward %v", trace.Errors, trace.Reward)
	}
}

// failed fails unless the trace has an error of the kind that says what, and no reward.
func failed(t testing.TB, trace *schemas.Trace, kind, what string) {
	t.Helper()
	if len(trace.Errors) != 1 || trace.Errors[0].Type != kind || !strings.Contains(trace.Errors[0].Message, what) {
		t.Fatalf("errors %+v, want one of type %s with %q", trace.Errors, kind, what)
	}
	if trace.Reward != nil || trace.Rewards != nil {
		t.Fatalf("a failed rollout has the reward %v %v", trace.Reward, trace.Rewards)
	}
}

// tokensOf joins the tokens of all nodes.
func tokensOf(trace *schemas.Trace) []int32 {
	var all []int32
	for _, n := range trace.Nodes {
		all = append(all, n.TokenIDs.Values()...)
	}
	return all
}

func contents(trace *schemas.Trace) string {
	var parts []string
	for _, n := range trace.Nodes {
		parts = append(parts, fmt.Sprintf("%s:%s", n.Role, n.Content))
	}
	return strings.Join(parts, "|")
}

func equal[T comparable](t testing.TB, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s\n%v, want\n%v", what, got, want)
	}
}
