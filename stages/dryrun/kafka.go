package dryrun

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
)

var silent = slog.New(slog.DiscardHandler)

// A broken look has no brokers to ask.
const unreached = "the brokers were not reached"

// brokers asks the brokers one question after the other.
type brokers struct {
	*Run
	look    *pipeline.Look
	reached bool
	topics  []pipeline.TopicSeen
}

// kafka are the checks of the brokers; done lets go of them.
func (r *Run) kafka() (list []check, done func()) {
	if r.NoBrokers != "" {
		return []check{{"brokers", limit, func(_ context.Context, res *Result) { res.fail("%s", r.NoBrokers) }}}, func() {}
	}
	if r.Embedded && r.Name != "broker" {
		return []check{{"brokers", limit, func(_ context.Context, res *Result) {
			if len(r.Stages) > 1 {
				res.skip("the embedded broker would be started, and would make the topics of run %s that are missing", r.Config.Run.Name)
			} else {
				res.skip("run %s stands still: its files would be read, or its embedded broker started for the while", r.Config.Run.Name)
			}
		}}}, func() {}
	}
	if r.Name == "broker" {
		return nil, func() {}
	}
	b := &brokers{Run: r}
	list = []check{{"brokers", limit, b.reach}, {"topics", limit, b.seeTopics}, {"rights", limit, b.seeRights}}
	for _, s := range r.Stages {
		if s.Kind != stages.Special || len(s.Writes) > 0 {
			list = append(list, check{"name", limit, b.seeName})
			break
		}
	}
	return list, func() {
		if b.look != nil {
			b.look.Close()
		}
	}
}

func (b *brokers) reach(ctx context.Context, r *Result) {
	var err error
	if b.look, err = b.runtime().Look(); err != nil {
		r.fail("%w", err)
		return
	}
	n, version, err := b.look.Brokers(ctx)
	switch {
	case errors.Is(err, pipeline.ErrFatal):
		r.fail("reach the brokers at %v: %w", b.Config.Brokers, err)
	case err != nil:
		r.fail("reach the brokers at %v: %w (do they run? `prl-stage --stage broker` serves one on this machine)", b.Config.Brokers, err)
	default:
		b.reached = true
		r.ok("%s: %d, %s, with transactions and consumer groups", strings.Join(b.Config.Brokers, ", "), n, version)
	}
}

// rights are those that the process needs.
func (b *brokers) rights() (list []pipeline.Right) {
	run := b.Config.Run.Name
	switch b.Name {
	case stages.SetupName:
		return nil // a topic that is not there is asked for by name
	case stages.AuditName:
		return stages.AuditRights(run)
	case stages.ReplayName:
		return stages.ReplayRights(run)
	}
	for _, s := range b.Stages {
		for _, right := range s.Rights(run) {
			if !slices.Contains(list, right) {
				list = append(list, right)
			}
		}
	}
	return list
}

func (b *brokers) seeTopics(ctx context.Context, r *Result) {
	if !b.reached {
		r.skip(unreached)
		return
	}
	var err error
	if b.topics, err = b.look.Topics(ctx, b.Config.Environments(b.Envs), b.rights()...); err != nil {
		r.fail("look at the topics of run %s: %w", b.Config.Run.Name, err)
		return
	}
	var there, missing, hidden int
	var wrong []error
	for _, t := range b.topics {
		switch {
		case t.Err != nil:
			wrong = append(wrong, t.Err)
		case t.Hidden:
			hidden++
		case t.There:
			there++
		default:
			missing++
		}
	}
	of := fmt.Sprintf("run %s: %d are there and right", b.Config.Run.Name, there)
	if missing > 0 {
		of += fmt.Sprintf(", %d would be made", missing)
	}
	if hidden > 0 {
		of += fmt.Sprintf(", %d of others are hidden from this user", hidden)
	}
	if len(wrong) > 0 {
		r.fail("%s\n%w", of, errors.Join(wrong...))
		return
	}
	if len(b.Config.Environments(b.Envs)) == 0 {
		of += "; no environment is configured, so that no topic of tasks was looked for"
	}
	r.ok("%s", of)
}

func (b *brokers) seeRights(ctx context.Context, r *Result) {
	if !b.reached {
		r.skip(unreached)
		return
	}
	needed := b.rights()
	if len(needed) == 0 {
		r.skip("it needs no rights but those to make topics, which the check of the topics asks for")
		return
	}
	envs := b.Config.Environments(b.Envs)
	var ids []string
	for _, s := range b.Stages {
		if s.Kind == stages.LongWork {
			for _, env := range envs {
				ids = append(ids, env+"."+b.instance(s.Name))
			}
		} else {
			ids = append(ids, b.instance(s.Name))
		}
	}
	seen, err := b.look.Rights(ctx, needed, b.topics, envs, ids)
	if err != nil {
		r.fail("ask for this user's rights: %w", err)
		return
	}
	var lacks []error
	var unknown []string
	for _, s := range seen {
		if s.Err != nil {
			lacks = append(lacks, s.Err)
		} else if s.Unknown != "" && !slices.Contains(unknown, s.Unknown) {
			unknown = append(unknown, s.Unknown)
		}
	}
	switch {
	case len(lacks) > 0:
		r.fail("%w", errors.Join(lacks...))
	case len(unknown) > 0:
		r.ok("%d rights looked at, none is missing; of some nothing is known: %s", len(seen), strings.Join(unknown, ", "))
	default:
		r.ok("%d rights looked at, all are there", len(seen))
	}
}

// seeName asks whether the process's name is free, without taking it: that would fence who has it.
func (b *brokers) seeName(ctx context.Context, r *Result) {
	if !b.reached {
		r.skip(unreached)
		return
	}
	var lines []string
	for _, s := range b.Stages {
		run := b.Config.Run.Name + "."
		names := map[string]string{} // groups, by transactional id
		switch {
		case s.Kind == stages.LongWork:
			for _, env := range b.Config.Environments(b.Envs) {
				group := run + s.Name + "." + env
				names[group+"."+b.instance(s.Name)] = group
			}
		case s.Kind != stages.Special:
			names[run+s.Name+"."+b.instance(s.Name)] = run + s.Name
		case slices.Contains(s.Rights(b.Config.Run.Name), pipeline.WriteTransactionalID(run+s.Name)):
			names[run+s.Name] = ""
		}
		for id, group := range names {
			if group != "" {
				host, err := b.look.Member(ctx, group, b.instance(s.Name))
				if err != nil {
					r.fail("look at group %s: %w", group, err)
					return
				}
				if host != "" {
					r.fail("a process called %s is in the group %s already, at %s: choose another --instance, or end that one; or wait 6s for one that has died", b.instance(s.Name), group, host)
					return
				}
			}
			open, err := b.look.Open(ctx, id)
			switch {
			case errors.Is(err, pipeline.ErrFatal):
				r.fail("%w", err)
				return
			case err != nil:
				lines = append(lines, fmt.Sprintf("%s (whether it is in use is not known: %v)", id, err))
			case open:
				r.fail("a transaction is open under %s: another process has the name (choose another --instance, or end that one), or died a moment ago", id)
				return
			default:
				lines = append(lines, id)
			}
		}
	}
	if len(lines) == 0 {
		r.skip("it works under no name that another process could have")
		return
	}
	slices.Sort(lines)
	r.ok("nobody works under %s", strings.Join(lines, ", "))
}
