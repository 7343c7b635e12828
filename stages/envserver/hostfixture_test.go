package envserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/inference/render"
)

// harness is a host made of a function.
type harness struct {
	env.Environment
	run func(ctx context.Context, job env.Job) (env.Outcome, error)
}

func (harness) Start(ctx context.Context, task json.RawMessage, seed int64) (env.Episode, error) {
	return env.Hosted{}.Start(ctx, task, seed)
}

func (h harness) Run(ctx context.Context, job env.Job) (env.Outcome, error) { return h.run(ctx, job) }

// hosting is a host of a game that is made of functions.
func hosting(turns int, run func(ctx context.Context, job env.Job) (env.Outcome, error)) harness {
	return harness{&game{info: env.Info{MaxTurns: turns}}, run}
}

// won is a good outcome.
func won() (env.Outcome, error) {
	return env.Outcome{Score: env.Score{Rewards: env.Rewards{"win": env.Value(1)}, Stop: "won"}}, nil
}

// hostPlayer is a player of a host, with an endpoint that is served.
func hostPlayer(t testing.TB, h env.Host, m Directory) *player {
	t.Helper()
	p := testPlayer(t, h, m)
	endpoint, err := listenHosts(slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- endpoint.serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if n := len(endpoint.desks); n > 0 {
			t.Errorf("%d rollouts have a path after the end", n)
		}
	})
	p.endpoint = endpoint
	return p
}

// playHost plays a task of a host whose policy speaks Qwen3's format.
func playHost(t testing.TB, h env.Host, m Directory, change func(*schemas.Task)) *schemas.Trace {
	t.Helper()
	p := hostPlayer(t, h, m)
	p.renderer = qwen3(t)
	task := testTask()
	task.MaxTokens, task.MaxRolloutTokens = 500, 10_000
	if change != nil {
		change(task)
	}
	return playOne(t, p, task)
}

// said is an answer as a host reads it.
type said struct {
	Content   string
	Reasoning string
	ToolCalls []wireCall
	Finish    string
	Prompt    []int32
	Tokens    []int32
	events    int
}

type wireCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// refused is a reply with an error.
type refused struct {
	status        int
	code, message string
}

func (r *refused) Error() string { return fmt.Sprintf("%d %s: %s", r.status, r.code, r.message) }

// post sends a body to an address below a base URL and reads the reply.
func post(ctx context.Context, url string, body any) ([]byte, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if data, err = io.ReadAll(resp.Body); err != nil || resp.StatusCode == http.StatusOK {
		return data, err
	}
	var e struct {
		Error struct{ Code, Message string }
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, fmt.Errorf("%d %s", resp.StatusCode, data)
	}
	return nil, &refused{resp.StatusCode, e.Error.Code, e.Error.Message}
}

// chat asks for an answer as OpenAI's clients do; with "stream" it reads the events.
func chat(ctx context.Context, job env.Job, messages []any, params map[string]any) (said, error) {
	body := map[string]any{"model": job.Model.Model, "messages": messages, "return_token_ids": true}
	for k, v := range params {
		body[k] = v
	}
	data, err := post(ctx, job.Model.BaseURL+"/chat/completions", body)
	if err != nil {
		return said{}, err
	}
	type message struct {
		Content   string
		Reasoning string
		ToolCalls []wireCall `json:"tool_calls"`
	}
	type reply struct {
		PromptTokenIDs []int32 `json:"prompt_token_ids"`
		Choices        []struct {
			Message, Delta message
			FinishReason   string  `json:"finish_reason"`
			TokenIDs       []int32 `json:"token_ids"`
		}
	}
	var out said
	take := func(data []byte) error {
		var r reply
		if err := json.Unmarshal(data, &r); err != nil {
			return err
		}
		out.Prompt = append(out.Prompt, r.PromptTokenIDs...)
		for _, c := range r.Choices {
			out.events++
			out.Content += c.Message.Content + c.Delta.Content
			out.Reasoning += c.Message.Reasoning + c.Delta.Reasoning
			out.ToolCalls = slices.Concat(out.ToolCalls, c.Message.ToolCalls, c.Delta.ToolCalls)
			out.Tokens, out.Finish = append(out.Tokens, c.TokenIDs...), c.FinishReason
		}
		return nil
	}
	if params["stream"] != true {
		return out, take(data)
	}
	done := false
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		event, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case event == "[DONE]":
			done = true
		case ok:
			if err := take([]byte(event)); err != nil {
				return out, err
			}
		}
	}
	if !done {
		return out, fmt.Errorf("the stream has no end: %s", data)
	}
	return out, nil
}

// user is a message of a history.
func user(content string) any { return map[string]any{"role": "user", "content": content} }

// again is an answer as it stands in a history.
func (s said) again() any {
	m := map[string]any{"role": "assistant", "content": s.Content}
	if len(s.ToolCalls) > 0 {
		m["tool_calls"] = s.ToolCalls
	}
	return m
}

