package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
)

// A Rescorer gives recorded traces of one environment new rewards.
type Rescorer struct {
	Env env.Rescorer
	// Version is what the traces' scorer_version becomes: the environment's version and its options.
	Version string
	// TokenRewards spreads the rewards of a reply's characters over the tokens of its node.
	TokenRewards func(reply *schemas.Node, rewards env.CharRewards) (schemas.Float32s, error)
	// Timeout bounds the score of a trace; 0 for no bound.
	Timeout time.Duration
	// MaxAttempts is the last attempt of a rollout that is played. A trace that fails now is of this one, or a later one,
	// since nobody plays it again.
	MaxAttempts int
}

// Types of the error of a trace that could not be given new rewards.
const (
	errorDiverged = "diverged"       // the environment would not have played it so
	errorBranched = "branched"       // its messages are no one conversation
	errorRescore  = "rescore_failed" // the environment failed, or gave no score in time
	errorScore    = "invalid_score"  // that cannot be recorded
)

// Rescore gives a copy of a trace with its rewards given anew; everything else is as it was recorded. A trace that failed
// stays as it is. One that cannot be given rewards, as the environment would not have played it so (env.ErrDiverged), fails
// as well: it is no zero reward. An error is that of ctx.
func (r Rescorer) Rescore(ctx context.Context, t *schemas.Trace) (*schemas.Trace, error) {
	again := *t
	again.ScorerVersion = r.Version
	if len(t.Errors) > 0 {
		return &again, nil
	}
	again.Nodes = slices.Clone(t.Nodes)
	why, err := r.reward(ctx, &again)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("group %d, rollout %d: %w", t.GroupID, t.RolloutIndex, ctx.Err())
	}
	if err != nil {
		again.Errors = []schemas.TraceError{{Type: why, Message: strings.ToValidUTF8(err.Error(), "\uFFFD")}}
		again.Reward, again.Rewards, again.Metrics, again.StopReason, again.Truncated = nil, nil, nil, "", false
		again.Attempt = max(t.Attempt, r.MaxAttempts)
		for i := range again.Nodes {
			again.Nodes[i].TokenRewards = nil
		}
	}
	return &again, nil
}

// reward gives a trace its new rewards; why is the type of the error.
func (r Rescorer) reward(ctx context.Context, t *schemas.Trace) (why string, err error) {
	messages := make([]env.Message, len(t.Nodes))
	var replies []*schemas.Node
	var contents []string
	last := map[string]int{} // by agent
	for i := range t.Nodes {
		n := &t.Nodes[i]
		parent, ok := last[n.Agent]
		if ok != (n.Parent >= 0) || ok && n.Parent != parent {
			return errorBranched, errors.New("it has branches: what was said in which order is not recorded")
		}
		last[n.Agent], n.Reward = i, nil
		messages[i] = env.Message{Role: env.Role(n.Role), ToolCallID: n.ToolCallID, Agent: n.Agent}
		for _, image := range n.Images {
			messages[i].Images = append(messages[i].Images, env.Image{MIME: image.Mime, Data: image.Data, Alt: image.Alt})
		}
		messages[i].SetText(n.Content)
		for _, c := range n.ToolCalls {
			messages[i].ToolCalls = append(messages[i].ToolCalls, env.ToolCall{ID: c.ID, Name: c.Name, Arguments: c.Arguments})
		}
		n.TokenRewards = nil
		if bytes.IndexByte(n.Mask, 1) >= 0 { // a prompt may have messages of the policy's role, too
			replies, contents = append(replies, n), append(contents, n.Content)
		}
	}
	score, err := r.score(ctx, t, messages)
	switch {
	case errors.Is(err, env.ErrDiverged):
		return errorDiverged, err
	case err != nil:
		return errorRescore, err
	}
	if err := score.Check(contents); err != nil {
		return errorScore, err
	}
	t.Rewards, t.Metrics, t.Reward = map[string]*float64{}, score.Metrics, score.Rewards.Total()
	for name, c := range score.Rewards {
		t.Rewards[name] = c.Value
	}
	for agent, rewards := range score.Agents {
		leaf, ok := last[agent]
		for name, c := range rewards {
			t.Rewards[agent+"/"+name] = c.Value
		}
		if ok {
			t.Nodes[leaf].Reward = rewards.Total()
		}
	}
	if !t.Truncated {
		t.StopReason = score.Stop
	}
	for k, c := range score.CharRewards {
		if replies[k].TokenRewards, err = r.TokenRewards(replies[k], c); err != nil {
			return errorScore, fmt.Errorf("reply %d: %w", k, err)
		}
	}
	return errorScore, t.Validate()
}

