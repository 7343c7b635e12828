package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// setupDeadline bounds the set-up of the topics, waiting for the broker included.
	setupDeadline = 60 * time.Second
	// setupPause is the time between two looks at what is there.
	setupPause = 200 * time.Millisecond
)

// SetUp creates the run's topics that are missing and checks those that are there: partitions, size of records,
// retention. It waits for brokers that do not answer yet. needed are the rights this process works with; none means all
// there are. Topics it needs no right on, and may not see or make, are left to those who may.
func (rt *Runtime) SetUp(ctx context.Context, envs []string, needed ...Right) error {
	ctx, cancel := context.WithTimeout(ctx, setupDeadline)
	defer cancel()
	cl, err := rt.Client()
	if err != nil {
		return err
	}
	defer cl.Close()
	s := setup{rt: rt, cl: cl, adm: kadm.NewClient(cl)}
	s.planAll(envs, needed)
	if err := s.reach(ctx); err != nil {
		return err
	}
	if err := s.make(ctx); err != nil {
		return err
	}
	return s.check(ctx)
}

// setup is the topics of a run as they should be.
type setup struct {
	rt     *Runtime
	cl     *kgo.Client
	adm    *kadm.Client
	topics []*planned
}

type planned struct {
	name       string  // with the run's prefix
	needed     []Right // of this process
	partitions int32
	configs    map[string]string
	denied     error // why it was not made
}

// planAll plans the topics of a run with these environments.
func (s *setup) planAll(envs []string, needed []Right) {
	for _, t := range Topics {
		if t.Name != tasksPrefix {
			s.plan(t.Name, t, needed)
		}
	}
	for _, e := range envs {
		s.plan(TopicTasks(e), Topic{}, needed)
	}
}

func (s *setup) plan(name string, t Topic, needed []Right) {
	name, partitions := s.rt.TopicName(name), s.rt.Partitions(name)
	var rights []Right
	if len(needed) == 0 {
		rights = []Right{DescribeTopic(name)}
	}
	for _, r := range needed {
		if r.covers(name) {
			rights = append(rights, r)
		}
	}
	p := &planned{name, rights, partitions, map[string]string{
		"max.message.bytes": strconv.Itoa(TopicRecordBytes),
		"retention.ms":      "-1",
		"retention.bytes":   "-1",
		"cleanup.policy":    "delete",
	}, nil}
	if t.Compacted {
		p.configs["cleanup.policy"] = "compact"
	}
	s.topics = append(s.topics, p)
}

// A found topic is what the brokers say of it.
type found struct {
	partitions int32
	err        error
}

// look asks the brokers, not the client's memory, for the topics.
func (s *setup) look(ctx context.Context) (map[string]found, error) {
	req := kmsg.NewPtrMetadataRequest()
	for _, t := range s.topics {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = kmsg.StringPtr(t.name)
		req.Topics = append(req.Topics, rt)
	}
	resp, err := req.RequestWith(ctx, s.cl)
	if err != nil {
		return nil, err
	}
	have := map[string]found{}
	for _, t := range resp.Topics {
		if t.Topic != nil {
			have[*t.Topic] = found{int32(len(t.Partitions)), kerr.ErrorForCode(t.ErrorCode)}
		}
	}
	return have, nil
}

// reach waits for brokers that answer.
func (s *setup) reach(ctx context.Context) error {
	_, err := s.look(ctx)
	for told := false; err != nil && ctx.Err() == nil; _, err = s.look(ctx) {
		if refused := Denied(err); errorsIsFatal(refused) {
			return fmt.Errorf("reach the brokers at %v: %w", s.rt.Brokers, refused)
		}
		if !told {
			s.rt.Log.Warn("brokers do not answer yet", "brokers", s.rt.Brokers, "error", err)
			told = true
		}
		pause(ctx, setupPause)
	}
	if err != nil {
		return fmt.Errorf("reach the brokers at %v: %w (do they run? `prl-stage --stage broker` serves one)", s.rt.Brokers, err)
	}
	return nil
}

// make waits until every topic is there, makes those that are missing, and checks the partitions. Topics that are
// another's concern and hidden from this user are forgotten.
func (s *setup) make(ctx context.Context) error {
	for {
		have, err := s.look(ctx)
		if err == nil {
			err = s.create(ctx, have)
		}
		if err == nil {
			s.topics = slices.DeleteFunc(s.topics, func(t *planned) bool {
				return len(t.needed) == 0 && (errors.Is(have[t.name].err, kerr.TopicAuthorizationFailed) || t.denied != nil)
			})
			err = s.complete(have)
		}
		if err == nil || errorsIsFatal(err) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("make the topics of run %s: %w", s.rt.Run.Name, err)
		}
		pause(ctx, setupPause)
	}
}

