// Package envserver plays the rollouts: for every task it takes, at least one trace per rollout is acknowledged before the
// task is finished, whatever is killed at any time; and no task is tried for ever.
//
//	Reads   tasks.<env>: one core per partition; policies and outcomes, by every instance
//	Writes  traces and eval_traces, as rollouts end, with a producer of its own; envs
//	Key     a trace: its group
//	State   per unfinished task: whether it may be running, and how often the process ended without warning while it did
//	On replay  unfinished tasks come again and are played again, with the same seeds; the scorer takes the first trace.
//	           Where the state was deleted that is all tasks: no topic proves that there was any (the emitter writes traces,
//	           too), and what is played again changes nothing
//
// One process serves several environments, each with a consumer group of its own; its slots (concurrency) are shared, and
// the oldest task gets the next one. An environment may have room for fewer rollouts, by its configuration ([envs.<name>]
// concurrency) or its own word (env.Limited), at any time another number: its tasks then wait in their order, without any of
// their time counting, and let those of other environments pass. A rollout that finds no room after all waits again
// (env.ErrFull). How long is the emitter's matter, whose group_timeout counts.
//
// Hard guarantees, each with a test of its name:
//
//   - EveryTaskGetsATrace: a task ends with a trace of each of its rollouts. What the infrastructure failed at has an
//     error and no reward; what the policy did wrong is truncated, or answered by the environment, and scored.
//   - TokenExactness (I7): the tokens, mask and log-probabilities of a trace are the very ones the model saw and sampled;
//     text is rendered once (package render), and never tokenised again.
//   - Branches: a conversation grows by appending. Where a server saw another prompt than the one it was asked to continue,
//     what it saw is a branch of its own, and what was sampled before stays in its place.
//   - ListedBeforeStarted: no rollout starts before a committed state lists it, so that an end without warning is counted.
//     A task with max_crashes of them becomes an errored trace; from two on few such tasks run at a time.
//   - HandOver: what was given away in order (a rebalance, a stop) is recorded as not started. A rollout that runs when its
//     partition goes elsewhere is run to its end here all the same, and begun again there.
//   - SeedsOfCalls: the sampling seed of a model call depends on the task's seed and the number of the call alone.
//   - Taught: where this server's own configuration names a teacher for the environment, every trace of training without
//     error has its log-probabilities of every sampled token, given exactly the tokens before it. A teacher that fails fails
//     the rollout. Where the configuration names none the trace has none, whatever the scorer's asks for; a scorer whose
//     algorithm needs them sends it to the dlq.
//
// A task may name a frozen policy (a section [frozen.<name>], see inference.FrozenConfig), which then plays: its trace names
// it, as name@<first 8 hex digits of the SHA-256 of its weights> where its server says which they are, and has no policy
// versions; its rollout is never cancelled as stale, and a version to which the task is pinned says nothing to it. A teacher
// is a frozen policy too, which ref_model names likewise, or "self", the policy that is trained, which is shown a
// demonstration of the environment (env.Demonstrator) as a system message before the conversation: ref_model then says
// self@<version>, the one the task is pinned to or else the newest. The tokens are those of the trace, never rendered again,
// and what the policy took at a temperature the teacher is asked about at that temperature. The policy has four fifths of a
// rollout's time, and the teacher as much as the fifth that is left, from when the episode has been scored: a slow score is
// not the teacher's failure. Its time counts as scoring. Evals have no teacher.
//
// An environment that plays whole rollouts itself (env.Host) asks for what the policy says over HTTP: on 127.0.0.1, at a port
// the system chooses, every rollout has a path of its own that nobody can guess and that ends with it. There are OpenAI's
// /v1/chat/completions (whole or streamed, with tools, stop strings, log-probabilities and token ids) and /v1/models, and
// vLLM's /inference/v1/generate beside /v1. All guarantees above hold: messages that repeat what was answered go on from
// those tokens, everything else is a branch of its own. A rollout is sampled as its task says: another temperature or top_p,
// penalties, several choices or another model's name are refused (400, 404), a seed or a pinned version of the request means
// nothing, max_tokens and stop strings may end an answer earlier. A stream brings the answer in one event at its end, since
// what was shown of a call that had to be tried again might not be what is recorded. Calls that are made side by side have
// their seeds in the order in which they arrive.
//
// Before anything is played the servers of frozen policies are looked at, and demonstrations measured, so that a teacher that
// could never answer ends the stage at its start.
//
// Optimisations: rollouts that can no longer meet the bound on off-policy steps (I3), or whose group is decided, are
// cancelled. Outcomes are read from the oldest unfinished task on, so that a start takes as long on an old run as on a young
// one. What is begun again is counted (prl_envserver_reruns_total): of one server that ends without warning the rollouts
// that ran, of a rebalance those on the partitions that moved.
//
// The parts: rollout, conversation, episode, model, teach, demonstration and toolcalls play one rollout; hosted, hostendpoint,
// hostdesk, hostgraph and hostclock one that a host plays; group a task; pool and queue share the slots, and room asks
// environments for theirs; core and state are what the shell runs; publish, announce, follow and outcomes speak to Kafka;
// only makes the server one of an eval by hand; this file joins them.
package envserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
)

