// Package verifiers plays environments of the Python package verifiers (Prime Intellect's) as they are: its environment servers
// play the rollouts, and ask the environment server's endpoint for what the policy says.
//
// The guarantee: whatever a server does, it costs the rollouts that it plays and no other, and each of them ends: with what it
// was worth, or with an error that has a traceback. A server that ends, hangs, cannot be understood or is not heard of any more
// is killed with its children, and another one takes its place. Every wait has a deadline, every queue a bound.
//
//	[envs.gsm8k]
//	source = "verifiers:gsm8k"            # verifiers:<id of the environment>
//	options.python = ".venv/bin/python"   # has the package verifiers, and the environment
//
// Servers are spoken to over ZeroMQ, in the wire of the version of verifiers: "0.4.0", "0.2.1", or "v0" as in 0.1.14. The README
// has the options, how environments are found, and what is not supported.
//
// Rollouts of a worker that has died are not begun again here, since the endpoint has recorded what the policy said in them: they
// are errors, and the environment server tries such rollouts again.
package verifiers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/prl-project/prl/stages/envserver/bridge/child"
	"github.com/prl-project/prl/stages/envserver/env"
)

// Verifiers is the environment. It implements [env.Host] and [io.Closer].
type Verifiers struct {
	env.Hosted
	cfg     Config
	info    env.Info
	tasks   map[env.Split][]json.RawMessage
	foreman *foreman
	pool    *pool
	log     *child.Record
}

var _ env.Host = (*Verifiers)(nil)

// New makes the environment of a name from an id, and starts a first server or connects to one. What servers print goes to the
// file <logs>/<name>.log, nowhere if logs is empty. An error if the configuration is not valid, no server answers, the
// environment needs what this bridge has not, or there are no tasks to train on.
func New(name, id, logs string, cfg Config) (*Verifiers, error) {
	if id == "" {
		return nil, errors.New("want verifiers:<id of the environment>")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.complete()
	var err error
	if cfg.Path, err = filepath.Abs(cfg.Path); err != nil {
		return nil, fmt.Errorf("path: %w", err)
	}
	if cfg.Tokenizer != "" {
		if cfg.Tokenizer, err = filepath.Abs(cfg.Tokenizer); err != nil {
			return nil, fmt.Errorf("tokenizer: %w", err)
		}
	}
	v := &Verifiers{cfg: cfg, log: child.NewRecord(logs, name, int64(cfg.LogMB)<<20)}
	v.foreman = &foreman{cfg: cfg, id: id, record: v.log}
	if v.foreman.folder, err = os.MkdirTemp("", "prl-"); err != nil {
		return nil, fmt.Errorf("folder for sockets: %w", err)
	}
	if err := v.open(name); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// open starts the first worker and learns what there is to know.
func (v *Verifiers) open(name string) error {
	ctx := context.Background() // every step has a deadline of its own
	first, said, err := v.foreman.hire(ctx, v.cfg.File == "")
	if err != nil {
		return err
	}
	v.pool = newPool(&pool{
		start: func(ctx context.Context) (*worker, error) {
			w, _, err := v.foreman.hire(ctx, false)
			return w, err
		},
		least: v.cfg.least(), most: v.cfg.Workers, each: v.cfg.Multiplex, fill: v.cfg.fill(), rest: seconds(v.cfg.IdleS), note: v.foreman.note,
	}, first)
	var disjoint bool
	if v.tasks, disjoint, err = v.learn(ctx, first, &said); err != nil {
		return err
	}
	if said.group {
		return errors.New("the environment compares the rollouts of a group with each other, which this bridge does not do")
	}
	v.info = env.Info{
		Name: name, Version: said.version, Train: len(v.tasks[env.Train]), Eval: len(v.tasks[env.Eval]), Disjoint: disjoint, MaxTurns: v.cfg.Turns,
	}
	return nil
}

func (f *foreman) note(format string, args ...any) {
	child.NewOutput(f.record, 0, nil).Note(format, args...)
}

// Info implements [env.Environment]. The version is that of the package, with a hash of the environment's source and arguments.
func (v *Verifiers) Info() env.Info { return v.info }

// Task implements [env.Environment]: the data of a task, as the package has it.
func (v *Verifiers) Task(split env.Split, index int) (json.RawMessage, error) {
	if err := env.CheckIndex(v.info, split, index); err != nil {
		return nil, err
	}
	return v.tasks[split][index], nil
}

// Capacity implements [env.Limited]: what the servers may carry. How much room somebody else's has is not known.
func (v *Verifiers) Capacity() int {
	if v.cfg.Address != "" {
		return math.MaxInt
	}
	return v.cfg.Workers * v.cfg.Multiplex
}

// Run implements [env.Host].
func (v *Verifiers) Run(ctx context.Context, job env.Job) (env.Outcome, error) {
	task, err := fromJSON(job.Task)
	if err != nil {
		return env.Outcome{}, fmt.Errorf("task %.200s: %w", job.Task, err)
	}
	if job.Model.Key != "" && job.Model.KeyVar == "" {
		return env.Outcome{}, errors.New("the model's key is in no variable, by whose name alone a server may be told of it")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, seconds(v.cfg.TimeoutS), fmt.Errorf("no end of the rollout in %v s (timeout_s)", v.cfg.TimeoutS))
	defer cancel()
	w, err := v.pool.acquire(ctx)
	if err != nil {
		return env.Outcome{}, err
	}
	out, err := w.c.run(ctx, task, job.Model, tokens{v.cfg.Tokenizer, v.cfg.Renderer})
	v.pool.release(w, err == nil)
	if err != nil && !w.alive() {
		select { // until it is known what the process has printed last
		case <-w.dead:
			err = w.why
		case <-time.After(2 * stopTime):
		}
		err = &env.LostError{Err: err}
	}
	return out, err
}

// Close ends all servers that were started, and all rollouts.
func (v *Verifiers) Close() error {
	if v.pool != nil {
		v.pool.close()
	}
	return errors.Join(v.foreman.close(), v.log.Close())
}
