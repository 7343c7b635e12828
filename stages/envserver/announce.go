package envserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
)

const (
	// announceEvery is how often the environments are announced again: a server that came later may have announced
	// another version.
	announceEvery = time.Minute
	// announcePause is the wait after an announcement that failed.
	announcePause = time.Second
)

// announce writes an EnvInfo of every environment to envs, at once and from time to time, until ctx ends; or tells who
// hears of them instead (Only).
func (s *Server) announce(ctx context.Context, cl *kgo.Client) error {
	var recs []*kgo.Record
	for _, p := range s.players {
		info, err := describe(ctx, p)
		for errors.Is(err, env.ErrFull) && ctx.Err() == nil { // rollouts have all the room
			select {
			case <-ctx.Done():
			case <-time.After(announcePause):
			}
			info, err = describe(ctx, p)
		}
		if err != nil {
			return pipeline.Fatal("announce environment %s: %w", p.info.Name, err)
		}
		if s.announced != nil {
			s.announced(info)
			continue
		}
		r, err := s.rt.Encode(ctx, pipeline.Emission{Topic: pipeline.TopicEnvs, Partition: pipeline.AutoPartition, Value: info})
		if err != nil {
			return pipeline.Fatal("announce environment %s: %w", p.info.Name, err)
		}
		recs = append(recs, r)
	}
	for len(recs) > 0 && ctx.Err() == nil {
		wait := announceEvery
		err := cl.ProduceSync(ctx, recs...).FirstErr()
		if denied := pipeline.Denied(err, pipeline.WriteTopic(s.rt.TopicName(pipeline.TopicEnvs))); errors.Is(denied, pipeline.ErrFatal) {
			return fmt.Errorf("announce the environments: %w", denied)
		}
		if err != nil && ctx.Err() == nil {
			s.rt.Log.Warn("announcement failed", "error", err)
			wait = announcePause
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return nil
}

// describe asks an environment what the emitter and the readers of evals need to know of it.
func describe(ctx context.Context, p *player) (*schemas.EnvInfo, error) {
	_, whole := p.environment.(env.GroupScorer)
	info := &schemas.EnvInfo{
		Env: p.info.Name, Version: p.info.Version, Instance: p.instance, TrainTasks: int64(p.info.Train), EvalTasks: int64(p.info.Eval),
		GroupScoring: whole, MaxTurns: p.info.MaxTurns,
	}
	split := env.Train
	if p.info.Train == 0 {
		split = env.Eval
	}
	if p.info.Tasks(split) == 0 {
		return nil, fmt.Errorf("it has no tasks")
	}
	e := p.newEpisode()
	defer e.close()
	if b, ok := p.environment.(env.Baseliner); ok {
		baselines, err := do(ctx, e, "baselines", func(context.Context) (map[string]float64, error) { return b.Baselines(env.Eval), nil })
		if err != nil {
			return nil, err
		}
		info.Baselines = baselines
	}
	if _, ok := p.environment.(env.Host); ok {
		return info, nil // its tools are known when it plays
	}
	open, err := e.begin(ctx, p.environment, nil, split, 0, 0)
	if err != nil {
		return nil, err
	}
	if len(open.tools) > 0 {
		tools, err := json.Marshal(open.tools)
		if err != nil {
			return nil, fmt.Errorf("tools: %w", err)
		}
		info.Tools = string(tools)
	}
	return info, nil
}
