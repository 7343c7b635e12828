package eval

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/emitter"
)

const (
	// handTransaction is the broker's limit for what an eval by hand writes at once.
	handTransaction = 10 * time.Second
	// handPoll is how long it waits for more traces before it looks at its deadlines.
	handPoll = 100 * time.Millisecond
	// firstVersion is how long a run's first policy version is waited for.
	firstVersion = 30 * time.Second
	// heardSince is how far back an environment server's word says that it is there.
	heardSince = time.Minute
)

// A Wish is what somebody wants measured.
type Wish struct {
	// Suite is the section [evals.<name>] the settings come from, or the environment's name.
	Suite  string
	Config Config
	// Policy is "latest", the number of a version, or the name of a frozen policy, of which Frozen are those there are.
	Policy string
	Frozen []string
	// Games are the recorded games that are played, as many as Config.Examples; nil for held-out tasks.
	Games []Game
	// Resume is the id of an eval that goes on, or Last; empty begins one.
	Resume string
	// Here says that this process, and no other, serves the policy and the environment: the policy's weights must be here,
	// and what the environment is comes by Announce instead of the topic envs.
	Here bool
}

// ByHand is an eval that somebody runs. What it writes is committed by transactions under an id of its own: of two
// processes that go on with the same eval the later one wins.
type ByHand struct {
	// Plan is what is measured.
	Plan Plan

	rt     *pipeline.Runtime
	hand   *hand
	known  *schemas.EvalResult // where nothing is left to play; else nil
	here   bool
	told   chan *schemas.EnvInfo // by Announce
	begun  bool                  // something of it may be in the topics
	cl     *kgo.Client
	tables *pipeline.Follower // policies, envs
	states *pipeline.Follower
	traces *pipeline.Follower
}

// ByHandName is the name of evals by hand among the brokers' users, and of their processes.
const ByHandName = "eval-by-hand"

// Latest, as a policy, is the newest version.
const Latest = "latest"

// NewID names an eval by hand. Later ones sort behind earlier ones.
func NewID(now time.Time) string {
	return fmt.Sprintf("%s-%04x", now.UTC().Format("20060102-150405"), rand.Uint32()&0xffff)
}

// ID is what Resume takes to go on with the eval.
func (b *ByHand) ID() string { return b.Plan.Name[len(pipeline.ByHandPrefix):] }

// OpenByHand decides what is measured, and reads what was played of it before. Its errors say what there is to choose
// from. Nothing is written yet. The topics of the run must exist.
func OpenByHand(ctx context.Context, rt *pipeline.Runtime, em emitter.Config, envs map[string]emitter.EnvConfig, w Wish) (_ *ByHand, err error) {
	if err := Validate(rt.Run, em, envs, map[string]Config{w.Suite: w.Config}); err != nil {
		return nil, err
	}
	b := &ByHand{rt: rt, here: w.Here, told: make(chan *schemas.EnvInfo, 1), begun: w.Resume != ""}
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	if b.tables, err = rt.Follow(pipeline.TopicPolicies, pipeline.TopicEnvs); err != nil {
		return nil, err
	}
	told, versions, err := b.load(ctx)
	if err != nil {
		return nil, fmt.Errorf("read what run %s has: %w", rt.Run.Name, err)
	}
	var begun *begun
	b.Plan = Plan{Name: pipeline.ByHandPrefix + NewID(time.Now()), Suite: w.Suite, Config: w.Config, Games: w.Games}
	if w.Resume != "" {
		if begun, err = find(ctx, rt, w); err != nil {
			return nil, err
		}
		b.Plan.Name = begun.name
	}
	if b.Plan.Version, b.Plan.Policy, err = choose(ctx, rt, w, versions, begun); err != nil {
		return nil, err
	}
	if err := b.claim(ctx); err != nil {
		return nil, err
	}
	// What comes after this is read by the follower, what came before with the past; what is in both changes nothing twice.
	if b.traces, err = rt.FollowSince(ctx, time.Now(), pipeline.TopicEvalTraces); err != nil {
		return nil, err
	}
	var before past
	if begun != nil {
		if before, err = begun.read(ctx, rt, w.Config.Env); err != nil {
			return nil, err
		}
		if begun.finished(w.Config.Examples) {
			b.known = begun.result
		}
	}
	if b.hand, err = newHand(rt.Run, envs, b.Plan, before); err != nil {
		return nil, err
	}
	if b.states, err = rt.FollowSince(ctx, time.Now().Add(-heardSince), pipeline.TopicState); err != nil {
		return nil, err
	}
	spoken, err := b.states.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("read whether an environment server of %s is there: %w", w.Config.Env, err)
	}
	if err := b.tell(told); err != nil {
		return nil, err
	}
	b.hand.eval.env.Heard = false // that it was announced once does not mean that it is there
	return b, b.tell(spoken)
}

// load reads the run's tables. A run that other processes serve may have begun a moment ago: its first version is waited for.
func (b *ByHand) load(ctx context.Context) (told []pipeline.Record, versions []*schemas.PolicyVersion, err error) {
	told, err = b.tables.Load(ctx)
	begins, cancel := context.WithTimeout(ctx, firstVersion)
	defer cancel()
	for {
		versions = versions[:0]
		for _, r := range told {
			if v, ok := r.Value.(*schemas.PolicyVersion); ok {
				versions = append(versions, v)
			}
		}
		if err != nil || len(versions) > 0 || b.here || begins.Err() != nil {
			return told, versions, err
		}
		var more []pipeline.Record
		more, err = b.tables.Poll(begins)
		told = append(told, more...)
	}
}

