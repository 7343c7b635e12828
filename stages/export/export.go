// Package export makes of a run's best rollouts conversations to train on (SFT), in the chat format of Hugging Face's datasets
// and TRL: a column messages, a column tools, and where each comes from. README.md shows it.
//
// Guarantee: a rollout is in an export at most once, of those that were decided and are asked for none is missing, and no task is
// in both splits. The same files and settings give the same export. A folder is there whole or not at all (Files); one that grows
// (Follow) holds, whatever was killed when, each rollout of the run once and no torn line.
//
//	Reads   traces, outcomes, envs and policies (for the tokenizer), and eval_traces where evals are asked for: the sink's Parquet
//	        files, or, with follow, the topics from their start
//	Writes  a folder: train.jsonl, train.parquet and the same of test, a dataset card, and export.json, which says what was taken
//	        and what was left out, and why; with follow, parts of one format. Nothing to Kafka
//	Key     the folder; a lock holds the one that follows
//	State   the parts themselves: what they hold is not written again
//	On replay  the topics are read again, and what the parts hold is passed over
package export

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/inference/render"
	"github.com/prl-project/prl/stages/sink"
)

// Name is that of the stage.
const Name = "export"

// Export is the stage.
type Export struct {
	rt       *pipeline.Runtime
	cfg      Config
	parquet  string // the sink's folder
	format   string // of chats; empty for the one that the tokenizer says
	progress func(what string, done, total int64)
	ready    func() // is called when following begins
}

// New checks the configuration; nothing is read or written yet. dir is the run's folder, parquet the sink's; chat is the name of
// the run's chat format.
func New(rt *pipeline.Runtime, cfg Config, dir, parquet, chat string) (*Export, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Out == "" {
		cfg.Out = filepath.Join(dir, Name)
	}
	return &Export{rt: rt, cfg: cfg, parquet: parquet, format: chat, progress: func(string, int64, int64) {}, ready: func() {}}, nil
}

// Show lets show be told how far Files is.
func (e *Export) Show(show func(what string, done, total int64)) { e.progress = show }

// Out is the folder that is made.
func (e *Export) Out() string { return e.cfg.Out }

// Files exports what the sink has written.
func (e *Export) Files(ctx context.Context) (Summary, error) {
	s, err := e.files(ctx)
	if err != nil {
		return s, fmt.Errorf("export run %s: %w", e.rt.Run.Name, err)
	}
	return s, nil
}

func (e *Export) files(ctx context.Context) (s Summary, err error) {
	out, err := newFolder(e.cfg)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, out.discard()) }()
	from, err := e.open(ctx)
	if err != nil {
		return s, err
	}
	s = Summary{Run: e.rt.Run.Name, Selection: e.cfg, Left: map[string]int64{}}
	taken, err := from.survey(ctx, &s)
	if err != nil {
		return s, err
	}
	if err := from.write(ctx, taken, out, &s); err != nil {
		return s, err
	}
	return s, out.publish(&s)
}

// A recorded run is what its files hold.
type recorded struct {
	*Export
	speech   speech
	outcomes map[groupKey]*schemas.GroupOutcome
	traces   map[string]*sink.Files // by topic
	offsets  int64
}

// open reads what is small, and finds the rest.
func (e *Export) open(ctx context.Context) (*recorded, error) {
	r := &recorded{Export: e, outcomes: map[groupKey]*schemas.GroupOutcome{}, traces: map[string]*sink.Files{}}
	r.speech.tools = map[string]*toolbox{}
	var first *schemas.PolicyVersion
	for _, topic := range []string{pipeline.TopicOutcomes, pipeline.TopicEnvs, pipeline.TopicPolicies} {
		files, err := sink.OpenFiles(e.parquet, topic)
		if err != nil {
			return nil, err
		}
		for rec, err := range files.Read(ctx, 0) {
			if err != nil {
				return nil, err
			}
			switch v := rec.Value.(type) {
			case *schemas.GroupOutcome:
				r.outcomes[groupKey{v.Eval, v.GroupID}] = v
			case *schemas.EnvInfo:
				if err := r.speech.learn(v); err != nil {
					e.rt.Log.Warn("tools are not known", "stage", Name, "error", err)
				}
			case *schemas.PolicyVersion:
				if first == nil {
					first = v
				}
			}
		}
	}
	r.speech.renderer = e.renderer(ctx, first)
	for _, topic := range e.topics() {
		files, err := sink.OpenFiles(e.parquet, topic)
		if err != nil {
			return nil, err
		}
		r.traces[topic] = files
		for _, s := range files.Spans {
			r.offsets += s.End - s.Start
		}
	}
	return r, nil
}

// topics are those of rollouts.
func (e *Export) topics() []string {
	if e.cfg.Evals {
		return []string{pipeline.TopicTraces, pipeline.TopicEvalTraces}
	}
	return []string{pipeline.TopicTraces}
}

// renderer speaks the run's chat format; nil, with a word in the log, where its tokenizer is not at hand.
func (e *Export) renderer(ctx context.Context, first *schemas.PolicyVersion) render.Renderer {
	if first == nil {
		return nil
	}
	tokenizer, err := e.rt.Blobs.Get(ctx, first.Tokenizer)
	if err == nil {
		var r render.Renderer
		if r, err = render.New(e.format, tokenizer); err == nil {
			return r
		}
	}
	e.rt.Log.Warn("the run's tokenizer is not at hand: tools stay in the text, and nothing is held to the recorded tokens", "stage", Name, "error", err)
	return nil
}