// A pace is how often the shell does things.
type pace struct {
	start     time.Duration // least time between two commits; a task starts with one that lists it
	commit    time.Duration // longest time that what has ended waits for one
	tick      time.Duration // longest time until what ends, or has room, is seen; it wakes the shell
	heartbeat time.Duration // longest time between two commits
}

// usual commits as soon as a task may start, so that one that comes to a server which is not busy begins after a single
// transaction. Of a busy one all that may start within start shares a transaction: an environment of a server never has more
// than fifty a second.
var usual = pace{start: 20 * time.Millisecond, commit: 100 * time.Millisecond, tick: 100 * time.Millisecond, heartbeat: 5 * time.Second}

// Server is the environment server of one process.
type Server struct {
	rt         *pipeline.Runtime
	cfg        Config
	players    []*player // by name of the environment
	processors []*pipeline.Processor
	pool       *pool
	model      Directory
	metrics    *metrics
	watch      *watch
	final      bool                   // the run's last policy version is known; under the pool's mutex
	ready      bool                   // the tokenizer is there; of the follower of policies
	hosts      bool                   // some environment is an env.Host
	announced  func(*schemas.EnvInfo) // hears of the environments in place of the topic; nil for the topic
}

// New makes a server of environments by name. model answers the model calls and is closed when Run ends. teachers are, by
// environment, what scores what is sampled there.
func New(rt *pipeline.Runtime, cfg Config, envs map[string]env.Environment, model Directory, teachers map[string]Teacher) (*Server, error) {
	return newServer(rt, cfg, envs, model, teachers, usual)
}

// NewSeated makes the server of one of several runs in this process, whose slots are those of the seat's fleet; Concurrency and
// MaxCrashes of cfg mean nothing to it. Its place is free again when Run has ended.
func NewSeated(rt *pipeline.Runtime, cfg Config, envs map[string]env.Environment, model Directory, teachers map[string]Teacher, seat *Seat) (*Server, error) {
	return newSeated(rt, cfg, envs, model, teachers, usual, seat)
}

func newServer(rt *pipeline.Runtime, cfg Config, envs map[string]env.Environment, model Directory, teachers map[string]Teacher, often pace) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return newSeated(rt, cfg, envs, model, teachers, often, &Seat{budget: newBudget(cfg.Concurrency, cfg.MaxCrashes), share: 1})
}

