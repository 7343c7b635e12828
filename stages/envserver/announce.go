package envserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/faults"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
)

// stageName is the stage's name.
const stageName = "envserver"

const (
	// announceEvery is how often the environments are announced again: a server that came later may have announced
	// another version.
	announceEvery = time.Minute
	// announcePause is the wait after an announcement that failed.
	announcePause = time.Second
)

// announce writes an EnvInfo of every environment to envs, at once and from time to time, until ctx ends; or tells who
// hears of them instead (Only). An environment that cannot be described is said to fail, and asked again: it gets no
// tasks before, and the others go on. Where there are no others that is fatal.
func (s *Server) announce(ctx context.Context, cl *kgo.Client) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, p := range s.players {
		g.Go(func() error { return s.announceOne(ctx, cl, p) })
	}
	return g.Wait()
}

func (s *Server) announceOne(ctx context.Context, cl *kgo.Client, p *player) error {
	info, err := s.described(ctx, p)
	if err != nil || info == nil {
		return err
	}
	if s.announced != nil {
		s.announced(info)
		return nil
	}
	r, err := s.rt.Encode(ctx, pipeline.Emission{Topic: pipeline.TopicEnvs, Partition: pipeline.AutoPartition, Value: info})
	if err != nil {
		return pipeline.Fatal("announce environment %s: %w", p.info.Name, err)
	}
	for ctx.Err() == nil {
		wait := announceEvery
		err := cl.ProduceSync(ctx, r).FirstErr()
		if denied := pipeline.Denied(err, pipeline.WriteTopic(s.rt.TopicName(pipeline.TopicEnvs))); errors.Is(denied, pipeline.ErrFatal) {
			return fmt.Errorf("announce the environments: %w", denied)
		}
		if err != nil && ctx.Err() == nil {
			s.rt.Log.Warn("announcement failed", "env", p.info.Name, "error", err)
			wait = announcePause
		}
		pause(ctx, wait)
	}
	return nil
}

// described is describe, again and again until the environment can tell; nil where ctx ended first.
func (s *Server) described(ctx context.Context, p *player) (*schemas.EnvInfo, error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = announcePause, announceEvery
	failed := false
	for {
		info, err := describe(ctx, p)
		switch {
		case ctx.Err() != nil:
			return nil, nil
		case err == nil:
			if failed {
				s.rt.Mended(stageName, faults.EnvFails, p.info.Name)
			}
			return info, nil
		case errors.Is(err, env.ErrFull): // rollouts have all the room
			pause(ctx, announcePause)
			continue
		case len(s.players) == 1 || s.announced != nil:
			return nil, pipeline.Fatal("announce environment %s: %w", p.info.Name, err)
		}
		failed = true
		s.rt.Fault(stageName, faults.EnvFails, p.info.Name, fmt.Errorf("its first task cannot be begun, so it is not announced yet; the others go on: %w", err))
		pause(ctx, wait.NextBackOff())
	}
}

// pause waits, until ctx ends.
func pause(ctx context.Context, wait time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(wait):
	}
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