// create makes the topics that are missing.
func (s *setup) create(ctx context.Context, have map[string]found) error {
	for _, t := range s.topics {
		if t.denied != nil || !errors.Is(have[t.name].err, kerr.UnknownTopicOrPartition) {
			continue
		}
		if s.rt.Joins {
			t.denied = Fatal("run %s is another's to begin", s.rt.Run.Name)
			continue
		}
		configs := map[string]*string{}
		for k, v := range t.configs {
			configs[k] = &v
		}
		resp, err := s.adm.CreateTopic(ctx, t.partitions, -1, configs, t.name)
		if err == nil {
			err = resp.Err
		}
		switch denied := Denied(err, CreateTopic(t.name)); {
		case err == nil, errors.Is(err, kerr.TopicAlreadyExists): // the next look shows it
		case errorsIsFatal(denied):
			t.denied = denied
		case !errors.As(err, new(*kerr.Error)), kerr.IsRetriable(err), errors.Is(err, kerr.InvalidReplicationFactor): // brokers are still starting
			return fmt.Errorf("create topic %s: %w", t.name, err)
		default:
			return Fatal("create topic %s: %w", t.name, err)
		}
	}
	return nil
}

// complete holds what there is to what should be. An error that is not fatal may pass.
func (s *setup) complete(have map[string]found) error {
	for _, t := range s.topics {
		switch got := have[t.name]; {
		case s.rt.Joins && errors.Is(got.err, kerr.UnknownTopicOrPartition):
			return Fatal("topic %s does not exist: the run's own stages, or `prl-stage --stage setup` with its settings, make it", t.name)
		case t.denied != nil && errors.Is(got.err, kerr.UnknownTopicOrPartition):
			return Fatal("topic %s does not exist, and this user may not make it: somebody who may runs `prl-stage --stage setup` once: %w", t.name, t.denied)
		case got.err != nil:
			return Denied(fmt.Errorf("look at topic %s: %w", t.name, got.err), t.needed...)
		case got.partitions != t.partitions:
			return Fatal("topic %s has %d partitions, this configuration asks for %d: they are fixed for a run; change run.name or the configuration", t.name, got.partitions, t.partitions)
		}
	}
	return nil
}

// check refuses topics that would lose records or refuse large ones.
func (s *setup) check(ctx context.Context) error {
	req := kmsg.NewPtrDescribeConfigsRequest()
	for _, t := range s.topics {
		r := kmsg.NewDescribeConfigsRequestResource()
		r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, t.name
		req.Resources = append(req.Resources, r)
	}
	resp, err := req.RequestWith(ctx, s.cl)
	if err != nil {
		return fmt.Errorf("look at the configuration of the topics: %w", err)
	}
	described := map[string]kmsg.DescribeConfigsResponseResource{}
	for _, r := range resp.Resources {
		described[r.ResourceName] = r
	}
	for _, t := range s.topics {
		got, ok := described[t.name]
		if !ok {
			return fmt.Errorf("look at the configuration of topic %s: the brokers did not answer", t.name)
		}
		err := kerr.ErrorForCode(got.ErrorCode)
		if errors.Is(err, kerr.TopicAuthorizationFailed) {
			if len(t.needed) > 0 {
				s.rt.Log.Warn("the configuration of a topic may not be looked at and is taken to be right", "topic", t.name, "want", t.configs)
			}
			continue
		}
		if errors.Is(err, kerr.UnknownTopicOrPartition) && ctx.Err() == nil { // a broker that has not heard yet of what was just made
			pause(ctx, setupPause)
			return s.check(ctx)
		}
		if err != nil {
			return fmt.Errorf("look at the configuration of topic %s: %w", t.name, err)
		}
		for _, c := range got.Configs {
			if want, ok := t.configs[c.Name]; ok && c.Value != nil && *c.Value != want {
				return fmt.Errorf("topic %s has %s = %s, a run needs %s: set it with your Kafka tools, or change run.name", t.name, c.Name, *c.Value, want)
			}
		}
	}
	return nil
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
