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

// setupDeadline bounds the set-up of the topics, waiting for the broker included.
const setupDeadline = 60 * time.Second

// SetUp creates the run's topics that are missing and checks those that are there.
func (rt *Runtime) SetUp(ctx context.Context, envs []string) error {
	ctx, cancel := context.WithTimeout(ctx, setupDeadline)
	defer cancel()
	cl, err := rt.Client()
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	var names []string
	compacted := map[string]bool{}
	for _, t := range Topics {
		if t.Name != tasksPrefix {
			names, compacted[t.Name] = append(names, t.Name), t.Compacted
		}
	}
	for _, e := range envs {
		names = append(names, TopicTasks(e))
	}
	have, err := adm.ListTopics(ctx)
	if err != nil {
		return fmt.Errorf("reach the broker at %v: %w (is it running? `prl-stage --stage broker` serves one)", rt.Brokers, err)
	}
	for _, name := range names {
		full, want := rt.TopicName(name), rt.Partitions(name)
		if d, ok := have[full]; ok && d.Err == nil {
			if got := int32(len(d.Partitions)); got != want {
				return fmt.Errorf("topic %s has %d partitions, this configuration asks for %d: they are fixed for a run; change run.name or the configuration", full, got, want)
			}
			continue
		}
		configs := map[string]*string{
			"max.message.bytes": kadm.StringPtr(strconv.Itoa(TopicRecordBytes)),
			"retention.ms":      kadm.StringPtr("-1"),
			"retention.bytes":   kadm.StringPtr("-1"),
			"cleanup.policy":    kadm.StringPtr("delete"),
		}
		if compacted[name] {
			configs["cleanup.policy"] = kadm.StringPtr("compact")
		}
		resp, err := adm.CreateTopic(ctx, want, -1, configs, full)
		if err == nil {
			err = resp.Err
		}
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("create topic %s: %w", full, err)
		}
	}
	return nil
}
