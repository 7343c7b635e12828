package ui

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/ui/index"
)

// rolloutAnswer is a rollout for the page.
type rolloutAnswer struct {
	ID       string              `json:"id"`
	Row      *index.Row          `json:"row"`
	Why      string              `json:"why"` // what became of it
	Task     string              `json:"task"`
	Split    string              `json:"split"`
	EnvIs    string              `json:"env_version"`
	Model    string              `json:"model"`
	Instance string              `json:"instance"`
	Seed     int64               `json:"seed,string"` // more than a browser's numbers hold
	Info     string              `json:"info,omitempty"`
	Nodes    []node              `json:"nodes"`
	Rewards  map[string]*float64 `json:"rewards"`
	Metrics  map[string]float64  `json:"metrics"`
	Errors   []traceError        `json:"errors"`
	Timing   map[string]float64  `json:"timing"` // seconds
	Group    []index.Row         `json:"group"`
	SameTask []index.Row         `json:"same_task"` // the task at other versions, by version
}

type traceError struct {
	Type      string `json:"type"`
	Message   string `json:"message"`
	Traceback string `json:"traceback"`
}

type node struct {
	Parent      int        `json:"parent"`
	Role        string     `json:"role"`
	Content     string     `json:"content"`
	Reasoning   string     `json:"reasoning,omitempty"`
	ToolCalls   []toolCall `json:"tool_calls,omitempty"`
	ToolCallID  string     `json:"tool_call_id,omitempty"`
	Agent       string     `json:"agent,omitempty"`
	Reward      *float64   `json:"reward,omitempty"`
	Tokens      int        `json:"tokens"`
	Sampled     int        `json:"sampled"`
	Temperature float64    `json:"temperature,omitempty"`
	Versions    []int64    `json:"versions,omitempty"`
	Images      []picture  `json:"images,omitempty"`
}

type toolCall struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type picture struct {
	Alt   string `json:"alt"`
	Shown bool   `json:"shown"` // a browser may show it
}

// maxSameTask bounds the list of rollouts of a task.
const maxSameTask = 200