// claim takes the eval's transactional id: what a predecessor left open is aborted.
func (b *ByHand) claim(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, handTransaction)
	defer cancel()
	id := b.transactionalID()
	cl, err := b.rt.Client(kgo.TransactionalID(id), kgo.TransactionTimeout(handTransaction), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	b.cl = cl
	if _, _, err := cl.ProducerID(ctx); err != nil {
		return fmt.Errorf("claim transactional id %s: %w", id, pipeline.Denied(pipeline.Fenced(err), pipeline.WriteTransactionalID(id)))
	}
	return nil
}

func (b *ByHand) transactionalID() string { return b.rt.TopicName(ByHandName) + "." + b.ID() }

// Close releases what the eval has open.
func (b *ByHand) Close() {
	for _, f := range []*pipeline.Follower{b.tables, b.states, b.traces} {
		if f != nil {
			f.Close()
		}
	}
	if b.cl != nil {
		b.cl.Close()
	}
}

// Finished reports whether nothing is left to play of an eval that was begun before: Run only returns its result.
func (b *ByHand) Finished() bool { return b.known != nil }

// Begun reports whether there is anything to resume.
func (b *ByHand) Begun() bool { return b.begun }

// Plays reports whether a task is of this eval.
func (b *ByHand) Plays(t *schemas.Task) bool { return t.Eval == b.Plan.Name }

// Announce says what the environment is that this process serves (Wish.Here). Any goroutine may call it, once.
func (b *ByHand) Announce(info *schemas.EnvInfo) { b.told <- info }

// Waiting says what it waits for before anything is played; empty once something is.
func (b *ByHand) Waiting() string { return b.hand.waiting() }

// Progress says how far it is. It adds up all that was played, so it is for show, when there is something to draw, and for
// after Run.
func (b *ByHand) Progress() Progress { return b.hand.progress() }

// Run plays until the result is written, and returns it. It calls show several times a second. When ctx ends first it
// returns nil and no error: Resume goes on from there.
func (b *ByHand) Run(ctx context.Context, show func()) (*schemas.EvalResult, error) {
	if b.known != nil {
		return b.known, nil
	}
	for ctx.Err() == nil {
		var out pipeline.Out
		if err := b.step(ctx, &out); err != nil {
			return nil, err
		}
		if len(out.Emitted) > 0 {
			if err := b.commit(ctx, out.Emitted); err != nil {
				return nil, fmt.Errorf("%s: %w", b.Plan.Name, err)
			}
		}
		show()
		for _, e := range out.Emitted {
			if res, ok := e.Value.(*schemas.EvalResult); ok {
				return res, nil
			}
		}
	}
	return nil, nil
}

// step takes what came, and the time.
func (b *ByHand) step(ctx context.Context, out *pipeline.Out) error {
	for _, f := range []*pipeline.Follower{b.tables, b.states} {
		//lint:ignore SA1012 kgo documents nil as: return what is buffered
		recs, err := f.Poll(nil)
		if err != nil && !errors.Is(err, pipeline.ErrTransient) {
			return err
		}
		if err := b.tell(recs); err != nil {
			return err
		}
	}
	select {
	case info := <-b.told:
		if err := b.hand.core.Table(pipeline.Record{Value: info}); err != nil {
			return err
		}
	default:
	}
	poll, cancel := context.WithTimeout(ctx, handPoll)
	defer cancel()
	traces, err := b.traces.Poll(poll)
	if errors.Is(err, pipeline.ErrTransient) {
		<-poll.Done() // it may fail at once, again and again
		err = nil
	}
	if err != nil {
		return err
	}
	for _, r := range traces {
		if err := b.hand.process(r, out); err != nil {
			b.rt.Log.Warn("a trace does not count", "record", r.String(), "error", err)
		}
	}
	return b.hand.tick(time.Now(), out)
}

// tell takes what the tables say. Where this process serves the environment, what the run's server said of it does not
// hold: it may have had other options.
func (b *ByHand) tell(recs []pipeline.Record) error {
	for _, r := range recs {
		if _, info := r.Value.(*schemas.EnvInfo); info && b.here {
			continue
		}
		if err := b.hand.core.Table(r); err != nil {
			return err
		}
	}
	return nil
}

// commit writes emissions in one transaction.
func (b *ByHand) commit(ctx context.Context, emitted []pipeline.Emission) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handTransaction)
	defer cancel()
	var records []*kgo.Record
	for _, e := range emitted {
		r, err := b.rt.Encode(ctx, e)
		if err != nil {
			return err
		}
		records = append(records, r)
	}
	b.begun = true
	if err := b.cl.BeginTransaction(); err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	if err := pipeline.ProduceAll(ctx, b.cl, records); err != nil {
		return fmt.Errorf("write: %w", pipeline.Denied(pipeline.Fenced(err), pipeline.WriteTransactionalID(b.transactionalID())))
	}
	if err := b.cl.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return fmt.Errorf("commit transaction (whether it was is not known): %w", pipeline.Fenced(err))
	}
	refs := make([]pipeline.Ref, len(records))
	for i, r := range records {
		refs[i] = pipeline.Ref{Topic: emitted[i].Topic, Partition: r.Partition, Offset: r.Offset}
	}
	b.hand.core.Produced(refs)
	return nil
}