func newSeated(rt *pipeline.Runtime, cfg Config, envs map[string]env.Environment, model Directory, teachers map[string]Teacher, often pace, seat *Seat) (made *Server, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if len(envs) == 0 {
		return nil, fmt.Errorf("envserver: no environments: name one with --env")
	}
	s := &Server{rt: rt, cfg: cfg, pool: newSeat(seat), model: model}
	defer func() {
		if err != nil {
			s.pool.leave()
		}
	}()
	in := &pipeline.Instruments{Registry: rt.Registry}
	s.metrics = newMetrics(in)
	s.watch = newWatch(rt)
	s.pool.rerun = func(j *job, why string) {
		s.metrics.rerun(j, why)
		s.watch.rerun(j, why)
	}
	warn := warner(rt.Log, model)
	for _, name := range slices.Sorted(maps.Keys(envs)) {
		info := envs[name].Info()
		if info.Name != name {
			return nil, fmt.Errorf("envserver: the environment %q calls itself %q", name, info.Name)
		}
		_, host := envs[name].(env.Host)
		s.hosts = s.hosts || host
		if _, whole := envs[name].(env.GroupScorer); host && whole {
			return nil, fmt.Errorf("envserver: the environment %s plays whole rollouts itself (env.Host), and cannot score groups (env.GroupScorer)", name)
		}
		s.pool.atMost(name, cfg.Limits[name])
		if _, ok := envs[name].(env.Limited); ok {
			s.pool.asksRoom(name)
		}
		expected := func() int { return s.pool.expected(name) }
		p := &player{
			environment: envs[name], info: info, caller: caller{model, cfg.Retries, time.Duration(cfg.RequestTimeout), warn, s.pool.stops},
			envTimeout: time.Duration(cfg.EnvTimeout), maxBytes: cfg.MaxEnvBytes, maxStuck: cfg.MaxStuck, model: cfg.Model, instance: rt.Instance,
			teacher: teachers[name], newest: s.pool.version, atOnce: func() int { return s.pool.concurrency(name) },
			overdue: s.pool.overdue(name),
		}
		if _, ok := envs[name].(env.Demonstrator); p.teacher.Policy == schemas.TeacherSelf && !ok {
			return nil, fmt.Errorf("envs.%s.teacher = %q: the environment has no demonstrations to show it (env.Demonstrator); name a frozen policy", name, schemas.TeacherSelf)
		}
		processor, err := pipeline.NewProcessor(rt, pipeline.ProcessorConfig{
			Stage: stageName, Group: group(name), Inputs: []string{pipeline.TopicTasks(name)}, Concurrency: expected,
			TouchEvery: often.start, CommitEvery: often.commit, TickEvery: often.tick, Heartbeat: often.heartbeat, Wake: s.pool.wakes(name),
			New: func(_ int32, state []byte) (pipeline.Core, error) { return newCore(s.pool, p, state) },
		})
		if err != nil {
			return nil, err
		}
		s.players, s.processors = append(s.players, p), append(s.processors, processor)
	}
	s.gauges(in)
	return s, in.Err()
}

// SetShare changes the share of a server that has a seat in a fleet, from now on.
func (s *Server) SetShare(share float64) { s.pool.setShare(share) }

// Idle reports whether the run's last policy version is out, and no task of it waits or runs here.
func (s *Server) Idle() bool {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	return s.final && !s.pool.active()
}

// group is the consumer group of an environment's servers, without the run's prefix.
func group(env string) string { return "envserver." + env }

// Run serves until ctx ends. Then nothing starts any more, what can end within the drain time does, the rest is cancelled,
// and all that was not ended is recorded as not started. It is called once. An error is pipeline.ErrFatal or ErrFenced.
func (s *Server) Run(ctx context.Context) error {
	defer s.pool.leave()
	defer s.model.Close()
	cl, err := s.rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer cl.Close()
	publisher := &publisher{s.rt, cl}
	failed := newFailureLog(s.rt)
	denied := make(chan error, 1)
	s.pool.publish = func(ctx context.Context, traces []*schemas.Trace) error {
		err := publisher.publish(ctx, traces)
		switch {
		case err == nil:
			s.metrics.count(traces)
			s.watch.traces(traces)
			failed.traces(traces)
		case errors.Is(err, pipeline.ErrFatal):
			select {
			case denied <- err:
			default: // one is enough
			}
		}
		return err
	}
	s.pool.acked = s.acknowledged
	s.pool.play = func(ctx context.Context, j *job) []*schemas.Trace {
		ctx = s.traced(ctx, j)
		return j.player.play(ctx, j.task, func(version int64) { s.pool.sampled(j, version) })
	}

	var endpoint *hostEndpoint
	if s.hosts {
		if endpoint, err = listenHosts(s.rt.Log); err != nil {
			return err
		}
		defer endpoint.listener.Close()
		for _, p := range s.players {
			p.endpoint = endpoint
		}
	}

	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, work := errgroup.WithContext(inner)
	for _, p := range s.processors {
		g.Go(func() error { return p.Run(work) })
	}
	for _, p := range s.players {
		if environment, ok := p.environment.(env.Limited); ok {
			g.Go(func() error { return s.heed(work, p, environment) })
		}
	}
	g.Go(func() error { return s.announce(work, cl) })
	if endpoint != nil {
		g.Go(func() error { return endpoint.serve(work) })
	}
	g.Go(func() error {
		select {
		case err := <-denied:
			return err
		case <-work.Done():
			return nil
		}
	})
	g.Go(func() error { return s.follow(work, s.followPolicies, s.policy) })
	g.Go(func() error { return s.follow(work, s.followOutcomes, s.outcome) })
	select {
	case <-ctx.Done():
	case <-work.Done(): // one of them failed
	}
	drain, cancel := context.WithTimeout(work, time.Duration(s.cfg.Drain))
	defer cancel()
	s.pool.drain(drain)
	stop()
	return g.Wait()
}