func (u *UI) getRollout(r *http.Request) (any, error) {
	id, t, err := u.rolloutOf(r)
	if err != nil {
		return nil, err
	}
	a := rolloutAnswer{
		ID: id.String(), Task: t.Task, Split: t.Split, EnvIs: t.EnvVersion, Model: t.Model, Instance: t.Instance, Seed: t.Seed, Info: t.Info,
		Rewards: t.Rewards, Metrics: maps.Clone(t.Metrics), Errors: []traceError{}, Nodes: make([]node, len(t.Nodes)),
		Timing: map[string]float64{
			"setup": t.Timing.SetupMs / 1000, "model": t.Timing.GenerationMs / 1000, "environment": t.Timing.EnvironmentMs / 1000, "scoring": t.Timing.ScoringMs / 1000,
		},
	}
	for _, m := range []map[string]float64{a.Metrics, a.Timing} { // JSON has no words for them
		maps.DeleteFunc(m, func(_ string, v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	}
	for _, e := range t.Errors {
		a.Errors = append(a.Errors, traceError{e.Type, e.Message, e.Traceback})
	}
	for i := range t.Nodes {
		a.Nodes[i] = nodeOf(&t.Nodes[i])
	}
	a.Group = u.model.rollouts.Group(t.Eval, t.GroupID)
	for i := range a.Group {
		if a.Group[i].ID == a.ID {
			a.Row = &a.Group[i]
		}
	}
	if a.Row == nil { // older than the index goes back
		row := index.Row{ID: a.ID, Env: t.Env, Eval: t.Eval, Group: t.GroupID, Task: t.TaskIndex, Rollout: t.RolloutIndex, Attempt: t.Attempt,
			Reward: t.Reward, Start: t.PolicyStart, End: t.PolicyEnd, Stop: t.StopReason, Truncated: t.Truncated, Policy: t.Policy}
		a.Row = &row
	}
	eval := t.Eval
	if eval == "" {
		eval = "train"
	}
	a.SameTask = u.model.rollouts.Find(index.Query{Env: []string{t.Env}, Eval: eval, Task: &t.TaskIndex, Sort: "version", Limit: maxSameTask}).Rows
	a.Why = why(a.Row, t)
	return a, nil
}

// rolloutOf reads the rollout that a request names, with its tensors.
func (u *UI) rolloutOf(r *http.Request) (id index.ID, t *schemas.Trace, err error) {
	if id, err = index.ParseID(r.PathValue("id")); err != nil {
		return id, nil, problem{http.StatusNotFound, err}
	}
	if t, err = u.trace(r.Context(), id); err != nil {
		return id, nil, err
	}
	return id, t, u.redeem(r.Context(), t)
}

// redeem fetches tensors of the blob store. A trace whose blobs are gone is shown without.
func (u *UI) redeem(ctx context.Context, v schemas.Record) error {
	if err := u.rt.Redeem(ctx, v); err != nil && ctx.Err() == nil {
		return notFound("its tensors are in the blob store, and cannot be had: %w", err)
	}
	return ctx.Err()
}

func nodeOf(n *schemas.Node) node {
	out := node{
		Parent: n.Parent, Role: n.Role, Content: n.Content, Reasoning: n.Reasoning, ToolCallID: n.ToolCallID, Agent: n.Agent, Reward: n.Reward,
		Tokens: len(n.Mask), Temperature: n.Temperature,
	}
	for _, m := range n.Mask {
		out.Sampled += int(m)
	}
	for _, c := range n.ToolCalls {
		out.ToolCalls = append(out.ToolCalls, toolCall{c.ID, c.Name, c.Arguments})
	}
	for _, v := range n.Versions {
		out.Versions = append(out.Versions, v.Version)
	}
	for _, i := range n.Images {
		_, ok := pictureType(i.Mime, i.Data)
		out.Images = append(out.Images, picture{i.Alt, ok})
	}
	return out
}

// shown are the pictures that browsers show without running anything in them.
var shown = map[string]bool{"image/png": true, "image/jpeg": true, "image/gif": true, "image/webp": true}

// pictureType is the kind of a picture that a browser may show: one of those, and what its bytes are, whatever was said of it.
func pictureType(said string, data []byte) (mime string, ok bool) {
	mime = http.DetectContentType(data)
	return mime, shown[mime] && strings.HasPrefix(said, "image/")
}

func (u *UI) serveImage(w http.ResponseWriter, r *http.Request) {
	_, t, err := u.rolloutOf(r)
	if err != nil {
		answered(func(*http.Request) (any, error) { return nil, err })(w, r)
		return
	}
	at, err := strconv.Atoi(r.PathValue("node"))
	i, err2 := strconv.Atoi(r.PathValue("image"))
	if err != nil || err2 != nil || at < 0 || at >= len(t.Nodes) || i < 0 || i >= len(t.Nodes[at].Images) {
		refuse(w, http.StatusNotFound, fmt.Errorf("there is no such picture"))
		return
	}
	mime, ok := pictureType(t.Nodes[at].Images[i].Mime, t.Nodes[at].Images[i].Data)
	if !ok {
		refuse(w, http.StatusNotFound, fmt.Errorf("it is no picture that could be shown"))
		return
	}
	w.Header().Set("Content-Type", mime)
	w.Header().Set("Content-Security-Policy", "default-src 'none'; sandbox")
	_, _ = w.Write(t.Nodes[at].Images[i].Data)
}

// why says what became of a rollout.
func why(r *index.Row, t *schemas.Trace) string {
	fate := r.Fate
	switch {
	case fate == "" && r.Eval != "":
		return "The eval goes on."
	case fate == "" && len(t.Errors) > 0:
		return "It failed. The rest of its group, or another try, decides what becomes of it."
	case fate == "" && r.GroupFate != "" && r.GroupFate != schemas.FatePacked:
		fate = r.GroupFate
	case fate == "":
		return "Nothing is decided yet: its group is not complete, or waits for its step."
	}
	switch fate {
	case schemas.FatePacked:
		s := "Trained."
		if r.Step != nil {
			s = fmt.Sprintf("Trained in step %d", *r.Step)
			if r.Start != nil {
				s += fmt.Sprintf(", %s after the policy that played it (version %d)", plural(*r.Step-1-*r.Start, "step"), *r.Start)
			}
			s += "."
		}
		return s
	case schemas.FateFiltered:
		s := "Not trained: a filter left it out of its group."
		if r.Filter != "" {
			s = fmt.Sprintf("Not trained: the filter %s took it. %s", r.Filter, meaning("filtered:"+r.Filter))
		}
		return s
	case schemas.FateErrored:
		if len(t.Errors) == 0 {
			return "Not trained: too many other rollouts of its group failed."
		}
		return "Not trained: it failed, and so did what was tried again."
	case schemas.FateEvaluated:
		return "Counted in the result of its eval. Evals are not trained on."
	case schemas.FateStale:
		return "Not trained: when its step was cut it was older than run.max_off_policy_steps allows. " + meaning(fate)
	case schemas.FateTimedOut:
		return "Not trained: its group was open for too long. " + meaning(fate)
	case schemas.FateOverlong:
		return "Not trained: too long. " + meaning(fate)
	case schemas.FateCancelled:
		return "Not trained: the run had ended."
	}
	return "Not trained: " + fate + "."
}

func plural(n int64, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