// tells is speaks, and an answer that is cut says so.
func tells(r render.Renderer, texts ...string) *model {
	m := speaks(r, texts...)
	say := m.answer
	m.answer = func(ctx context.Context, call int, q inference.Request) (inference.Completion, error) {
		c, err := say(ctx, call, q)
		if n := len(c.Tokens); n == 0 || !slices.Contains(q.StopTokens, c.Tokens[n-1]) {
			c.FinishReason = inference.FinishLength
		}
		return c, err
	}
	return m
}

// heardModel notes what a model answered, beside what it was asked.
type heardModel struct {
	*model
	mu   sync.Mutex
	made []exchanged
}

type exchanged struct {
	request    inference.Request
	completion inference.Completion
}

func hears(m *model) *heardModel { return &heardModel{model: m} }

func (m *heardModel) Generate(ctx context.Context, r inference.Request) (inference.Completion, error) {
	c, err := m.model.Generate(ctx, r)
	if err == nil {
		m.mu.Lock()
		m.made = append(m.made, exchanged{r, c})
		m.mu.Unlock()
	}
	return c, err
}

// exact fails unless the trace holds what the model saw and sampled, each answer once, and nothing else that counts as sampled.
func exact(t testing.TB, trace *schemas.Trace, made []exchanged) {
	t.Helper()
	sampled := 0
	paths := map[string]int{} // of each answer: its node
	for i, n := range trace.Nodes {
		if !slices.Contains(n.Mask, 1) {
			continue
		}
		sampled += bytes.Count(n.Mask, []byte{1})
		var all []int32
		for _, k := range branchTo(trace.Nodes, i) {
			all = append(all, trace.Nodes[k].TokenIDs.Values()...)
		}
		paths[fmt.Sprint(all)] = i
	}
	want := 0
	for _, e := range made {
		want += len(e.completion.Tokens)
		seen := e.request.Tokens
		if e.completion.Prompt != nil {
			seen = e.completion.Prompt
		}
		i, ok := paths[fmt.Sprint(slices.Concat(seen, e.completion.Tokens))]
		if !ok {
			t.Fatalf("no branch has what the model saw and sampled: %v | %v", seen, e.completion.Tokens)
		}
		n := trace.Nodes[i]
		at := n.TokenIDs.Len() - len(e.completion.Tokens)
		equal(t, "log-probabilities", n.Logprobs.Values()[at:], e.completion.Logprobs)
		equal(t, "mask", []byte(n.Mask), slices.Concat(make([]byte, at), slices.Repeat([]byte{1}, len(e.completion.Tokens))))
		if n.Temperature != e.request.Temperature || len(n.Versions) != len(e.completion.Versions) || n.Versions[0].Offset != at {
			t.Errorf("temperature %v, versions %v", n.Temperature, n.Versions)
		}
	}
	if sampled != want || len(paths) > len(made) {
		t.Fatalf("%d sampled tokens in the trace, %d were sampled", sampled, want)
	}
}

// overHTTP plays an ordinary environment as a host: an agent's loop with OpenAI's wire, a session of the environment on the
// other side.
func overHTTP(e env.Environment, params map[string]any) harness {
	return harness{e, func(ctx context.Context, job env.Job) (env.Outcome, error) {
		s, err := env.Begin(ctx, e, job.Task, job.Seed)
		if err != nil {
			return env.Outcome{}, err
		}
		defer s.Close()
		var history []any
		hear := func(messages []env.Message) {
			for _, m := range messages {
				h := map[string]any{"role": m.Role, "content": m.Content}
				if m.ToolCallID != "" {
					h["tool_call_id"] = m.ToolCallID
				}
				history = append(history, h)
			}
		}
		hear(s.Prompt())
		all := map[string]any{}
		for k, v := range params {
			all[k] = v
		}
		var tools []any
		for _, tool := range s.Tools() {
			tools = append(tools, map[string]any{"type": "function", "function": map[string]any{"name": tool.Name, "description": tool.Description, "parameters": tool.Schema}})
		}
		all["tools"] = tools
		done, cut := false, false
		for !done {
			a, err := chat(ctx, job, history, all)
			if r, ok := err.(*refused); ok && r.code == inference.CodeTooLong {
				break
			}
			if err != nil {
				return env.Outcome{}, err
			}
			history = append(history, a.again())
			reply := env.Assistant(a.Content)
			for _, c := range a.ToolCalls {
				reply.ToolCalls = append(reply.ToolCalls, env.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
			}
			turn, err := s.Reply(ctx, reply)
			if err != nil {
				return env.Outcome{}, err
			}
			hear(turn.Messages)
			done, cut = turn.Done || a.Finish == inference.FinishLength, turn.Truncated
		}
		score, err := s.Score(ctx)
		return env.Outcome{Score: score, Truncated: cut}, err
	}}
}

// seenNodes are the nodes that a policy saw or sampled.
func seenNodes(nodes []schemas.Node) []schemas.Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n schemas.Node) bool { return len(n.TokenIDs) == 0 })
}