// score asks the environment. One that does not answer in time is left to itself.
func (r Rescorer) score(ctx context.Context, t *schemas.Trace, messages []env.Message) (env.Score, error) {
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.Timeout, fmt.Errorf("no score in %v", r.Timeout))
		defer cancel()
	}
	type result struct {
		score env.Score
		err   error
	}
	done := make(chan result, 1)
	task, seed, ended := json.RawMessage(t.Task), t.GroupSeed, !t.Truncated
	go func() {
		score, err := env.ScoreRecorded(ctx, r.Env, task, seed, messages, ended)
		done <- result{score, err}
	}()
	select {
	case r := <-done:
		return r.score, r.err
	case <-ctx.Done():
		return env.Score{}, context.Cause(ctx)
	}
}

// lost reports whether a trace failed as it was given new rewards.
func lost(was, is *schemas.Trace) bool { return len(was.Errors) == 0 && len(is.Errors) > 0 }

// RescoreConfig says what to rescore.
type RescoreConfig struct {
	// Topic is traces or eval_traces.
	Topic  string
	Select Selection
	// Rescorer is that of an environment; an error where it has none.
	Rescorer func(env string) (Rescorer, error)
	// Write takes the new traces, in the order of the partitions and of their offsets; nil for no one.
	Write    func(ctx context.Context, made []pipeline.Emission) error
	Progress Progress
}

func (c RescoreConfig) validate() error {
	if c.Topic != pipeline.TopicTraces && c.Topic != pipeline.TopicEvalTraces {
		return fmt.Errorf("rescore topic %q: %s or %s", c.Topic, pipeline.TopicTraces, pipeline.TopicEvalTraces)
	}
	return nil
}

// Rescore gives recorded traces new rewards and compares them with the recorded ones.
func Rescore(ctx context.Context, src Source, cfg RescoreConfig) (*Rescored, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	compared := &Rescored{Envs: map[string]*Rewards{}}
	err := each(ctx, src, cfg.Topic, newMeter(cfg.Progress, "rescoring "+cfg.Topic, offsets(src.Spans(cfg.Topic))), func(rec Record) error {
		if !cfg.Select.record(rec.Offset, rec.Time) {
			return nil
		}
		t, ok, err := decode[*schemas.Trace](ctx, rec)
		if err == nil && !ok {
			compared.Refused++
		}
		if !ok || !cfg.Select.trace(t) {
			return err
		}
		r, err := cfg.Rescorer(t.Env)
		if err != nil {
			return err
		}
		again, err := r.Rescore(ctx, t)
		if err != nil {
			return fmt.Errorf("%v: %w", rec.Ref, err)
		}
		compared.add(t, again)
		if cfg.Write == nil {
			return nil
		}
		return cfg.Write(ctx, []pipeline.Emission{{Topic: cfg.Topic, Partition: pipeline.AutoPartition, Value: again}})
	})
	if err != nil {
		return nil, fmt.Errorf("rescore: %w", err)
	}
	return compared, nil
}

// trace selects by the version that began the trace; one without belongs to a frozen policy, or never began, and is
// selected where no version is asked for.
func (s Selection) trace(t *schemas.Trace) bool {
	if t.PolicyStart == nil {
		return s.FromVersion == 0 && s.ToVersion < 0
	}
	return *t.PolicyStart >= s.FromVersion && (s.ToVersion < 0 || *t.PolicyStart <= s.ToVersion)
}
