package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

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
}

// Rescore gives a copy of a trace with its rewards given anew; everything else is as it was recorded. A trace that failed
// stays as it is. One that the environment would not have played so (env.ErrDiverged) fails as well, with that error: it
// is no zero reward.
func (r Rescorer) Rescore(ctx context.Context, t *schemas.Trace) (*schemas.Trace, error) {
	again := *t
	again.ScorerVersion = r.Version
	if len(t.Errors) > 0 {
		return &again, nil
	}
	again.Nodes = append([]schemas.Node(nil), t.Nodes...)
	messages := make([]env.Message, len(t.Nodes))
	var replies []*schemas.Node
	for i := range again.Nodes {
		n := &again.Nodes[i]
		if n.Parent != i-1 {
			return nil, fmt.Errorf("group %d, rollout %d has branches: what was said in which order is not recorded", t.GroupID, t.RolloutIndex)
		}
		messages[i] = env.Message{Role: env.Role(n.Role), Content: n.Content, ToolCallID: n.ToolCallID}
		for _, c := range n.ToolCalls {
			messages[i].ToolCalls = append(messages[i].ToolCalls, env.ToolCall{ID: c.ID, Name: c.Name, Arguments: c.Arguments})
		}
		if n.Role == string(env.RoleAssistant) {
			replies = append(replies, n)
			n.TokenRewards = nil
		}
	}
	score, err := r.Env.Rescore(ctx, json.RawMessage(t.Task), t.GroupSeed, messages, !t.Truncated)
	if errors.Is(err, env.ErrDiverged) {
		again.Errors = []schemas.TraceError{{Type: errorDiverged, Message: err.Error()}}
		again.Reward, again.Rewards, again.Metrics, again.StopReason, again.Truncated = nil, nil, nil, "", false
		return &again, nil
	}
	if err != nil {
		return nil, fmt.Errorf("group %d, rollout %d: %w", t.GroupID, t.RolloutIndex, err)
	}
	again.Rewards, again.Metrics, again.Reward = map[string]*float64{}, score.Metrics, score.Rewards.Total()
	for name, c := range score.Rewards {
		again.Rewards[name] = c.Value
	}
	if !t.Truncated {
		again.StopReason = score.Stop
	}
	for k, c := range score.CharRewards {
		if replies[k].TokenRewards, err = r.TokenRewards(replies[k], c); err != nil {
			return nil, fmt.Errorf("group %d, rollout %d, reply %d: %w", t.GroupID, t.RolloutIndex, k, err)
		}
	}
	return &again, again.Validate()
}

// errorDiverged is the type of the error of a trace that the environment would not have played so.
const errorDiverged = "diverged"

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

// Rescore gives recorded traces new rewards and compares them with the recorded ones.
func Rescore(ctx context.Context, src Source, cfg RescoreConfig) (Rescored, error) {
	if cfg.Topic != pipeline.TopicTraces && cfg.Topic != pipeline.TopicEvalTraces {
		return nil, fmt.Errorf("rescore topic %q: %s or %s", cfg.Topic, pipeline.TopicTraces, pipeline.TopicEvalTraces)
	}
	compared := Rescored{}
	err := each(ctx, src, cfg.Topic, newMeter(cfg.Progress, "rescoring "+cfg.Topic, offsets(src.Spans(cfg.Topic))), func(rec Record) error {
		if !cfg.Select.record(rec.Offset, rec.Time) {
			return nil
		}
		t, ok, err := decode[*schemas.Trace](ctx, rec)
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