// each gives every rollout, nil for one that could not be read when it was written down.
func (r *recorded) each(ctx context.Context, what string, visit func(at place, t *schemas.Trace) error) error {
	done := int64(0)
	for _, topic := range r.topics() {
		files := r.traces[topic]
		for _, p := range slices.Sorted(maps.Keys(files.Spans)) {
			for rec, err := range files.Read(ctx, p) {
				if err != nil {
					return err
				}
				t, _ := rec.Value.(*schemas.Trace)
				if err := visit(place{topic: topic, partition: p, offset: rec.Offset}, t); err != nil {
					return err
				}
				done++
				r.progress(what, done, r.offsets)
			}
		}
	}
	return nil
}

// a rolloutKey names a rollout.
type rolloutKey struct {
	group groupKey
	index int
}

// survey finds what is taken.
func (r *recorded) survey(ctx context.Context, s *Summary) (map[place]bool, error) {
	var list []candidate
	met := map[rolloutKey]bool{}
	err := r.each(ctx, "choosing", func(at place, t *schemas.Trace) error {
		s.Traces++
		if t == nil {
			s.Left[whyUnreadable]++
			return nil
		}
		group := groupKey{t.Eval, t.GroupID}
		why, _ := r.cfg.rollout(t, r.outcomes[group])
		if why != "" {
			s.Left[why]++
			return nil
		}
		key := rolloutKey{group, t.RolloutIndex}
		if met[key] { // a trace that came twice
			return nil
		}
		met[key] = true
		s.Rollouts++
		found, err := r.cfg.look(ctx, r.rt, t, s.Left)
		for _, c := range found {
			at.branch = c.branch
			messages, tools, _ := r.speech.write(t.Env, c)
			one := candidate{place: at, group: group, rollout: t.RolloutIndex, task: taskOf(t, c.agent), sum: sumOf(messages, tools)}
			if one.reward = math.Inf(-1); c.reward != nil {
				one.reward = *c.reward
			}
			list = append(list, one)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for group, o := range r.outcomes {
		if r.cfg.FromVersion > 0 || r.cfg.ToVersion >= 0 {
			break // outcomes do not say all of that
		}
		if group.eval != "" && !r.cfg.Evals || len(r.cfg.Envs) > 0 && !slices.Contains(r.cfg.Envs, o.Env) {
			continue
		}
		for _, f := range o.Rollouts {
			wanted := f.Fate == r.cfg.Fate || r.cfg.Fate == AnyFate || group.eval != ""
			if wanted && f.Error == "" && !met[rolloutKey{group, f.RolloutIndex}] && !(f.Truncated && !r.cfg.Truncated) {
				s.Missing++
			}
		}
	}
	return choose(list, r.cfg.Best, s.Left), nil
}

// look gives the conversations of a rollout that are taken for themselves, and counts the others.
func (c Config) look(ctx context.Context, rt *pipeline.Runtime, t *schemas.Trace, left map[string]int64) (found []conversation, err error) {
	whole := true
	if len(t.Blobs) > 0 {
		if err := rt.Redeem(ctx, t); ctx.Err() != nil || errors.Is(err, pipeline.ErrTransient) {
			return nil, err
		} else if err != nil { // clean-up has deleted them
			whole = false
		}
	}
	all := conversations(t)
	if len(all) == 0 {
		left[whyNotSaid]++
	}
	for _, v := range all {
		v.partial = !whole
		if why := c.conversation(v); why != "" {
			left[why]++
			continue
		}
		found = append(found, v)
	}
	return found, nil
}

// write writes what is taken.
func (r *recorded) write(ctx context.Context, taken map[place]bool, out *folder, s *Summary) error {
	return r.each(ctx, "writing", func(at place, t *schemas.Trace) error {
		if t == nil || len(taken) == 0 {
			return nil
		}
		some := false
		for branch := range t.Nodes {
			at.branch = branch
			some = some || taken[at]
		}
		if !some {
			return nil
		}
		outcome := r.outcomes[groupKey{t.Eval, t.GroupID}]
		_, fate := r.cfg.rollout(t, outcome)
		found, err := r.cfg.look(ctx, r.rt, t, map[string]int64{})
		if err != nil {
			return err
		}
		for _, c := range found {
			if at.branch = c.branch; taken[at] {
				row := r.speech.row(r.rt.Run.Name, t, outcome, fate, c)
				if err := out.add(r.cfg.split(t), row); err != nil {
					return err
				}
				s.count(r.cfg.split(t), row)
			}
		}
		return nil
	})
}

// row is a conversation as it is written.
func (s *speech) row(run string, t *schemas.Trace, o *schemas.GroupOutcome, fate *schemas.RolloutFate, c conversation) Row {
	messages, tools, exact := s.write(t.Env, c)
	return Row{messages, tools, Provenance{
		Run: run, Env: t.Env, EnvVersion: t.EnvVersion, Eval: t.Eval, Split: t.Split, TaskIndex: t.TaskIndex, GroupID: t.GroupID,
		RolloutIndex: int32(t.RolloutIndex), Attempt: int32(t.Attempt), Branch: int32(c.branch), Agent: c.agent, Fate: fate.Fate, Step: o.Step,
		Reward: c.reward, PolicyStart: t.PolicyStart, PolicyEnd: t.PolicyEnd, Policy: t.Policy, Truncated: t.Truncated,
		Tokens: int32(c.length()), TokenExact: exact, SHA256: hexOf(sumOf(messages, tools)),
	}}
}
