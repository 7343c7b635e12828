// Package openenv plays the environments of OpenEnv servers (openenv-core 0.3.0, openenv 0.10.0): an episode is a session, which
// is a WebSocket with an environment of its own behind it.
//
// The guarantee: whatever a server does, it costs the episodes of the sessions it does it to. One that dies, hangs, answers
// what is no answer or too much ends them with an error that says so, and the next episode has a new session. Every wait has a
// deadline, every answer a limit. A server never has more sessions than it has places for, and episodes get them in the order in
// which they came.
//
//	[envs.echo]
//	source = "openenv:http://localhost:8000"
//
// # What an episode is
//
// reset gets the fields of the task except "prompt", a seed and an episode_id; the server hands on to the environment those that
// it takes. The policy sees "prompt" and the observation of reset (see [Config]). What it says becomes an action: the reply's text
// is the field of an action that has one text, a tool "step" takes an action of another form, and tools of the server are the
// policy's tools. The observation is the answer. The episode ends with done, and where there are tools with a reply that calls none.
// No step follows done, which servers would take.
//
// # Whose fault
//
// An action that does not fit its schema, a call of a tool that fails, and (raises = "policy") an exception in step are told to the
// policy, and counted ("errors"). Everything else that a server reports is an error: an exception in reset or in step (OpenEnv
// says only what it printed, so that a bug cannot be told from an illegal move), in the environment's constructor, a broken
// session. It has no reward, and the rollout is tried again.
package openenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/prl-project/prl/stages/envserver/bridge/child"
	"github.com/prl-project/prl/stages/envserver/bridge/rows"
	"github.com/prl-project/prl/stages/envserver/env"
)

// OpenEnv is the environment. It implements [io.Closer].
type OpenEnv struct {
	cfg   Config
	info  env.Info
	how   actions
	tasks map[env.Split][]json.RawMessage
	pool  *pool
	// keeper runs the server; nil where somebody else does.
	keeper *keeper
}

// New makes the environment of a name that the server at a URL has. It starts the server, if it has a command for that, whose
// output goes to the file <logs>/<name>.log, nowhere if logs is empty; and waits until it answers, for start_s at most. An error
// if the configuration is not valid, what answers is no server of OpenEnv, or there are no tasks.
func New(name, target, logs string, cfg Config) (*OpenEnv, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s, err := newServer(cfg, target)
	if err != nil {
		return nil, err
	}
	if len(cfg.Command) == 0 {
		return open(context.Background(), name, cfg, s)
	}
	k, err := keep(cfg.Command, s.base, child.NewRecord(logs, name, logBytes))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-k.broken:
			cancel()
		case <-ctx.Done():
		}
	}()
	o, err := open(ctx, name, cfg, s)
	if err != nil {
		if ctx.Err() != nil {
			err = k.why
		}
		return nil, errors.Join(err, k.close())
	}
	o.keeper = k
	return o, nil
}

func open(ctx context.Context, name string, cfg Config, s *server) (_ *OpenEnv, err error) {
	all := rows.Numbered(cfg.Tasks)
	if cfg.File != "" {
		if all, err = rows.Load(cfg.File); err != nil {
			return nil, err
		}
	}
	o := &OpenEnv{cfg: cfg, pool: newPool(s.dial, cfg.Sessions, cfg.Episodes, seconds(cfg.IdleS))}
	if o.tasks, err = rows.Deal(all, cfg.EvalPercent); err != nil {
		return nil, err
	}
	limit := seconds(cfg.StartS)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer in %v (start_s)", limit))
	defer cancel()
	said, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	if o.how, err = cfg.actions(said.action); err != nil {
		return nil, err
	}
	if err := o.try(ctx); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	o.info = env.Info{
		Name: name, Version: said.version, Train: len(o.tasks[env.Train]), Eval: len(o.tasks[env.Eval]), Disjoint: true, MaxTurns: cfg.Turns,
	}
	return o, nil
}

// try begins an episode, so that what is wrong with sessions is known at the start. That reset raises is not: it may be the task.
func (o *OpenEnv) try(ctx context.Context) error {
	data, err := resetData(o.tasks[env.Train][0], 0)
	if err != nil {
		return err
	}
	in, err := o.pool.acquire(ctx, func(s *session) error {
		_, err := s.ask(ctx, "reset", data)
		var said *refusal
		if errors.As(err, &said) && said.Code == codeExecution {
			return nil
		}
		if err == nil && o.how.how == asTools {
			_, err = listTools(ctx, s, o.how)
		}
		return err
	})
	if err != nil {
		return err
	}
	o.pool.release(in, false)
	return nil
}

// Info implements [env.Environment]. The version is the server's, with a hash of the schema of its actions.
func (o *OpenEnv) Info() env.Info { return o.info }

// Task implements [env.Environment]: a row.
func (o *OpenEnv) Task(split env.Split, index int) (json.RawMessage, error) {
	if err := env.CheckIndex(o.info, split, index); err != nil {
		return nil, err
	}
	return o.tasks[split][index], nil
}

// Capacity implements [env.Limited]: the server's places, as far as they are known.
func (o *OpenEnv) Capacity() int { return o.pool.capacity() }

// Start implements [env.Environment]. It waits for a session; an error is [env.ErrFull] if there was none.
func (o *OpenEnv) Start(ctx context.Context, task json.RawMessage, seed int64) (env.Episode, error) {
	shown, err := rows.Prompt(task)
	if err != nil {
		return nil, fmt.Errorf("task %.200s: %w", task, err)
	}
	data, err := resetData(task, seed)
	if err != nil {
		return nil, fmt.Errorf("task %.200s: %w", task, err)
	}
	e := &episode{cfg: o.cfg, how: o.how, pool: o.pool}
	e.in, err = o.pool.acquire(ctx, func(s *session) error { return e.begin(ctx, s, data) })
	if err != nil {
		return nil, err
	}
	if e.prompt, err = o.cfg.prompt(shown, e.first); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// Close ends all sessions, and the server if it was started here. No episode goes on after it.
func (o *OpenEnv) Close() error {
	o.pool.close()
	return o.keeper.close()
}
