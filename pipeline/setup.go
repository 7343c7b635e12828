package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

const (
	// setupDeadline bounds the set-up of the topics, waiting for the broker included.
	setupDeadline = 60 * time.Second
	// setupPause is the time between two looks at what is there.
	setupPause = 200 * time.Millisecond
)

// SetUp creates the run's topics that are missing and checks those that are there: partitions, size of records,
// retention. It waits for brokers that do not answer yet.
func (rt *Runtime) SetUp(ctx context.Context, envs []string) error {
	ctx, cancel := context.WithTimeout(ctx, setupDeadline)
	defer cancel()
	cl, err := rt.Client()
	if err != nil {
		return err
	}
	defer cl.Close()
	s := setup{rt: rt, adm: kadm.NewClient(cl)}
	for _, t := range Topics {
		if t.Name != tasksPrefix {
			s.topics = append(s.topics, s.plan(t.Name, t))
		}
	}
	for _, e := range envs {
		s.topics = append(s.topics, s.plan(TopicTasks(e), Topic{}))
	}
	if err := s.create(ctx); err != nil {
		return err
	}
	if err := s.await(ctx); err != nil {
		return err
	}
	return s.check(ctx)
}

// setup is the topics of a run as they should be.
type setup struct {
	rt     *Runtime
	adm    *kadm.Client
	topics []planned
}

type planned struct {
	name       string // with the run's prefix
	partitions int32
	configs    map[string]string
}

func (s *setup) plan(name string, t Topic) planned {
	p := planned{s.rt.TopicName(name), s.rt.Partitions(name), map[string]string{
		"max.message.bytes": strconv.Itoa(TopicRecordBytes),
		"retention.ms":      "-1",
		"retention.bytes":   "-1",
		"cleanup.policy":    "delete",
	}}
	if t.Compacted {
		p.configs["cleanup.policy"] = "compact"
	}
	return p
}

func (s *setup) names() []string {
	var names []string
	for _, t := range s.topics {
		names = append(names, t.name)
	}
	return names
}

// create makes the topics that are missing.
func (s *setup) create(ctx context.Context) error {
	have, err := s.adm.ListTopics(ctx)
	for told := false; err != nil && ctx.Err() == nil; have, err = s.adm.ListTopics(ctx) {
		if !told {
			s.rt.Log.Warn("brokers do not answer yet", "brokers", s.rt.Brokers, "error", err)
			told = true
		}
		pause(ctx, setupPause)
	}
	if err != nil {
		return fmt.Errorf("reach the brokers at %v: %w (do they run? `prl-stage --stage broker` serves one)", s.rt.Brokers, err)
	}
	for _, t := range s.topics {
		d, ok := have[t.name]
		if ok && d.Err != nil && !errors.Is(d.Err, kerr.UnknownTopicOrPartition) {
			return fmt.Errorf("look at topic %s: %w", t.name, d.Err)
		}
		if ok && d.Err == nil {
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
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("create topic %s: %w", t.name, err)
		}
	}
	return nil
}

// await waits until every topic is known, and checks its partitions.
func (s *setup) await(ctx context.Context) error {
	for {
		have, err := s.adm.ListTopics(ctx, s.names()...)
		if err == nil {
			err = have.Error()
		}
		if err == nil {
			for _, t := range s.topics {
				if got := int32(len(have[t.name].Partitions)); got != t.partitions {
					return fmt.Errorf("topic %s has %d partitions, this configuration asks for %d: they are fixed for a run; change run.name or the configuration", t.name, got, t.partitions)
				}
			}
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for the topics of run %s: %w", s.rt.Run.Name, err)
		}
		pause(ctx, setupPause)
	}
}

// check refuses topics that would lose records or refuse large ones.
func (s *setup) check(ctx context.Context) error {
	described, err := s.adm.DescribeTopicConfigs(ctx, s.names()...)
	if err != nil {
		return fmt.Errorf("look at the configuration of the topics: %w", err)
	}
	for _, t := range s.topics {
		got, err := described.On(t.name, nil)
		if err == nil {
			err = got.Err
		}
		if errors.Is(err, kerr.TopicAuthorizationFailed) {
			s.rt.Log.Warn("the configuration of a topic may not be looked at and is taken to be right", "topic", t.name, "want", t.configs)
			continue
		}
		if err != nil {
			return fmt.Errorf("look at the configuration of topic %s: %w", t.name, err)
		}
		for _, c := range got.Configs {
			if want, ok := t.configs[c.Key]; ok && c.Value != nil && *c.Value != want {
				return fmt.Errorf("topic %s has %s = %s, a run needs %s: set it with your Kafka tools, or change run.name", t.name, c.Key, *c.Value, want)
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
